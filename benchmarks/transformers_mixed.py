"""Tiny configurations of transformers' audio, mixed and time series models, by model type.

Keys that start with a capital letter are settings of the case, see ``transformers_text``.
"""

from __future__ import annotations

from typing import Any

from benchmarks.transformers_text import DECODER, TEXT
from benchmarks.transformers_vision import VIT

Table = dict[str, dict[str, Any]]

AUDIO: Table = {}
MULTIMODAL: Table = {}
