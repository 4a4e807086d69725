"""Copies of what an operation is given or returns, so that what it has saved stays as it is."""

from typing import Any

import torch
from torch import Tensor

from safemodules.rewriting.copies import copy_alike


def own(value: Any) -> Any:
    """A copy of a tensor, or of those in a tuple or list, while a graph is recorded."""
    if not torch.is_grad_enabled():
        return value
    if isinstance(value, Tensor):
        return copy_alike(value)
    if type(value) in (tuple, list):
        return type(value)(map(own, value))
    return value


def views(value: Any) -> Any:
    """The views that one operator has made, each made by one of its own.

    While a graph is recorded, autograd refuses a write to a view that ``chunk``, ``split`` or
    ``unbind`` (as iteration does) has made together with others. A tensor stands for its rows.
    """
    if isinstance(value, Tensor):
        value = value.unbind(0)
    if type(value) not in (tuple, list) or not torch.is_grad_enabled():
        return value
    return type(value)(map(_single_view, value))


def _single_view(view: Any) -> Any:
    base = view._base if isinstance(view, Tensor) else None
    if base is None:
        return view
    return base.as_strided(view.size(), view.stride(), view.storage_offset())
