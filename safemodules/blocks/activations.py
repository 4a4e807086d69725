"""Activations that keep their result for backward instead of their input.

``leaky_relu_``, ``elu_``, ``selu_`` and ``celu_`` overwrite their input, so their backward is
written over the result; the out-of-place forms keep the input. Where the result lives on
anyway, as the input of the next block, keeping the input costs a second tensor of that size.
These functions write a new tensor and keep that one: the memory of the in-place form, its
gradient bit for bit, and nothing is overwritten.

Reference: ``is_result`` of ``aten::elu_backward`` and ``self_is_result`` of
``aten::leaky_relu_backward`` in torch's derivatives.yaml.
"""

import copy
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

__all__ = ["KeepsResult", "without_overwriting"]

Backward = Callable[[Any, Tensor, Tensor], Tensor]


def _leaky_relu(module: nn.LeakyReLU, grad: Tensor, result: Tensor) -> Tensor:
    out: Tensor = torch.ops.aten.leaky_relu_backward(grad, result, module.negative_slope, True)
    return out


def _elu(module: nn.ELU, grad: Tensor, result: Tensor) -> Tensor:
    out: Tensor = torch.ops.aten.elu_backward(grad, module.alpha, 1.0, 1.0, True, result)
    return out


# Self-Normalizing Neural Networks (arXiv 1706.02515), as many digits as torch has.
_SELU_ALPHA: Final = 1.6732632423543772848170429916717
_SELU_SCALE: Final = 1.0507009873554804934193349852946


def _selu(_: nn.SELU, grad: Tensor, result: Tensor) -> Tensor:
    out: Tensor = torch.ops.aten.elu_backward(grad, _SELU_ALPHA, _SELU_SCALE, 1.0, True, result)
    return out


def _celu(module: nn.CELU, grad: Tensor, result: Tensor) -> Tensor:
    # torch's own backward divides by alpha rounded to float32.
    rounded = torch.tensor(module.alpha, dtype=torch.float32).item()
    out: Tensor = torch.ops.aten.elu_backward(grad, module.alpha, 1.0, 1.0 / rounded, True, result)
    return out


_BACKWARD: Final[dict[type[nn.Module], Backward]] = {
    nn.LeakyReLU: _leaky_relu,
    nn.ELU: _elu,
    nn.SELU: _selu,
    nn.CELU: _celu,
}


class _FromResult(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(total: Tensor, module: nn.Module) -> Tensor:
        out: Tensor = module(total)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, nn.Module], output: Tensor) -> None:
        ctx.module = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return _BACKWARD[type(ctx.module)](ctx.module, grad, result), None


class KeepsResult(nn.Module):
    """An activation computed out of place that keeps its result, as its in-place form does.

    Args:
        activation: One of ``nn.LeakyReLU``, ``nn.ELU``, ``nn.SELU``, ``nn.CELU``.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Compute the activation; any shape, the same shape is returned."""
        out: Tensor = _FromResult.apply(x, self.activation)
        return out


def without_overwriting(activation: nn.Module) -> nn.Module:
    """Give an activation that computes and keeps what this one does, out of place.

    Args:
        activation: Any module. It is not changed.

    Returns:
        The module itself unless its ``inplace`` flag is set; then a copy without the flag,
        which keeps its result where the in-place form keeps that.
    """
    if not getattr(activation, "inplace", False):
        return activation
    copied: Any = copy.copy(activation)
    copied.inplace = False
    negative = getattr(activation, "negative_slope", 0.0)
    # A negative slope turns signs around, so that the result does not tell the input's.
    if type(activation) in _BACKWARD and isinstance(negative, float | int) and negative >= 0:
        return KeepsResult(copied)
    plain: nn.Module = copied
    return plain
