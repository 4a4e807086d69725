"""What a user would write instead: the same models, made safe by hand.

The edits are those that any answer on the web gives: ``inplace=False`` everywhere, and
``x = x + y`` for ``x += y``. ``edit_by_hand`` gives the edited classes to a built model.
"""

from __future__ import annotations

from typing import Any

import torch
import torchvision.models as tv
from torch import Tensor, nn
from torchvision.models.mobilenetv3 import InvertedResidual as InvertedResidualV3
from torchvision.models.resnet import BasicBlock, Bottleneck


class Block(nn.Module):
    """A small residual block with both kinds of in-place site."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        y += x
        return self.act(y)


class BlockByHand(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        y = y + x
        return self.act(y)


class BasicBlockByHand(BasicBlock):
    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out = out + identity
        return self.relu(out)


class BottleneckByHand(Bottleneck):
    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        out = self.relu(out)
        out = self.conv3(out)
        out = self.bn3(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out = out + identity
        return self.relu(out)


class InvertedResidualByHand(InvertedResidualV3):
    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.use_res_connect:
            result = result + x
        return result


EDITS: dict[type[nn.Module], type[nn.Module]] = {
    Block: BlockByHand,
    BasicBlock: BasicBlockByHand,
    Bottleneck: BottleneckByHand,
    InvertedResidualV3: InvertedResidualByHand,
}


def edit_by_hand(model: nn.Module) -> nn.Module:
    """Give the model the edited classes and set its flags."""
    for module in model.modules():
        edited = EDITS.get(type(module))
        if edited is not None:
            module.__class__ = edited
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    return model


def small_net(width: int = 16, depth: int = 20) -> nn.Module:
    """Twenty small blocks: Python takes a large part of the time, so overhead shows."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *(Block(width) for _ in range(depth)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


MODELS: dict[str, tuple[Any, tuple[int, int, int, int]]] = {
    "resnet18": (tv.resnet18, (8, 3, 128, 128)),
    "resnet50": (tv.resnet50, (4, 3, 96, 96)),
    "mobilenet_v3_small": (tv.mobilenet_v3_small, (8, 3, 128, 128)),
    "densenet121": (tv.densenet121, (2, 3, 96, 96)),
    "20 small blocks": (small_net, (8, 3, 32, 32)),
    "20 tiny blocks": (small_net, (2, 3, 8, 8)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """The model of that name and its input, always the same."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model: nn.Module = make()
    return model, torch.randn(shape)
