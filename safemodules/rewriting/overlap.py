"""Operands that lie in the memory which an in-place operator overwrites.

NOTE [ Overlap ]: torch refuses an operand that overlaps the target only where the question is
easy: between views with gaps it writes, and may read what it has written. What comes out then,
as of `h[:, 1:] += h[:, :-1]`, no operator out of place computes. So the original runs on its
own target, as it stands. Nothing else does: an operand in other elements of that memory
(`boxes[:, 2] += boxes[:, 0]`), or in the very elements that are written (`h += h`), is read
before them. Compilers make all of it out of place themselves, hence the question is not asked
of what is compiled.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from safemodules.mutation.graph_internals import shares_storage

# Read elements again after others were written, so that the target is no operand of theirs:
# what multiplies, decomposes or takes values in a row. They do not look for overlaps.
READ_AGAIN = frozenset(
    """addbmm addmm addmv addr baddbmm bmm ger inner inverse kron masked_scatter matmul mm mv outer
    tensordot""".split()
)
_STEPS = 10_000  # of a search for a common element; without an answer there may be one


def overlap(target: Tensor, operands: Iterable[Any], operator: Any = None) -> bool:
    """Whether an operator may read elements of its target after it has written some.

    Args:
        target: what is written.
        operands: what is read; tensors are looked for among them, in lists and tuples too.
        operator: the function, or the name of the method; if not given, operands that are the
            very elements which are written are read first.

    Example:
        >>> h = torch.zeros(4, 6)
        >>> overlap(h[:, 1:], [h[:, :-1]]), overlap(h[:, :3], [h[:, 3:]]), overlap(h, [h])
        (True, False, False)
        >>> overlap(h, [h], "add_"), overlap(h, [h], "addmm_"), overlap(h, [h], torch.linalg.inv)
        (False, True, True)
    """
    for operand in operands:
        if isinstance(operand, Tensor):
            if torch.compiler.is_compiling():
                return False
            if shares_storage(target, operand) and _collide(target, operand, operator):
                return True
        elif type(operand) in (tuple, list) and overlap(target, operand, operator):
            return True
    return False


def on_itself(operator: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any] | None:
    """The result of an operator on its own target, unless torch refuses it.

    What is refused has written nothing. It was refused for the overlap alone, or will be on a
    copy too, in the same words.
    """
    try:
        return (operator(*args, **kwargs),)
    except RuntimeError:
        return None


def _collide(target: Tensor, operand: Tensor, operator: Any) -> bool:
    if target.layout is not torch.strided or operand.layout is not torch.strided:
        return False
    if operand is target or _geometry(target) == _geometry(operand):
        return _reads_again(operator)
    return share_elements(target, operand)


def _reads_again(operator: Any) -> bool:
    name = operator if isinstance(operator, str) else getattr(operator, "__name__", "")
    return name.rstrip("_") in READ_AGAIN or name.startswith("linalg_")


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    """Where the elements lie, by index; dimensions of one element are left out."""
    dims = [(n, s) for n, s in zip(tensor.size(), tensor.stride(), strict=True) if n != 1]
    return tensor.storage_offset(), tensor.element_size(), dims


def share_elements(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage have a byte in common.

    They have if `sum(stride * step) = distance` has a solution, where a step of a dimension is
    the index in one tensor minus that in the other. Dimensions of one stride are one
    unknown. The search goes from the longest stride on, and mostly has one or two steps to try
    at each. Where it takes too long, the answer is yes.

    Example:
        >>> h = torch.zeros(12)
        >>> share_elements(h[::2], h[1::2]), share_elements(h[::2], h[::3])
        (False, True)
    """
    if not a.numel() or not b.numel():
        return False
    sizes = a.element_size(), b.element_size()
    steps: dict[int, list[int]] = {1: [1 - sizes[1], sizes[0] - 1]}
    for tensor, size, side in ((a, sizes[0], 1), (b, sizes[1], 0)):
        for length, stride in zip(tensor.size(), tensor.stride(), strict=True):
            if length > 1 and stride:
                bounds = steps.setdefault(stride * size, [0, 0])
                bounds[side] += (length - 1) * (1 if side else -1)
    distance = int(b.storage_offset()) * sizes[1] - int(a.storage_offset()) * sizes[0]
    return _solvable(sorted(steps.items(), reverse=True), distance)


def _solvable(steps: list[tuple[int, list[int]]], distance: int) -> bool:
    """Whether strides, each taken a number of times within its bounds, add up to a distance."""
    count = len(steps)
    low, high, common = [0] * (count + 1), [0] * (count + 1), [0] * (count + 1)
    for i in reversed(range(count)):  # what the strides from here on can reach
        stride, (least, most) = steps[i]
        low[i], high[i] = low[i + 1] + stride * least, high[i + 1] + stride * most
        common[i] = math.gcd(common[i + 1], stride if least < most else 0)
    rest, tried = [(0, distance)], 0
    while rest:
        i, distance = rest.pop()
        tried += 1
        if tried > _STEPS:
            return True
        if not low[i] <= distance <= high[i] or (distance % common[i] if common[i] else distance):
            continue
        if i == count:
            return True
        stride, (least, most) = steps[i]
        first = max(least, -((high[i + 1] - distance) // stride))
        last = min(most, (distance - low[i + 1]) // stride)
        if last - first > _STEPS:
            return True
        rest += ((i + 1, distance - stride * step) for step in range(first, last + 1))
    return False
