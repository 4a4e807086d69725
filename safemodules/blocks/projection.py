"""The shortcut of a residual block whose shape changes, built from the shapes it meets."""

import math
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

from safemodules.blocks.paths import describe_place
from safemodules.errors import ResidualError

__all__ = ["KINDS", "LazyProjection", "Projection"]

# What `shortcut=` may be called: a 1x1 convolution over dimension 1, or a linear map of the last.
KINDS: Final = ("project", "linear")

_CONVOLUTIONS: Final = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


def _stride(size: int, target: int) -> int | None:
    """Find the smallest stride by which a 1x1 convolution gets from one size to another."""
    if target < 1 or target > size:
        return None
    stride = math.ceil(size / target)  # the result has ceil(size / stride) elements
    return stride if math.ceil(size / stride) == target else None


class Projection(nn.Module):
    r"""A 1x1 convolution with stride, or a linear map: what a residual's shortcut adapts with.

    .. math:: y_{n,o,p} = b_o + \sum_c W_{o,c} \, x_{n,c,sp}

    It computes what ``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d`` (kernel size 1) or ``nn.Linear``
    computes, with their parameter names and their initialisation.

    Attributes:
        weight: (O, C, 1, ...) of a convolution, (O, C) of a linear map.
        bias: (O,).
        stride: One step for each spatial dimension.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    stride: tuple[int, ...]

    def forward(self, x: Tensor, like: Tensor) -> Tensor:
        """Project ``x``; ``like`` is what it will be added to and is read by a lazy one only."""
        if self.weight.dim() == 2:
            return F.linear(x, self.weight, self.bias)
        convolve = _CONVOLUTIONS[self.weight.dim()]
        return convolve(x, self.weight, self.bias, self.stride)

    def reset_parameters(self) -> None:
        """Draw the parameters as ``nn.Conv2d`` and ``nn.Linear`` draw theirs."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        bound = 1 / math.sqrt(self.weight.size(1)) if self.weight.size(1) else 0.0
        nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """Show the shapes."""
        out_features, in_features = self.weight.shape[:2]
        return f"{in_features}, {out_features}, stride={self.stride}"


class LazyProjection(LazyModuleMixin, Projection):
    """A :class:`Projection` that takes its shape from the first call, as ``nn.LazyConv2d`` does.

    Args:
        kind: ``"project"`` or ``"linear"``.
        stride: The stride of every spatial dimension; ``None`` takes the smallest that leads
            from the sizes of the input to those of the branch.
        device: Of the parameters.
        dtype: Of the parameters.
    """

    cls_to_become = Projection

    def __init__(
        self,
        kind: str,
        stride: int | tuple[int, ...] | None = None,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.given_stride = stride
        made: Any = UninitializedParameter  # its stub is that of a tensor without arguments
        self.weight = made(device=device, dtype=dtype)
        self.bias = made(device=device, dtype=dtype)

    def initialize_parameters(self, x: Tensor, like: Tensor) -> None:
        """Build the parameters that lead from the shape of ``x`` to that of ``like``.

        Raises:
            ResidualError: No 1x1 convolution and no linear map leads from one to the other.
        """
        self.stride = self._strides(x, like)
        if not self.has_uninitialized_params():  # loaded from a state_dict
            return
        channel = 1 if self.kind == "project" else -1
        ones = (1,) * (x.dim() - 2) if self.kind == "project" else ()
        weight: Any = self.weight
        bias: Any = self.bias
        with torch.inference_mode(False), torch.no_grad():
            weight.materialize((like.size(channel), x.size(channel), *ones))
            bias.materialize((like.size(channel),))
            self.reset_parameters()

    def extra_repr(self) -> str:
        """Show what is known before the first call."""
        return f"{self.kind!r}, stride={self.given_stride}"

    def _strides(self, x: Tensor, like: Tensor) -> tuple[int, ...]:
        if self.kind == "linear":
            return ()
        if x.dim() not in _CONVOLUTIONS or x.dim() != like.dim():
            raise ResidualError(
                f'{describe_place(self)}: shortcut="project" is a 1x1 convolution over tensors of '
                f"shape (N, C, ...) with one to three spatial dimensions; it was given an input of "
                f"shape {tuple(x.shape)} and a branch of shape {tuple(like.shape)}. For a map of "
                f'the last dimension use shortcut="linear"; anything else can be given as a module.'
            )
        spatial = x.dim() - 2
        if self.given_stride is not None:
            given = self.given_stride
            return (given,) * spatial if isinstance(given, int) else tuple(given)
        found = [_stride(a, b) for a, b in zip(x.shape[2:], like.shape[2:], strict=True)]
        if any(stride is None for stride in found):
            raise ResidualError(
                f"{describe_place(self)}: no stride of a 1x1 convolution leads from an input of "
                f"shape {tuple(x.shape)} to the branch's {tuple(like.shape)}. Give the shortcut as "
                f"a module (with pooling, padding or upsampling), or mend the branch's padding."
            )
        return tuple(stride for stride in found if stride is not None)
