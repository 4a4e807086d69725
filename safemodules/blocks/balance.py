"""Segments of equal cost instead of equal length."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.blocks.segment_runs import run_children
from safemodules.blocks.segments import starts_of
from safemodules.state import preserved
from safemodules.state.saved import SavedBytes
from safemodules.trees import map_tensors

__all__ = ["boundaries", "saved_bytes"]

_Found = tuple[float, float, tuple[int, ...]]


def saved_bytes(
    seq: nn.Sequential, args: tuple[Any, ...], kwargs: Mapping[str, Any], spread: bool
) -> list[int]:
    """Bytes that each child saves for the backward, in one run of a sequence.

    Parameters and buffers do not count, and what two children save counts for the first. The
    state of the sequence, its gradients and the random numbers are left as they were.

    Args:
        seq: the sequence.
        args: its positional arguments.
        kwargs: its keyword arguments.
        spread: whether tuples are spread between children.
    """
    memory = SavedBytes((*seq.parameters(), *seq.buffers()))
    costs: list[int] = []

    def add(size: int) -> None:
        costs[-1] += size

    args, kwargs = map_tensors(_as_within_a_model, (args, dict(kwargs)))
    with preserved(seq), torch.enable_grad():
        for child in seq:
            costs.append(0)
            with memory.counted(add):
                out = run_children((child,), spread, args, kwargs)
            args = out if spread and type(out) is tuple else (out,)
    return costs


def _as_within_a_model(tensor: Tensor) -> Tensor:
    """A copy that may be overwritten, and needs a gradient as activations do."""
    copy = tensor.detach().clone()
    if copy.is_floating_point() or copy.is_complex():
        return copy.requires_grad_().clone()
    return copy


def boundaries(
    children: Sequence[nn.Module], costs: Sequence[float], count: int
) -> tuple[int, ...]:
    r"""Where to begin the segments after the first, so that the dearest is as cheap as possible.

    .. math::
        c_k(j) = \min_{i < j} \max\bigl(c_{k-1}(i),\ \textstyle\sum_{l=i}^{j-1} c_l\bigr)

    Args:
        children: the children; no segment begins with one that overwrites its input.
        costs: the cost of each.
        count: the number of segments.

    Example:
        >>> boundaries([nn.Linear(1, 1) for _ in range(5)], [8, 1, 1, 1, 5], 3)
        (1, 4)
    """
    starts = starts_of(children)
    if not any(costs):
        costs = [1] * len(children)
    bounds = [*starts, len(children)]
    units = [sum(costs[a:b]) for a, b in itertools.pairwise(bounds)]
    total = [0, *itertools.accumulate(units)]
    n = len(units)
    # Per end: the cost of the dearest segment so far, how uneven they are (the sum of squares,
    # which decides between equals), and where the later ones begin.
    best: list[_Found | None] = [(total[j], total[j] ** 2, ()) for j in range(n + 1)]
    for _ in range(min(count, n) - 1):
        best = [_longer(best, total, end) for end in range(n + 1)]
    found = best[n]
    assert found is not None
    return tuple(starts[index] for index in found[2])


def _longer(best: list[_Found | None], total: list[float], end: int) -> _Found | None:
    """The best way to one end with one segment more."""
    found: list[_Found] = []
    for start in range(1, end):
        before, own = best[start], total[end] - total[start]
        if before is not None:
            found.append((max(before[0], own), before[1] + own**2, (*before[2], start)))
    return min(found, default=None)
