"""Tiny configurations of transformers' image, audio and mixed models, by model type.

Keys that start with a capital letter are settings of the case, see ``transformers_text``.
"""

from __future__ import annotations

from typing import Any

Table = dict[str, dict[str, Any]]

SIDE = 64

VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": SIDE,
    "patch_size": 16,
}
IMAGE: Table = {
    "vit": VIT,
}
AUDIO: Table = {}
MULTIMODAL: Table = {}
