"""Copies that are laid out like a tensor, on which an in-place operator can run."""

from typing import Any

import torch
from torch import Tensor, nn

from safemodules.rewriting.inference import overwrites


def written_in_place(target: Any) -> bool:
    """Whether an object is left to its own in-place operators.

    Parameters are, and what is no tensor; in inference every tensor is.
    """
    if type(target) is Tensor:  # the usual case; `isinstance` asks a metaclass
        return overwrites()
    return not isinstance(target, Tensor) or isinstance(target, nn.Parameter) or overwrites()


def copy_alike(tensor: Tensor) -> Tensor:
    """Copy a tensor, strides included; what is expanded in it is expanded in the copy.

    Raises:
        RuntimeError: the tensor overlaps itself otherwise; in-place operators refuse it likewise.

    Example:
        >>> copy_alike(torch.ones(4, 6)[::2, ::3]).stride()
        (12, 3)
    """
    copy = tensor.clone()
    if tensor.layout is not torch.strided or copy.stride() == tensor.stride():
        return copy
    distinct = tensor
    for dim, (size, stride) in enumerate(zip(tensor.size(), tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            distinct = distinct.narrow(dim, 0, 1)
    copy = empty_alike(distinct).copy_(distinct)
    return copy if distinct is tensor else copy.expand(tensor.size())


def empty_alike(tensor: Tensor) -> Tensor:
    """Unfilled memory in the shape, strides, dtype and on the device of a tensor."""
    if tensor.layout is not torch.strided:
        return torch.empty_like(tensor)
    return tensor.new_empty_strided(tensor.size(), tensor.stride())


def stand_in(tensor: Tensor, *, overwritten: bool = False) -> Tensor:
    """A tensor on which an in-place operator can run instead.

    NOTE [ History ]: an in-place operator never makes a tensor forget its history: what is
    overwritten by constants has a gradient of zeros, and what is overwritten under
    ``no_grad`` has the gradient that it had before. Hence the copy is part of the graph.

    Args:
        tensor: the tensor that the original overwrites.
        overwritten: the operator does not read the old values.
    """
    if tensor.requires_grad:
        with torch.enable_grad():
            return copy_alike(tensor)
    return empty_alike(tensor) if overwritten else copy_alike(tensor)


def keeps_history(tensor: Tensor) -> bool:
    """Whether an in-place operator here would leave no trace in the graph of a tensor."""
    return tensor.requires_grad and not torch.is_grad_enabled()


def is_alike(result: Any, target: Tensor) -> bool:
    """Whether a result is what an in-place operator would have left in the target."""
    return (
        type(result) is type(target)
        and result.layout is target.layout is torch.strided
        and result.dtype is target.dtype
        and result.shape == target.shape
        and result.device == target.device
        and result.stride() == target.stride()
    )
