"""The models of ``safemodules demo``: small, and faulty in ways met in the wild."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

#: As ``torch.nn.Module.register_full_backward_hook`` hands them to a hook.
Gradients: TypeAlias = tuple[Tensor, ...] | Tensor


class DoubleConv(nn.Module):
    """Two convolutions with a residual that is added in place.

    ReLU keeps its result for backward, and ``x += residual`` overwrites that very result.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.first = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.second = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.act = nn.ReLU(inplace=True)  # noqa: SM106

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H, W)."""
        residual = self.project(x)
        x = self.act(self.norm(self.first(x)))
        x = self.act(self.second(x))
        x += residual  # noqa: SM101
        return x


class UNet(nn.Module):
    """Two scales, one skip connection and a gate that is applied in place.

    Args:
        width: Channels at full resolution.

    Shape:
        (N, 1, H, W) to (N, 1, H, W), H and W even.
    """

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.encoder = DoubleConv(1, width)
        self.down = nn.MaxPool2d(2)
        self.bottom = DoubleConv(width, width)
        self.up = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.gate = nn.Conv2d(width, width, 1)
        self.decoder = DoubleConv(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, 1, H, W) to (N, 1, H, W)."""
        skip = self.encoder(x)
        deep = self.up(self.bottom(self.down(skip)))
        gate = torch.sigmoid(self.gate(deep))
        gate *= skip  # noqa: SM101
        out: Tensor = self.head(self.decoder(torch.cat([gate, deep], dim=1)))
        return out


class GradientLog:
    """Records the norm of the gradient at every layer, as gradient monitors and Grad-CAM do.

    Args:
        model: Gets a full backward hook on each module without children.
    """

    def __init__(self, model: nn.Module) -> None:
        self.norms: dict[str, float] = {}
        for name, module in model.named_modules():
            if not any(module.children()):
                module.register_full_backward_hook(self._recorder(name))

    def _recorder(self, name: str) -> Callable[[nn.Module, Gradients, Gradients], None]:
        def record(module: nn.Module, grad_input: Gradients, grad_output: Gradients) -> None:
            gradient = grad_output if isinstance(grad_output, Tensor) else grad_output[0]
            self.norms[name] = float(gradient.norm())

        return record
