"""segmentation-models-pytorch: every architecture, every kind of encoder."""

from __future__ import annotations

from functools import partial
from typing import Any

import segmentation_models_pytorch as smp
from torch import nn

from benchmarks.cases import Case, images

# Smallest member of every encoder family, each under a U-Net.
ENCODERS = (
    "resnet18",
    "resnext50_32x4d",
    "dpn68",
    "vgg11",
    "vgg11_bn",
    "se_resnet50",
    "densenet121",
    "inceptionresnetv2",
    "inceptionv4",
    "efficientnet-b0",
    "mobilenet_v2",
    "xception",
    "timm-efficientnet-b0",
    "timm-tf_efficientnet_lite0",
    "timm-skresnet18",
    "mit_b0",
    "mobileone_s0",
    "tu-mobilenetv3_small_050",
    "tu-resnet10t",
)

# Options of the architectures that bring in modules of their own.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "unet-scse": ("unet", {"decoder_attention_type": "scse"}),
    "unet-instancenorm": ("unet", {"decoder_use_norm": {"type": "instancenorm", "affine": True}}),
    "segformer-mit": ("segformer", {"encoder_name": "mit_b0"}),
    "unet-aux": ("unet", {"aux_params": {"classes": 4, "dropout": 0.2}}),
    "unet-sigmoid": ("unet", {"activation": "sigmoid"}),
    "fpn-cat": ("fpn", {"decoder_merge_policy": "cat"}),
    "deeplabv3-separable": ("deeplabv3", {"decoder_aspp_separable": True}),
    "unetplusplus-scse": ("unetplusplus", {"decoder_attention_type": "scse"}),
}


def cases() -> list[Case]:
    """One case for every architecture, encoder and variant."""
    architectures = sorted(smp.MODEL_ARCHITECTURES_MAPPING)
    return [
        *(_case(name, name, {}) for name in architectures),
        *(_case(name, *variant) for name, variant in VARIANTS.items()),
        *(
            _case(f"unet-{encoder}", "unet", {"encoder_name": encoder})
            for encoder in ENCODERS
            if encoder != "resnet18"
        ),
    ]


def _case(name: str, architecture: str, arguments: dict[str, Any]) -> Case:
    if architecture == "dpt":  # takes vision transformers only
        arguments = arguments | {"encoder_name": "tu-vit_tiny_patch16_224", "encoder_depth": 4}
        arguments["dynamic_img_size"] = True
    side = 128 if name == "pan" or "inception" in name else 64
    return Case(
        name=f"smp/{name}",
        factory=partial(_build, architecture, arguments),
        inputs=images(2, 3, side, side),
    )


def _build(architecture: str, arguments: dict[str, Any]) -> nn.Module:
    defaults = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 3}
    return smp.create_model(architecture, **(defaults | arguments))
