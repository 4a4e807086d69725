"""A small ResNet: blocks that overwrite their tensors, and SafeResidual in their place."""

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import safemodules as sm

STEPS = 5


def branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Two convolutions, the first of which may shrink the image."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )


class InPlaceBlock(nn.Module):
    """The block as it is written usually."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch(inputs, outputs, stride)
        self.shortcut = None if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Add and activate in place."""
        out: Tensor = self.branch(x)
        out += x if self.shortcut is None else self.shortcut(x)
        return self.activation(out)


def safe_block(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Build the block of safemodules."""
    shortcut = None if stride == 1 else "project"
    return sm.SafeResidual(
        branch(inputs, outputs, stride), shortcut, activation=nn.ReLU(inplace=True)
    )


def build(block: Callable[[int, int, int], nn.Module]) -> nn.Sequential:
    """Build a network of such blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *(block(8, 8, 1) for _ in range(3)),
        block(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def train(net: nn.Sequential) -> dict[str, Tensor]:
    """Train a network; returns its parameters and buffers."""
    torch.manual_seed(1)
    images, labels = torch.randn(STEPS, 4, 3, 16, 16), torch.randint(10, (STEPS, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, y in zip(images, labels, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.state_dict()


def main() -> int:
    """Train both from the same weights and compare."""
    torch.manual_seed(0)
    in_place, residual = build(InPlaceBlock), build(safe_block)
    residual.load_state_dict(in_place.state_dict())  # the names are the same
    plain, safe = train(in_place), train(residual)
    equal = plain.keys() == safe.keys() and all(torch.equal(plain[k], safe[k]) for k in plain)
    print(f"{len(plain)} tensors after {STEPS} steps: {'equal bit for bit' if equal else 'DIFFER'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
