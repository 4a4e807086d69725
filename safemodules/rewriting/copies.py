"""Copies that are laid out like a tensor, on which an in-place operator can run."""

from typing import Any

import torch
from torch import Tensor, nn

from safemodules.rewriting.inference import overwrites


def written_in_place(target: Any) -> bool:
    """Whether an object is left to its own in-place operators.

    Parameters are, what is no tensor, and a leaf where no graph is recorded; in inference
    every tensor is.
    """
    if type(target) is Tensor:  # the usual case; `isinstance` asks a metaclass
        return not torch.is_grad_enabled() and (is_kept_leaf(target) or overwrites())
    return (
        not isinstance(target, Tensor)
        or isinstance(target, nn.Parameter)
        or is_kept_leaf(target)
        or overwrites()
    )


def is_kept_leaf(target: Any) -> bool:
    """Whether an object is a leaf that requires grad, or its view, where no graph is recorded.

    Overwritten here it stays a leaf, and its gradient goes to it as before. A view that is made
    here is called a leaf whatever it is of.
    """
    if torch.is_grad_enabled() or not isinstance(target, Tensor) or not target.requires_grad:
        return False
    return target.is_leaf and (not target._is_view() or target._base.is_leaf)  # type: ignore[union-attr]


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
    ``no_grad`` has the gradient that it had before. Hence the copy is part of the graph. It
    is so under ``inference_mode`` too, and a tensor that was made outside of it stays one that
    a graph can hold.

    Args:
        tensor: the tensor that the original overwrites.
        overwritten: the operator does not read the old values.
    """
    if _turns_inference(tensor):
        with torch.inference_mode(False):
            return stand_in(tensor, overwritten=overwritten)
    if tensor.requires_grad:
        with torch.enable_grad():
            return copy_alike(tensor)
    return empty_alike(tensor) if overwritten else copy_alike(tensor)


def keeps_history(tensor: Tensor) -> bool:
    """Whether an in-place operator here would leave no trace in the graph of a tensor."""
    if torch.is_grad_enabled():
        return False
    return tensor.requires_grad or _turns_inference(tensor)


def _turns_inference(tensor: Tensor) -> bool:
    """Whether a new tensor would be one of inference, and this one is not.

    Compiled code cannot ask, and knows no such tensors.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return torch.is_inference_mode_enabled() and not tensor.is_inference()


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
