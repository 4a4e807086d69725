"""Every builder of ``torchvision.models.list_models()``, with inputs as small as it allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.video import mvit

from benchmarks.cases import Call, Case, Inputs, Mode, images

T = TypeVar("T")

# Builder arguments beside ``weights=None``, by the start of the name; the longest start wins.
DETECTOR = {"min_size": 96, "max_size": 128}
RCNN = DETECTOR | {
    "rpn_pre_nms_top_n_train": 200,
    "rpn_pre_nms_top_n_test": 200,
    "rpn_post_nms_top_n_train": 20,
    "rpn_post_nms_top_n_test": 20,
    "box_batch_size_per_image": 16,
    "box_detections_per_img": 4,
    "box_score_thresh": 0.0,
}
DENSE = DETECTOR | {"score_thresh": 0.0, "topk_candidates": 50, "detections_per_img": 10}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "": {},
    "fasterrcnn": RCNN,
    "maskrcnn": RCNN,
    "keypointrcnn": RCNN,
    "retinanet": DENSE,
    "fcos": DENSE,
    "ssd": {"score_thresh": 0.0, "topk_candidates": 50, "detections_per_img": 10},
    "googlenet": {"aux_logits": True, "init_weights": True},
    "inception_v3": {"aux_logits": True, "init_weights": True},
    "quantized": {"quantize": False},
    "vit": {"image_size": 32},
    "vit_b_32": {"image_size": 64},
    "vit_l_32": {"image_size": 64},
    "vit_h_14": {"image_size": 28},
    "deeplabv3": {"aux_loss": True},
    "fcn": {"aux_loss": True},
}

# Side of the square image, by the start of the name. The fixed ones: the auxiliary head of
# Inception needs 17 x 17 features, MaxViT halves five times to windows of 7, SSD300 and SSDlite320
# resize to their own size.
SIDES: dict[str, int] = {
    "": 64,
    "regnet": 48,
    "vit": 32,
    "vit_b_32": 64,
    "vit_l_32": 64,
    "vit_h_14": 28,
    "mvit": 64,
    "maxvit": 224,
    "inception_v3": 299,
    "quantized_inception_v3": 299,
    "fasterrcnn": 96,
    "maskrcnn": 96,
    "keypointrcnn": 96,
    "retinanet": 96,
    "fcos": 96,
    "ssd300": 128,
    "ssdlite320": 128,
    "raft": 128,
}
FRAMES = {"mc3": 4, "mvit": 4, "r2plus1d": 4, "r3d": 4, "s3d": 16, "swin3d": 4}
NOTES = {
    "": "",
    "quantized": "the float model",
    "mvit": "4 frames of 64 x 64",
    "s3d": "average pool 2 x 2 x 2 for the small image",
}
DETECTORS = ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd")
BATCH_OF_ONE = ("maxvit", "raft", "ssd300")


def cases() -> list[Case]:
    """One case for every name that torchvision lists."""
    return [_case(name) for name in torchvision.models.list_models()]


def _case(name: str) -> Case:
    return Case(
        name=f"torchvision/{name}",
        factory=partial(_build, name),
        inputs=_inputs(name),
        note=_longest(NOTES, name),
    )


def _build(name: str) -> nn.Module:
    arguments = _longest(ARGUMENTS, name)
    has_backbone = name.startswith(DETECTORS + ("deeplabv3", "fcn", "lraspp"))
    if has_backbone:
        arguments = arguments | {"weights_backbone": None}
    if name.startswith(DETECTORS):
        arguments = arguments | {"num_classes": 2 if name.startswith("keypoint") else 5}
    with patch.object(mvit, "_mvit", partial(_small_mvit, mvit._mvit)):
        model: nn.Module = torchvision.models.get_model(name, weights=None, **arguments)
    if name == "s3d":  # pools 7 x 7 after 32-fold reduction
        model.avgpool = nn.AvgPool3d(kernel_size=(2, 2, 2), stride=1)
    return model


def _small_mvit(original: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """MViT for 4 frames of 64 x 64; its builders ask for 16 of 224 x 224, 11 s a run."""
    sizes = {"temporal_size": FRAMES["mvit"], "spatial_size": (SIDES["mvit"],) * 2}
    return original(*args, **(kwargs | sizes))


def _inputs(name: str) -> Inputs:
    side = _longest(SIDES, name)
    batch = 1 if name.startswith(BATCH_OF_ONE) else 2
    if name.startswith(DETECTORS):
        return partial(_detection, name, side, batch)
    if name.startswith("raft"):
        return partial(_flow, side)
    for start, frames in FRAMES.items():
        if name.startswith(start):
            return images(batch, 3, frames, side, side)
    return images(batch, 3, side, side)


def _longest(table: dict[str, T], name: str) -> T:
    """The entry with the longest key that the name starts with."""
    return table[max((key for key in table if name.startswith(key)), key=len)]


def _flow(side: int, mode: Mode, generator: torch.Generator) -> Call:
    first, second = torch.rand((2, 1, 3, side, side), generator=generator) * 2 - 1
    return Call((first, second), {"num_flow_updates": 2})


def _detection(name: str, side: int, batch: int, mode: Mode, generator: torch.Generator) -> Call:
    # Two sizes: the padding into a batch is written in place.
    pictures = [torch.rand((3, side - 16 * i, side), generator=generator) for i in range(batch)]
    if mode == "eval":
        return Call((pictures,))
    targets = [_target(name, picture, generator) for picture in pictures]
    return Call((pictures, targets))


def _target(name: str, picture: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Two objects: a large and a small box, with masks and keypoints where they are asked for."""
    height, width = picture.shape[-2:]
    size = torch.tensor([width, height, width, height])
    boxes = torch.tensor([[0.1, 0.1, 0.8, 0.7], [0.5, 0.4, 0.9, 0.9]]) * size
    classes = 2 if name.startswith("keypoint") else 5
    target = {"boxes": boxes, "labels": torch.randint(1, classes, (2,), generator=generator)}
    if name.startswith("maskrcnn"):
        masks = torch.zeros((2, height, width), dtype=torch.uint8)
        for mask, (x0, y0, x1, y1) in zip(masks, boxes.long().tolist(), strict=True):
            mask[y0:y1, x0:x1] = 1
        target["masks"] = masks
    if name.startswith("keypointrcnn"):
        low, high = boxes[:, None, :2], boxes[:, None, 2:]
        points = low + torch.rand((2, 17, 2), generator=generator) * (high - low)
        target["keypoints"] = torch.cat([points, torch.ones(2, 17, 1)], dim=2)
    return target
