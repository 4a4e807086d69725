"""A forward that forgets some of its results; see NOTE [ Forgotten Results ].

NOTE [ Places in a Forward ]: an operator is named by the call of a torch function that leads to
it, counted from the start of the forward, and by its place below autograd in that call. Counting
calls costs next to nothing; only in those that matter are operators looked at one by one, which
costs as much as a small operator does. A forward that does not make the planned calls keeps more
than was planned, and warns.
"""

import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from safemodules.checkpointing.callers import is_sharding
from safemodules.checkpointing.plainly import is_plain
from safemodules.checkpointing.replaying import (
    Call,
    Kept,
    Replay,
    Result,
    SavedView,
    View,
    is_plain_tensor,
    map_leaves,
    own_results,
    without_graph,
)
from safemodules.checkpointing.replays import rule_of
from safemodules.errors import BudgetWarning
from safemodules.mutation.graph_internals import is_traced, is_transformed
from safemodules.mutation.internals import saved_tensor_hooks_active

__all__ = ["CallCounter", "Forgetting", "OperatorCounter", "Rehearsal", "forgetful"]

_DETACH = torch.ops.aten.detach.default


@dataclass(frozen=True)
class Forgetting:
    """Which results of a forward are forgotten.

    Attributes:
        calls: number of calls of torch functions in the forward.
        forgotten: by the place of a call, the operators below it whose results are forgotten:
            their names by their places.
        keeps_parameters: what is computed of parameters is kept all the same, since something
            takes parameters away between forward and backward.
    """

    calls: int
    forgotten: Mapping[int, Mapping[int, str]]
    keeps_parameters: bool = False


class CallCounter(TorchFunctionMode):
    """Counts calls of torch functions.

    Questions about attributes do not count, nor what is called to shard a model: a plan is made
    before that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Make a call."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__" or is_sharding(sys._getframe(1)):
            return func(*args, **kwargs)
        place, self.calls = self.calls, self.calls + 1
        return self._call(place, func, args, kwargs)

    def _call(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


class OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its subclass hook
    """Counts operators, below autograd and autocast.

    Detached aliases do not count: hooks for saved tensors make their own. Neither do questions
    that fake tensors ask.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator."""
        kwargs = kwargs or {}
        if func is _DETACH or func.namespace == "prim":
            return func(*args, **kwargs)
        place, self.count = self.count, self.count + 1
        return self._operate(place, func, args, kwargs)

    def _operate(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


class _Notes(OperatorCounter):  # type: ignore[no-untyped-call]
    """Notes some operators of one call of a torch function."""

    def __init__(self, forward: "_Forward") -> None:
        super().__init__()
        self._forward = forward
        self._planned: Mapping[int, str] = {}

    def of(self, planned: Mapping[int, str]) -> "_Notes":
        """The same for the next call: making a mode takes longer than a small operator.

        Args:
            planned: names of the operators, by their places.
        """
        self.count, self._planned = 0, planned
        return self

    def _operate(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs = func(*args, **kwargs)
        planned = self._planned.get(place)
        if planned is not None:
            if planned == str(func):
                self._forward.note(func, args, kwargs, outputs)
            else:
                self._forward.stray(f"it runs {func}, where {planned} was planned")
        return outputs


class _NotNotedError(Exception):
    """An operator was given a tensor that may not be there when it should run again."""


class _Forward(CallCounter):
    """Notes operators of a forward, and hands autograd the notes in place of their results.

    Args:
        plan: which they are.
    """

    def __init__(self, plan: Forgetting) -> None:
        super().__init__()
        self._plan = plan
        self._strayed: str | None = None
        self._order = 0
        # By the identity of their memory, as long as it lives.
        self._results: dict[int, tuple[Any, Result]] = {}
        self._notes = _Notes(self)
        # Memories of parameters that are taken away, held so that no other gets their place.
        self._parameters: dict[int, Any] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, Replay().unpack)

    def __enter__(self) -> Any:
        """Begin the forward."""
        self._hooks.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        """End the forward, and warn if it was not the planned one."""
        self._leave(*exception)
        if self.calls != self._plan.calls:
            self.stray(f"it makes {self.calls} calls, where {self._plan.calls} were planned")
        if self._strayed is not None and exception[0] is None:
            warnings.warn(
                f"the forward is not the one that the memory budget was planned for: "
                f"{self._strayed}. It computes what it should, and keeps more than was planned. "
                f"Plan again with inputs like these.",
                BudgetWarning,
                stacklevel=2,
            )

    def _leave(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._hooks.__exit__(*exception)
        self._results.clear()

    def stray(self, how: str) -> None:
        """Note that the forward is not the planned one."""
        self._strayed = self._strayed or how

    def _call(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        planned = self._plan.forgotten.get(place)
        if self._plan.keeps_parameters:
            map_leaves(self._note_parameter, [args, kwargs])
        if planned is None or self._strayed is not None:
            return func(*args, **kwargs)
        with self._notes.of(planned):
            return func(*args, **kwargs)

    def _note_parameter(self, leaf: Any) -> None:
        if isinstance(leaf, nn.Parameter) and is_plain_tensor(leaf):
            memory = leaf.untyped_storage()
            self._parameters[id(memory)] = memory

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        """Note a call of an operator in place of its results."""
        rule = rule_of(func, args, kwargs)
        if rule is None:
            return
        memories: list[Any] = []

        def hold(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if not is_plain_tensor(leaf):
                raise _NotNotedError
            memory = leaf.untyped_storage()
            if id(memory) in self._parameters:
                raise _NotNotedError
            memories.append(memory)
            # Itself: an alias made below autograd does not share its counter of versions.
            return self._view(leaf, memory) or Kept(leaf)

        try:
            held = map_leaves(hold, args), map_leaves(hold, kwargs)
        except _NotNotedError:
            return
        kept: tuple[Any, ...] = rule.kept and tuple(
            output.detach() if position in rule.kept else None
            for position, output in enumerate(outputs)
        )
        call = Call(self._order, func, rule, *held, kept)
        self._order += 1
        for position, output in own_results(outputs, memories):
            if position not in rule.kept:
                self._remember(output.untyped_storage(), call.forget(position, output))

    def _remember(self, storage: Any, result: Result) -> None:
        key, results = id(storage), self._results
        results[key] = weakref.ref(storage, lambda _: results.pop(key, None)), result

    def _view(self, tensor: Tensor, memory: Any) -> View | None:
        """A tensor in some memory as a view of a forgotten result, if it is one."""
        found = self._results.get(id(memory))
        if found is not None and type(tensor) is not nn.Parameter:
            result = found[1]
            same = tensor._version == result.version and tensor.dtype == result.dtype
            if same and not (tensor.is_conj() or tensor.is_neg()):
                return View.of(tensor, result)
        return None

    def _pack(self, tensor: Tensor) -> SavedView | Kept:
        if is_plain_tensor(tensor):
            view = self._view(tensor, tensor.untyped_storage())
            if view is not None:
                return SavedView(view)
        return Kept(without_graph(tensor))


class Rehearsal(_Forward):
    """Does in a block what a forward that forgets does, without a plan: to measure what it costs.

    Args:
        everything: note every operator that can be; else none.
    """

    def __init__(self, *, everything: bool) -> None:
        super().__init__(Forgetting(0, {}))
        self._everything = everything
        self._notes = _AllNotes(self)

    def __exit__(self, *exception: Any) -> None:
        """End the forward."""
        self._leave(*exception)

    @property
    def noted(self) -> int:
        """How many operators were noted."""
        return self._order

    def _call(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._everything:
            return super()._call(place, func, args, kwargs)
        with self._notes:
            return func(*args, **kwargs)


class _AllNotes(_Notes):  # type: ignore[no-untyped-call]
    """Notes all operators of one call."""

    def _operate(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs = func(*args, **kwargs)
        self._forward.note(func, args, kwargs, outputs)
        return outputs


def forgetful(plan: Forgetting, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a forward, which forgets some results where a gradient is recorded.

    Under hooks for saved tensors that are there already (of a checkpointed region, for
    instance), under transforms of ``torch.func``, compiled, exported or traced, it simply runs.

    Args:
        plan: which results are forgotten.
        call: the forward.
        *args: its positional arguments.
        **kwargs: its keyword arguments.
    """
    if (
        torch.compiler.is_compiling()
        or not torch.is_grad_enabled()
        or is_plain()
        or saved_tensor_hooks_active()
        or is_traced()
        or is_transformed()
    ):
        return call(*args, **kwargs)
    with _Forward(plan):
        return call(*args, **kwargs)
