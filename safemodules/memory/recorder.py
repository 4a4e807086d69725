"""What records a step: operators, memories, and what is saved; see NOTE [ Natural Life ]."""

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from safemodules.checkpointing.forgetting import CallCounter, OperatorCounter
from safemodules.checkpointing.replaying import (
    is_plain_tensor,
    own_results,
    without_graph,
)
from safemodules.checkpointing.replays import rule_of
from safemodules.memory.tape import Memory, ModuleCall, Operator, Saved, Tape
from safemodules.mutation.graph_internals import is_fake, uncounted

__all__ = ["Recorder"]

# What a fake operator is said to take: bytes and floating-point operations a second of one core.
_BYTES_PER_SECOND = 1e10
_FLOPS_PER_SECOND = 5e10


# Returns what it is given, a tensor that was made of numbers without any operator.
_CONSTANT = torch.ops.aten.lift_fresh.default


@dataclass
class _Memory:
    """A memory that is being recorded."""

    size: int
    made: int
    operator: int | None
    freed: int | None = None
    saved: list["_Saved"] = field(default_factory=list)
    changed: int = -1  # the last operator that has written to it
    is_gradient: bool = False


@dataclass
class _Saved:
    """A saved tensor that is being recorded."""

    asked: list[int] = field(default_factory=list)
    freed: int = 0


@dataclass
class _Operator:
    """An operator that is being recorded."""

    operator: Operator
    given: tuple[int, ...]  # identities of every memory that it read


class _Handle:
    """What autograd holds in place of a saved tensor."""

    def __init__(self, saved: _Saved, make: Callable[[], Tensor]) -> None:
        self.saved, self.make = saved, make


class _Calls(CallCounter):
    """Counts calls of torch functions, and tells in which an operator runs.

    Attributes:
        first: the place of the first operator of the call.
        is_open: whether a call is being made.
    """

    def __init__(self, operators: OperatorCounter) -> None:
        super().__init__()
        self._counter = operators
        self.first = 0
        self.is_open = False

    def _call(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.first, self.is_open = self._counter.count, True
        try:
            return func(*args, **kwargs)
        finally:
            self.is_open = False


class Recorder(OperatorCounter):  # type: ignore[no-untyped-call]
    """Records operators, memories, and what is saved."""

    def __init__(self, model: nn.Module, known: Mapping[int, Any]) -> None:
        super().__init__()
        self.clock = 0
        self.memories: list[_Memory] = []
        self.operators: list[_Operator] = []
        self.calls = _Calls(self)
        self.module_calls: list[ModuleCall] = []
        self.seconds = 0.0
        self.saves = 0
        self.in_forward = True
        self.changed_outside: dict[int, int] = {}
        self._outside = known  # what lives through the step, by the identity of its memory
        self._known: dict[int, tuple[Any, int]] = {}
        self._quiet = False
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._open: list[tuple[str, str, int, int]] = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._quiet:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Do not record what is run in this block."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    # -- operators ----------------------------------------------------------------------------

    def _operate(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        outputs, seconds = _timed(func, args, kwargs)
        event, self.clock = self.clock, self.clock + 1
        plain = [tensor for tensor in inputs if is_plain_tensor(tensor)]
        given = [tensor.untyped_storage() for tensor in plain]
        own = own_results(outputs, () if func is _CONSTANT else given)
        made = [
            (position, self._meet(output, event, place if self.in_forward else None))
            for position, output in own
        ]
        flops = _flops(func, args, kwargs, outputs)
        if any(is_fake(output) for _, output in own):
            seconds = _estimate(flops, [*plain, *(output for _, output in own)])
        self.seconds += seconds
        for tensor in _written(func, args, kwargs):
            self._change(tensor, place if self.in_forward else len(self.operators))
        if not self.in_forward:
            return outputs
        rule = rule_of(func, args, kwargs)
        replay_seconds = seconds
        if rule is not None and rule.kept and not any(is_fake(output) for _, output in own):
            whole = tuple(outputs)
            _, replay_seconds = _timed(rule.run, (func, args, kwargs, whole), {})
            _, replay_seconds = _timed(rule.run, (func, args, kwargs, whole), {})
        kept = () if rule is None else rule.kept
        sources = {found for storage in given if (found := self._index_of(storage)) is not None}
        path = self._open[-1][0] if self._open else ""
        self.operators.append(
            _Operator(
                Operator(
                    str(func),
                    path,
                    event,
                    tuple(sorted(sources)),
                    tuple(memory for position, memory in made if position not in kept),
                    seconds,
                    replay_seconds,
                    rule is not None
                    and len(plain) == len(inputs)
                    and bool(made)
                    and self.calls.is_open,
                    tuple(memory for position, memory in made if position in kept),
                    flops,
                    self.calls.calls - 1,
                    place - self.calls.first,
                ),
                tuple(map(id, given)),
            )
        )
        return outputs

    def _meet(self, tensor: Tensor, event: int, operator: int | None) -> int:
        storage = tensor.untyped_storage()
        found = self._index_of(storage)
        if found is not None or id(storage) in self._outside:
            return -1 if found is None else found
        index = len(self.memories)
        self.memories.append(_Memory(storage.nbytes(), event, operator))
        self._known[id(storage)] = weakref.ref(storage), index
        weakref.finalize(storage, self._free, id(storage), index).atexit = False
        return index

    def _index_of(self, storage: Any) -> int | None:
        found = self._known.get(id(storage))
        return None if found is None else found[1]

    def _free(self, key: int, index: int) -> None:
        self.memories[index].freed = self.clock
        if self._known.get(key, (None, -1))[1] == index:
            del self._known[key]

    def _change(self, tensor: Tensor, operator: int) -> None:
        if not is_plain_tensor(tensor):
            return
        storage = tensor.untyped_storage()
        found = self._index_of(storage)
        if found is None:
            self.changed_outside[id(storage)] = operator
        else:
            self.memories[found].changed = operator

    # -- saved tensors ------------------------------------------------------------------------

    def _pack(self, tensor: Tensor) -> Any:
        self.saves += self.in_forward
        found = self._index_of(tensor.untyped_storage()) if is_plain_tensor(tensor) else None
        if found is None:
            with self.quietly():
                return without_graph(tensor)
        saved = _Saved()
        self.memories[found].saved.append(saved)
        handle = _Handle(saved, self._maker(tensor, saved))
        weakref.finalize(handle, self._let_go, saved).atexit = False
        return handle

    def _maker(self, tensor: Tensor, saved: _Saved) -> Callable[[], Tensor]:
        """Makes what stands for a saved tensor: zeros, but masks are themselves.

        Zero is an index into anything; the number of what a mask selects is a size.
        """
        if tensor.dtype is torch.bool:
            with self.quietly():
                kept = without_graph(tensor)
            return lambda: kept
        blank = functools.partial(
            torch.empty_strided,
            tensor.size(),
            tensor.stride(),
            dtype=tensor.dtype,
            device=tensor.device,
        )

        def make() -> Tensor:
            made = blank().zero_()
            weakref.finalize(made.untyped_storage(), self._let_go, saved).atexit = False
            return made

        return make

    def _unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, _Handle):
            return packed  # type: ignore[no-any-return]
        packed.saved.asked.append(self.clock)
        self.clock += 1
        with self.quietly():
            return packed.make()

    def _let_go(self, saved: _Saved) -> None:
        saved.freed = max(saved.freed, self.clock)

    # -- modules ------------------------------------------------------------------------------

    @contextmanager
    def following_modules(self) -> Iterator[None]:
        """Note which module runs."""

        def enter(module: nn.Module, args: Any) -> None:
            path = self._paths.get(id(module), type(module).__name__)
            kind = type(module).__name__
            self._open.append((path, kind, len(self.operators), _bytes_of(args)))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            path, kind, start, given = self._open.pop()
            stop, depth = len(self.operators), len(self._open)
            returned = _bytes_of(output)
            self.module_calls.append(ModuleCall(path, kind, start, stop, depth, given, returned))

        before = register_module_forward_pre_hook(enter)
        after = register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def mark_gradient(self, gradient: Tensor | None) -> None:
        """Tell that a tensor is the gradient of a parameter."""
        if gradient is not None and is_plain_tensor(gradient):
            found = self._index_of(gradient.untyped_storage())
            if found is not None:
                self.memories[found].is_gradient = True

    def tape(self, is_estimated: bool) -> Tape:
        """What was recorded."""
        operators = tuple(self._checked(place, one) for place, one in enumerate(self.operators))
        forward = max((one.event + 1 for one in operators), default=0)
        memories = tuple(
            Memory(
                one.size,
                one.made,
                self.clock if one.freed is None else one.freed,
                one.operator,
                tuple(Saved(tuple(each.asked), each.freed) for each in one.saved),
                one.is_gradient,
            )
            for one in self.memories
        )
        calls = tuple(
            sorted(self.module_calls, key=lambda call: (call.start, -call.stop, call.depth))
        )
        return Tape(
            operators,
            memories,
            self.clock,
            forward,
            self.seconds,
            self.calls.calls,
            self.saves,
            is_estimated,
            calls,
        )

    def _checked(self, place: int, one: _Operator) -> Operator:
        """An operator, which cannot be replayed if what it reads or returns was changed later."""
        operator = one.operator
        inner = (*operator.sources, *operator.results)
        later = [self.memories[memory].changed for memory in inner]
        later += [self.changed_outside.get(key, -1) for key in one.given]
        if operator.can_replay and max(later, default=-1) > place:
            return Operator(**{**operator.__dict__, "can_replay": False})
        return operator


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Tensors that an operator writes to, as its schema says."""
    schema = func._schema
    if not schema.is_mutable:
        return
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _timed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
    started = perf_counter()
    outputs = func(*args, **kwargs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return outputs, perf_counter() - started


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> int:
    formula = flop_registry.get(func.overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=outputs))


def _estimate(flops: int, tensors: list[Tensor]) -> float:
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return flops / _FLOPS_PER_SECOND + moved / _BYTES_PER_SECOND


def _bytes_of(value: Any) -> int:
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    with uncounted():  # these calls are not the forward's
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
