"""What the graph of one iteration tells: whether it reaches what a loop does not know of."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from safemodules.blocks.paths import Place
from safemodules.errors import LoopBodyError
from safemodules.mutation import graph_internals, internals

__all__ = ["Inspection", "inspect_graph", "reaches"]

_MEND: Final = (
    "Its gradient would be lost or wrong. Hand it over after the items, as in "
    "loop(items, tensor), or make what it belongs to a part of the body."
)
# Casts of parameters that autocast keeps from one operation to the next.
_CAST: Final = "ToCopyBackward0"


@dataclass(frozen=True)
class Inspection:
    """What was found in the graph of an iteration.

    Attributes:
        used: The parameters that the loss depends on, by id.
        is_half: Some value that the loss depends on is float16, whose gradients may underflow.
        saved_bytes: What the graph keeps beyond the tensors given, ``None`` if unknown.
    """

    used: frozenset[int]
    is_half: bool
    saved_bytes: int | None


def inspect_graph(
    roots: Iterable[Tensor],
    known: Iterable[Tensor],
    ends: Iterable[Tensor | GradientEdge],
    start: int,
    place: Place,
    *,
    measure: bool = False,
) -> Inspection:
    """Walk the graph of an iteration.

    Args:
        roots: The loss.
        known: Parameters whose gradient is taken.
        ends: Where the iteration's own graph ends: leaves and edges.
        start: Number that the first node of the iteration could have.
        place: Where the loop stands, for messages.
        measure: Count the bytes that the graph keeps.

    Raises:
        LoopBodyError: The graph reaches another tensor that needs a gradient.
    """
    ends = list(ends)
    known = [*known, *(end for end in ends if isinstance(end, Tensor))]
    allowed = {id(tensor) for tensor in known}
    stops = {end.node for end in ends if not isinstance(end, Tensor)}
    saved: dict[int, int] = {}
    used: set[int] = set()
    hidden = is_half = False
    for node in _nodes(roots, stops):
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            is_half = is_half or variable.dtype == torch.float16
            if id(variable) not in allowed:
                raise LoopBodyError(
                    f"{place}: the body uses a tensor of shape {tuple(variable.shape)} that needs "
                    f"a gradient and is neither a parameter of the body, nor an item, nor handed "
                    f"over with the items. {_MEND}"
                )
            used.add(id(variable))
            continue
        is_half = is_half or torch.float16 in graph_internals.dtypes_of(node)
        if graph_internals.sequence_number(node) < start and not _is_cast_of(node, allowed):
            raise LoopBodyError(
                f"{place}: the body uses a tensor computed before the loop, the result of "
                f"{node.name().removesuffix('Backward0')}, which needs a gradient and is neither "
                f"an item nor handed over with the items. {_MEND}"
            )
        if measure:
            hidden = not _note_saved(node, saved) or hidden
    for tensor in known:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    size = sum(saved.values()) if measure and not hidden else None
    return Inspection(frozenset(used), is_half, size)


def reaches(tensors: Iterable[Tensor], parameters: Iterable[Tensor]) -> bool:
    """Whether some tensors are, or were computed from, one of some leaves."""
    wanted = {id(parameter) for parameter in parameters}
    tensors = list(tensors)
    return any(id(tensor) in wanted for tensor in tensors) or any(
        id(getattr(node, "variable", None)) in wanted for node in _nodes(tensors, set())
    )


def _note_saved(node: Any, saved: dict[int, int]) -> bool:
    """Note the memory that a node keeps; returns whether all of it can be seen."""
    visible = True
    for role in internals.saved_roles(node):
        for raw in internals.raw_saved(node, role):
            tensor = internals.raw_tensor(raw)
            visible = visible and not internals.is_packed(raw)
            if tensor is not None:
                storage = tensor.untyped_storage()
                saved[storage.data_ptr()] = storage.nbytes()
    return visible


def _nodes(roots: Iterable[Tensor], ends: set[Any]) -> Iterator[Any]:
    stack: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(ends)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack += [child for child, _ in node.next_functions if child is not None]


def _is_cast_of(node: Any, allowed: set[int]) -> bool:
    child = node.next_functions[0][0] if node.next_functions else None
    return node.name() == _CAST and id(getattr(child, "variable", None)) in allowed
