"""Record, while a model runs, which line made each node of the graph and which line wrote.

NOTE [ A light recorder ]: a function mode sees every operation with the Python frame at
hand, and costs little; saved-tensor hooks would switch torch's own version check off. So
nothing is hooked: each node of the autograd graph gets a note in its ``metadata`` (which
lives and dies with the node) of the line that made it and of the storages and versions it
was given. Nothing keeps a tensor or a module alive. A write is whatever moves the version
of an argument, so no table of in-place names is needed. Writes are listed by storage; a
storage that a node has saved is alive, so its identity is its own since that node's time.

NOTE [ Functions are noted by number ]: ``Function.apply`` is C++ that no function mode sees.
The node is made just before ``forward`` runs, so the first operation inside the ``forward``
finds the node's sequence number one below the next free one, and the line of the call in
the frame below.
"""

import itertools
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from safemodules.mutation import internals
from safemodules.mutation.frames import Where, locate, locate_from, locate_function
from safemodules.mutation.operations import (
    UNDECLARED,
    Backward,
    Call,
    Failure,
    Operand,
    Operation,
    Write,
    changed,
    describe,
    hidden_writes,
    may_write,
    new_bases,
    storage_of,
    tensors_in,
    versions_of,
    with_bases,
)
from safemodules.mutation.operators import flagged_functions

__all__ = ["Recorder", "note_of"]

_KEY = "safemodules"
_WRITES_PER_STORAGE = 1024
_WRITES = 1 << 17
_APPLICATIONS = 1 << 14
_REGIONS = 256
# Readers of a property, a size or a truth value: they make no node that saves anything.
_SILENT = frozenset({"__get__", "__len__", "__repr__", "__bool__", "dim", "size"})
_BACKWARD = frozenset({"backward", "grad"})
_PLAIN = frozenset({Tensor, nn.Parameter})
_times = itertools.count(1)


def note_of(node: Any) -> Operation | None:
    """What was recorded of a node."""
    note = node.metadata.get(_KEY)
    return note if isinstance(note, Operation) else None


class Recorder(TorchFunctionMode):
    """Records operations while it is active.

    Attributes:
        writes: writes by storage, oldest first; bounded.
        applied: applications of autograd Functions, by the sequence number of their node.
        regions: checkpointed regions that ran, the last ones.
        backwards: backwards that ran, the last ones.
        raised: backwards that raised, innermost first.
        failure: the last operation that raised.
        suspicious: something was written, or may be, that moves no version.

    Args:
        before_backward: called with what a backward starts from, where something suspicious
            was seen before it.
        before_write: called with each tensor that an operation is given which may write.
    """

    def __init__(
        self,
        before_backward: Callable[[tuple[Any, ...]], None] | None = None,
        before_write: Callable[[Tensor], None] | None = None,
    ) -> None:
        super().__init__()
        self._before_write = before_write
        self.suspicious = False
        self._before_backward = before_backward
        self._statistics: set[int] = set()
        self._aliases: dict[int, weakref.ref[Tensor]] = {}
        self.writes: OrderedDict[int, list[Write]] = OrderedDict()
        self.applied: OrderedDict[int, Operation] = OrderedDict()
        self.regions: deque[Where] = deque(maxlen=_REGIONS)
        self.backwards: deque[Backward] = deque(maxlen=_REGIONS)
        self.raised: list[Backward] = []
        self.failure: Failure | None = None
        self._thread = 0
        self._depth = 0
        self._count = 0
        self._number = -1
        self._compiled = internals.CompiledCalls(self._enter_compiled, self._leave_compiled)

    def __enter__(self) -> "Recorder":
        self._thread = threading.get_ident()
        self._depth += 1
        self._compiled.install()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            super().__exit__(*exception)  # type: ignore[no-untyped-call]
        finally:
            self._depth -= 1
            if not self._depth:
                self._compiled.remove()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _SILENT:
            result = func(*args, **kwargs)
            if name == "__get__" and func.__self__ is internals.DATA:
                self._alias(result)
            return result
        self._compiled.install()
        if name in _BACKWARD:
            return self._backward(func, args, kwargs)
        given = tensors_in([*args, *kwargs.values()] if kwargs else args)
        plain = _PLAIN.issuperset(types)
        versions = versions_of(given, plain)
        if self._before_write is not None and may_write(name, func, kwargs):
            for tensor in given:
                self._before_write(tensor)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            with internals.as_plain_tensors(), suppress(RuntimeError):
                self._failed(name, given, error)
            raise
        if plain:
            self._record(name, func, args, kwargs, result, given, versions)
        else:
            with internals.as_plain_tensors():
                self._record(name, func, args, kwargs, result, given, versions)
        return result

    # -- operations ----------------------------------------------------------------------

    def _record(
        self,
        name: str,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        given: list[Tensor],
        versions: list[int],
    ) -> None:
        written = given
        if given:
            now = [0 if tensor.is_inference() else tensor._version for tensor in given]
            written = [] if now == versions else changed(given, versions, now)
        hidden = hidden_writes(name, func, args, kwargs)
        recording = torch.is_grad_enabled()
        made: list[tuple[Any, Tensor]] = []
        if recording:
            results = tensors_in((result,))
            made = self._unnoted([*results, *new_bases(results, given), *with_bases(written)])
        else:
            self._note_function()
        if not (made or written or hidden):
            return
        operation = self._operation(name, func, args, kwargs, made, given, written)
        for node, _ in made:
            node.metadata[_KEY] = operation
        if operation.hooked and operation.where.checkpointed:
            self.regions.append(operation.where)
        for tensor in written:
            self._write(Write(operation, describe(tensor), recording, self._is_counted(tensor)))
        self._watch_statistics(func, operation, hidden)
        for tensor in hidden:
            self._write(Write(operation, describe(tensor), recording, declared=False))

    def _operation(
        self,
        name: str,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        made: list[tuple[Any, Tensor]],
        given: list[Tensor],
        written: list[Tensor],
    ) -> Operation:
        hooked = bool(made) and internals.saved_tensor_hooks_active()
        described: dict[int, Operand] = {}

        def operand(value: Any) -> Any:
            if isinstance(value, Tensor):
                known = described.get(id(value))
                if known is None:
                    known = described[id(value)] = describe(value, hooked)
                return known
            if type(value) in (list, tuple):
                return type(value)(map(operand, value))
            return value

        inputs = tuple([operand(tensor) for tensor in given])
        outputs = tuple([operand(tensor) for _, tensor in made])
        # NOTE [ Writes to views ]: the node of such a write hides inside a `CopySlices`, and
        # hooks hide what a node saved. What was saved is found by repeating the call.
        call = None
        if hooked or any(tensor._is_view() for tensor in written if tensor.requires_grad):
            call = Call(func, tuple(map(operand, args)), {k: operand(v) for k, v in kwargs.items()})
        if written and func in flagged_functions() and not name.endswith("_"):
            name += "_"  # a flag makes it so
        return Operation(name, locate(4), next(_times), inputs, outputs, hooked, call)

    def _alias(self, tensor: Tensor) -> None:
        """Remember what ``.data`` gave: writes to it have a version counter of their own."""
        self.suspicious = True
        number, aliases = id(tensor), self._aliases
        aliases[number] = weakref.ref(tensor, lambda _: aliases.pop(number, None))

    def _is_counted(self, tensor: Tensor) -> bool:
        owner = tensor if tensor._base is None else tensor._base
        return id(owner) not in self._aliases

    def _watch_statistics(self, func: Any, operation: Operation, hidden: Iterable[Tensor]) -> None:
        """Whether statistics are written that a graph of evaluation mode reads."""
        if not hidden and operation.outputs and func in UNDECLARED:
            self._statistics.update(operand.storage for operand in operation.inputs)
        elif hidden and not self.suspicious:
            known = func in UNDECLARED
            self.suspicious = not known or not self._statistics.isdisjoint(map(storage_of, hidden))

    def _write(self, write: Write) -> None:
        storage = write.target.storage
        writes = self.writes.setdefault(storage, [])
        writes.append(write)
        self.writes.move_to_end(storage)
        self._count += 1
        if len(writes) > _WRITES_PER_STORAGE:
            del writes[: _WRITES_PER_STORAGE // 2]
            self._count -= _WRITES_PER_STORAGE // 2
        while self._count > _WRITES:
            _, oldest = self.writes.popitem(last=False)
            self._count -= len(oldest)

    def _note_function(self) -> None:
        """Note the autograd Function whose ``forward`` runs, if one does and it is new."""
        number = internals.next_sequence_number()
        if number == self._number:
            return  # no node was made since the last look
        self._number = number
        where = locate_function(sys._getframe(3))
        if where is not None:
            self.applied[number - 1] = Operation("a custom Function", where, next(_times))
            if where.checkpointed:
                self.regions.append(where)
            if len(self.applied) > _APPLICATIONS:
                self.applied.popitem(last=False)

    def _unnoted(self, tensors: Iterable[Tensor]) -> list[tuple[Any, Tensor]]:
        """Nodes of tensors that have no note yet, each once."""
        found: list[tuple[Any, Tensor]] = []
        for tensor in tensors:
            try:
                node: Any = tensor.grad_fn if tensor.requires_grad else None
            except RuntimeError:  # a view that was written where autograd cannot follow
                continue
            if node is None or _KEY in node.metadata or any(node is old for old, _ in found):
                continue
            if internals.is_custom(node) and node._sequence_nr() in self.applied:
                node.metadata[_KEY] = self.applied[node._sequence_nr()]
            else:
                found.append((node, tensor))
        return found

    # -- errors and backwards ------------------------------------------------------------

    def _failed(self, name: str, given: list[Tensor], error: RuntimeError) -> None:
        described = tuple(map(describe, given))
        operation = Operation(name, locate(3), next(_times), described)
        self.failure = Failure(operation, error, _maker(given[0]) if given else None)

    def _backward(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a backward with the recorder active in the hooks and Functions that it runs."""
        time, where = next(_times), locate(3)

        def run(engine: Any, outputs: Any, *rest: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return engine(outputs, *rest, **options)
            if self.suspicious and self._before_backward is not None:
                self._before_backward(tuple(outputs))
            try:
                if self._compiled.seen:  # a backward that is compiled late must not see us
                    return engine(outputs, *rest, **options)
                with self:
                    return engine(outputs, *rest, **options)
            except RuntimeError:
                self.raised.append(Backward(where, time, tuple(outputs)))
                raise

        with internals.engine_wrapped(run):
            result = func(*args, **kwargs)
        self.backwards.append(Backward(where, time))
        return result

    # -- compiled regions ----------------------------------------------------------------

    def _enter_compiled(self) -> Any:
        return internals.leave_mode(self)

    def _leave_compiled(self, stack: Any, frame: Any) -> None:
        internals.restore_modes(stack)
        made = self._unnoted(tensors_in((frame.f_locals.get("result"),)))
        if made and torch.is_grad_enabled():
            operation = Operation("compiled code", locate_from(frame), next(_times))
            for node, _ in made:
                node.metadata[_KEY] = operation

    def forget(self) -> None:
        """Let go of everything that was recorded."""
        self.writes.clear()
        self.applied.clear()
        self.raised.clear()
        self.failure = None
        self._count = 0


def _maker(tensor: Tensor) -> Operation | None:
    """What made a tensor, if that was recorded."""
    try:
        node = tensor.grad_fn
    except RuntimeError:  # a view that was written where autograd cannot follow
        node = None
    base = tensor._base
    if node is None and base is not None:
        return _maker(base)
    return note_of(node) if node is not None else None
