"""Ask the autograd graph which of its saved tensors were overwritten.

NOTE [ Verdict by touch ]: torch compares versions when a saved tensor is unpacked. Reading
each ``_saved_*`` value of each node from which the loss depends makes the very check that
backward would make, without a backward; values that backward never asks for are not
reached. Three kinds of nodes cannot be asked: where saved-tensor hooks were active (in a
checkpointed region reading would recompute), nodes written in C++, and those that hide in a
``CopySlices`` because a view was written. There the recorded versions are compared.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from safemodules.mutation import internals
from safemodules.mutation.operations import Operand, Operation, Write, describe
from safemodules.mutation.recorder import Recorder, note_of
from safemodules.mutation.replay import saved_operands

__all__ = [
    "Overwritten",
    "Silent",
    "find_freed",
    "find_overwritten",
    "find_silent",
    "modules_of",
    "walk_graph",
]

_VIEW_OF_SEVERAL = "has been modified inplace. This view is the output of a function that returns"
_FREED = "backward through the graph a second time"
# Kinds of nodes whose saved tensors cannot be read from Python.
_HIDING = ("torch::autograd::CopySlices", "torch::autograd::CppNode")


@dataclass(frozen=True, eq=False)
class Overwritten:
    """A saved tensor that was overwritten.

    Attributes:
        node: name of the node that saved it.
        operation: what made that node; ``None`` if it was not recorded.
        operand: the saved tensor; ``None`` if unknown.
        role: what it was to the operation, as torch names it: ``"result"``, ``"self"``.
        expected: the version that was saved.
        found: the version now.
        writes: the writes since, oldest first; empty if none was seen.
        possible: backward may never ask for it (a custom Function decides).
        checked: torch makes a check of its own, so that backward raises.
    """

    node: str
    operation: Operation | None
    operand: Operand | None
    role: str
    expected: int
    found: int
    writes: tuple[Write, ...]
    possible: bool = False
    checked: bool = True


@dataclass(frozen=True, eq=False)
class Silent:
    """A saved tensor that was overwritten in a way that torch does not see.

    Attributes:
        node: name of the node that saved it.
        operation: what made that node.
        operand: the saved tensor.
        role: what it was to the operation.
        write: the first write since.
    """

    node: str
    operation: Operation
    operand: Operand
    role: str
    write: Write


@dataclass(frozen=True, eq=False)
class Noted:
    """A node, with what is known of it.

    Attributes:
        node: the node.
        operation: what made it.
        own: this was recorded for the node itself, not for one that depends on it.
    """

    node: Any
    operation: Operation | None
    own: bool


def walk_graph(roots: Iterable[Any], recorder: Recorder) -> Iterator[Noted]:
    """Every node that backward from some tensors would run, with what made it.

    A node that was not noted itself lies inside the operation whose result depends on it.
    """
    seen: dict[int, Any] = {}
    stack: list[tuple[Any, Operation | None]] = [
        (node, None) for node in map(_node_of, roots) if node is not None
    ]
    while stack:
        node, consumer = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        note = note_of(node)
        if note is None and internals.is_custom(node):
            note = recorder.applied.get(node._sequence_nr())
        yield Noted(node, note or consumer, note is not None)
        inner = note or consumer
        stack += [(child, inner) for child, _ in node.next_functions if child is not None]


def _node_of(root: Any) -> Any:
    """The node of a tensor or of a gradient edge."""
    if not isinstance(root, Tensor):
        return getattr(root, "node", None)
    try:
        return root.grad_fn
    except RuntimeError:  # a view that was written where autograd cannot follow
        return None


def find_overwritten(roots: Iterable[Any], recorder: Recorder) -> list[Overwritten]:
    """Saved tensors that backward from some tensors would find overwritten.

    Args:
        roots: a loss, or outputs.
        recorder: what was recorded.
    """
    found: list[Overwritten] = []
    for noted in walk_graph(roots, recorder):
        if noted.operation is not None and noted.operation.hooked and noted.own:
            found += _by_versions(noted, noted.operation, recorder)
        elif noted.node.name().startswith(_HIDING):
            if noted.own and noted.operation is not None:
                found += _by_versions(noted, noted.operation, recorder)
        else:
            found += _by_touch(noted, recorder)
    return found


def _by_touch(noted: Noted, recorder: Recorder) -> Iterator[Overwritten]:
    node, operation = noted.node, noted.operation
    for role in internals.saved_roles(node):
        saved = internals.raw_saved(node, role)
        if any(map(internals.is_packed, saved)):
            continue  # reading it would run the hooks
        try:
            internals.touch_saved(node, role)
        except RuntimeError as error:
            versions = internals.VERSIONS.search(str(error))
            if versions is not None:
                found, expected = int(versions[1]), int(versions[2])
            elif _VIEW_OF_SEVERAL in str(error):  # which torch says before it compares versions
                found = expected = -1
            else:
                continue  # freed by a backward that has run already
            custom = internals.is_custom(node)
            for operand, version, writes in _which(noted, saved, expected, found, recorder):
                now = found if operand is None else operand.version
                yield Overwritten(
                    node.name(), operation, operand, role, version, now, writes, custom
                )


_Found = tuple[Operand | None, int, tuple[Write, ...]]


def _which(
    noted: Noted, saved: list[Any], expected: int, found: int, recorder: Recorder
) -> list[_Found]:
    """Which of several saved tensors were overwritten: version when saved, and writes since.

    Torch complains about the first alone.
    """
    tensors = [tensor for tensor in map(internals.raw_tensor, saved) if tensor is not None]
    operands = [describe(tensor) for tensor in tensors]
    if not operands and noted.operation is not None:  # a torch that does not show them
        known = (*noted.operation.outputs, *noted.operation.inputs)
        operands = [operand for operand in known if operand.version == expected]
    after = noted.operation.time if noted.own and noted.operation is not None else 0
    matches: list[_Found] = []
    others: list[_Found] = []
    for operand in operands:
        writes = _since(operand.storage, expected, after, recorder)
        if len(operands) == 1 or (writes and operand.version == found):
            matches.append((operand, expected, writes))
        elif after and (writes := _since(operand.storage, -1, after, recorder)):
            others.append((operand, writes[0].target.version - 1, writes))
    return [*matches, *others] or [(None, expected, ())]


def _by_versions(noted: Noted, operation: Operation, recorder: Recorder) -> Iterator[Overwritten]:
    for role, operand, lag in saved_operands(operation):
        expected = operand.version - lag
        writes = _since(operand.storage, expected, operation.time, recorder)
        if operand.token is not None:
            found = operand.token._version
        else:
            found = writes[-1].target.version if writes else operand.version
        if found != expected:
            yield Overwritten(
                noted.node.name(),
                operation,
                operand,
                role,
                expected,
                found,
                tuple(write for write in writes if write.target.version <= found),
                checked=not operation.hooked,
            )


def _since(storage: int, version: int, after: int, recorder: Recorder) -> tuple[Write, ...]:
    """Writes to a storage after a time, that left a later version than the one saved.

    Without a time they are counted back from the last one as long as versions fall: what
    stands before may be a former owner of the same address.
    """
    writes = recorder.writes.get(storage, []) if storage else []
    writes = [write for write in writes if write.declared]
    if after:
        # the operation itself may write after it has saved, as `a.addcmul_(a, a)` does
        return tuple(w for w in writes if w.operation.time >= after and w.target.version > version)
    found: list[Write] = []
    for write in reversed(writes):
        if write.target.version <= version or (
            found and write.target.version > found[-1].target.version
        ):
            break
        found.append(write)
    return tuple(reversed(found))


def find_silent(roots: Iterable[Any], recorder: Recorder) -> list[Silent]:
    """Saved tensors that were overwritten although torch finds their version unchanged."""
    found = []
    for noted in walk_graph(roots, recorder):
        operation = noted.operation
        if operation is None or not noted.own or not internals.saved_roles(noted.node):
            continue
        training = getattr(noted.node, "_saved_training", False)
        for role in internals.saved_roles(noted.node):
            if training and role.startswith("running_"):
                continue  # kept, but not read: the batch's own statistics are
            for raw in internals.raw_saved(noted.node, role):
                tensor = internals.raw_tensor(raw)
                silent = None if tensor is None else _silent(noted, role, tensor, recorder)
                if silent is not None:
                    found.append(silent)
    return found


def _silent(noted: Noted, role: str, tensor: Tensor, recorder: Recorder) -> Silent | None:
    operation, operand = noted.operation, describe(tensor)
    assert operation is not None
    writes = recorder.writes.get(operand.storage, ()) if operand.storage else ()
    writes = [w for w in writes if not w.declared and w.operation.time > operation.time]
    if not writes:
        return None
    try:
        internals.touch_saved(noted.node, role)
    except RuntimeError:
        return None  # torch sees it
    return Silent(noted.node.name(), operation, operand, role, writes[0])


def find_freed(roots: Iterable[Any], recorder: Recorder) -> Operation | None:
    """The operation whose saved tensors a former backward has freed, nearest to the roots."""
    last = max((backward.time for backward in recorder.backwards), default=0)
    for noted in walk_graph(roots, recorder):
        if noted.operation is None or noted.operation.time > last:
            continue  # the backward that raised has freed it
        for role in internals.saved_roles(noted.node):
            if any(map(internals.is_packed, internals.raw_saved(noted.node, role))):
                continue
            try:
                internals.touch_saved(noted.node, role)
            except RuntimeError as error:
                if _FREED in str(error):
                    return noted.operation
    return None


def modules_of(roots: Iterable[Any], recorder: Recorder) -> list[nn.Module]:
    """Outermost modules whose calls made a graph."""
    notes = (noted.operation for noted in walk_graph(roots, recorder))
    found = (note.where.root for note in notes if note is not None)
    return list({id(module): module for module in found if module is not None}.values())
