"""Ask the autograd graph which of its saved tensors were overwritten.

NOTE [ Verdict by touch ]: torch compares versions when a saved tensor is unpacked. Reading
each ``_saved_*`` value of each node from which the loss depends makes the very check that
backward would make, without a backward; values that backward never asks for are not
reached. Inside a checkpointed region reading would recompute, so versions are compared there.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from safemodules.mutation.recorder import KEY, Operand, Operation, Write

_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")
_OUTPUT_NAMES = ("result", "output", "out", "values", "indices")


@dataclass(frozen=True, eq=False)
class Overwritten:
    """A saved tensor that was overwritten.

    Attributes:
        node: name of the node that saved it.
        operation: what made that node; ``None`` if it was not recorded.
        operand: the saved tensor as the operation saw it; ``None`` if unknown.
        role: what it was to the operation, as torch names it: ``"result"``, ``"self"``.
        expected: the version that was saved.
        found: the version now.
        writes: the writes since, oldest first; empty if none was seen.
        possible: backward may never ask for it (a custom Function decides).
    """

    node: str
    operation: Operation | None
    operand: Operand | None
    role: str
    expected: int
    found: int
    writes: tuple[Write, ...]
    possible: bool = False


@functools.cache
def _saved_names(cls: type) -> tuple[str, ...]:
    """Names of the saved tensors of a kind of node."""
    return tuple(n[len("_raw_saved_") :] for n in dir(cls) if n.startswith("_raw_saved_"))


def walk_graph(roots: Iterable[Tensor]) -> Iterator[tuple[Any, Operation | None]]:
    """Every node that backward from some tensors would run, with what made it.

    A node that was not noted itself lies inside the operation whose result depends on it.
    """
    seen: dict[int, Any] = {}
    stack = [(root.grad_fn, None) for root in roots if root.grad_fn is not None]
    while stack:
        node, consumer = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        operation = node.metadata.get(KEY, consumer)
        yield node, operation
        stack += [(inner, operation) for inner, _ in node.next_functions if inner is not None]


def find_overwritten(
    roots: Iterable[Tensor], writes: dict[int, list[Write]]
) -> list[Overwritten]:
    """Saved tensors that backward from some tensors would find overwritten.

    Args:
        roots: a loss, or outputs.
        writes: all recorded writes by storage.
    """
    found = []
    for node, operation in walk_graph(roots):
        if operation is not None and operation.where.checkpointed:
            found += list(_by_versions(node, operation, writes))
        else:
            found += list(_by_touch(node, operation, writes))
    return found


def _by_touch(
    node: Any, operation: Operation | None, writes: dict[int, list[Write]]
) -> Iterator[Overwritten]:
    names = _saved_names(type(node))
    custom = not names and hasattr(type(node), "saved_tensors")
    for name in (f"_saved_{name}" for name in names) if not custom else ("saved_tensors",):
        try:
            getattr(node, name)
        except RuntimeError as error:
            versions = _VERSIONS.search(str(error))
            if versions is None:
                continue  # freed by a backward that has run already
            now, expected = int(versions[1]), int(versions[2])
            role = name.removeprefix("_saved_")
            operand = _operand(operation, role, expected, writes)
            since = _since(operand, expected, writes)
            yield Overwritten(
                node.name(), operation, operand, role, expected, now, since, possible=custom
            )


def _by_versions(
    node: Any, operation: Operation, writes: dict[int, list[Write]]
) -> Iterator[Overwritten]:
    for role in _saved_names(type(node)):
        operands = operation.outputs if role in _OUTPUT_NAMES else operation.inputs
        for operand in operands[:1] if role in (*_OUTPUT_NAMES, "self", "input") else operands:
            since = _since(operand, operand.version, writes)
            if since:
                now = since[-1].target.version
                yield Overwritten(node.name(), operation, operand, role, operand.version, now, since)


def _since(
    operand: Operand | None, version: int, writes: dict[int, list[Write]]
) -> tuple[Write, ...]:
    if operand is None:
        return ()
    return tuple(w for w in writes.get(operand.storage, ()) if w.target.version > version)


def _operand(
    operation: Operation | None, role: str, expected: int, writes: dict[int, list[Write]]
) -> Operand | None:
    """Which tensor of an operation a saved value is: one of its version that was written."""
    if operation is None:
        return None
    ordered = (*operation.inputs, *operation.outputs)
    if role in _OUTPUT_NAMES:
        ordered = (*operation.outputs, *operation.inputs)
    candidates = [operand for operand in ordered if operand.version == expected]
    written = [operand for operand in candidates if _since(operand, expected, writes)]
    return next(iter([*written, *candidates]), None)
