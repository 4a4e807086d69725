"""One checkpointed call: what torch's checkpoint runs, first and again."""

import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from safemodules.checkpointing.exclusion import staying
from safemodules.checkpointing.hooks import versions_watched
from safemodules.checkpointing.policies import policy_contexts
from safemodules.checkpointing.recomputing import recomputation
from safemodules.checkpointing.snapshot import Snapshot
from safemodules.checkpointing.streams import Streams, TorchStreams
from safemodules.checkpointing.survey import Survey
from safemodules.state.places import Place

__all__ = ["Region", "describe", "entered"]

# Per module and mode: whether a run of it has ever drawn from torch's streams of random numbers.
# Of functions nothing is remembered: one code runs many.
_has_drawn: "WeakKeyDictionary[torch.nn.Module, dict[bool, bool]]" = WeakKeyDictionary()


def _may_draw(function: Any) -> bool:
    """Whether a function may draw random numbers, as far as is known before it runs."""
    if not isinstance(function, torch.nn.Module):
        return True
    return _has_drawn.get(function, {}).get(function.training, True)


def _code(function: Any) -> types.CodeType | None:
    for name in ("__func__", "func", "__wrapped__"):
        while hasattr(function, name):
            function = getattr(function, name)
    if isinstance(function, torch.nn.Module):
        function = getattr(type(function).forward, "__wrapped__", type(function).forward)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _key_of(function: Any) -> Any:
    """By what the habits of a function are remembered: its module, or its code."""
    if isinstance(function, torch.nn.Module):
        return function
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else _code(function) or type(function)


def describe(function: Any) -> str:
    """A function with its line: ``"Block (net.py:12)"``."""
    kind = type(function)
    name = getattr(function, "__qualname__", kind.__qualname__)
    code = _code(function)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


class Description:
    """Describes a function when it is asked to."""

    __slots__ = ("_function",)

    def __init__(self, function: Any) -> None:
        self._function = function

    def __str__(self) -> str:
        """The function with its line."""
        return describe(self._function)


class Region:
    """A function, what it may read, and the two contexts that it runs under.

    Args:
        function: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        policy: which results to keep, see :func:`policy_contexts`.
        streams: streams of random numbers to repeat besides those of torch.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        policy: Any,
        streams: Sequence[str],
    ) -> None:
        key = _key_of(function)
        self.snapshot = Snapshot(key, function, args, kwargs)
        self._forward: tuple[Any, Any, Any] | None = (function, args, kwargs)
        self._function = function
        self._key = key
        self.sentinels = _sentinels(self.snapshot.devices)
        self._names_of_streams = streams
        self._draws = True
        self._policy = (None, None) if policy is None else policy_contexts(policy)
        # Per thread: what the recomputation that has begun there shall call.
        self._again: dict[int, tuple[Any, Any, Any]] = {}

    def __str__(self) -> str:
        """The function with its line."""
        return describe(self._function)

    def __call__(self, *_: Any) -> Any:
        """Run the function: on what it was given first, and on what is restored later."""
        again = self._again.pop(threading.get_ident(), None)
        if again is not None:
            function, args, kwargs = again
            return function(*args, **kwargs)
        assert self._forward is not None, "a recomputation without its context"
        function, args, kwargs = self._forward
        with versions_watched(self):
            return function(*args, **kwargs)

    def contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """What ``torch.utils.checkpoint.checkpoint`` takes as its ``context_fn``."""
        return self._policy[0] or nullcontext(), _Repeated(self._recomputing)

    @property
    def places(self) -> Sequence[Place]:
        """Every place that it may read."""
        return self.snapshot.places

    def begin(self) -> None:
        """Take the states of the streams of random numbers, when no other region draws."""
        self._torch_streams = TorchStreams(self.sentinels)
        self._streams = Streams(self._names_of_streams)

    def settle(self, is_contended: bool) -> None:
        """Let go of what only the forward needs.

        Args:
            is_contended: other threads run regions too.
        """
        self._forward = None
        self.snapshot.settle()
        if is_contended:
            self._draws = self._torch_streams.has_moved()
            if isinstance(self._key, torch.nn.Module) and self._key is self._function:
                known = _has_drawn.setdefault(self._key, {})
                mode = self._key.training
                known[mode] = self._draws or known.get(mode, False)

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        thread = threading.get_ident()
        with ExitStack() as stack:
            restored = self.snapshot.restored(self, self._draws)
            self._again[thread] = stack.enter_context(restored)
            if self._draws:
                stack.enter_context(self._torch_streams.repeated())
            stack.enter_context(self._streams.repeated())
            stack.enter_context(recomputation())
            if self._policy[1] is not None:
                stack.enter_context(self._policy[1])
            try:
                yield
            finally:
                self._again.pop(thread, None)


class _Repeated(AbstractContextManager[None]):
    """Makes a context manager anew each time it is entered, by several threads too.

    Args:
        make: makes one.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._open: dict[int, list[AbstractContextManager[None]]] = {}

    def __enter__(self) -> None:
        """Enter a new one."""
        context = self._make()
        context.__enter__()
        self._open.setdefault(threading.get_ident(), []).append(context)

    def __exit__(self, *exception: Any) -> bool | None:
        """Leave the one that this thread has entered last."""
        mine = self._open[threading.get_ident()]
        context = mine.pop()
        if not mine:
            del self._open[threading.get_ident()]
        return context.__exit__(*exception)


def _sentinels(devices: set[torch.device]) -> list[Tensor]:
    """Empty tensors that tell which accelerators' random numbers and autocast to repeat."""
    return [
        torch.empty(0, device=device) for device in devices if device.type not in ("cpu", "meta")
    ]


def entered(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    make: "Callable[[], Region] | None" = None,
) -> staying:
    """Be in the first run of a function, out of the way of other threads' recomputations.

    Args:
        function: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        make: makes the region, if the function shall be computed again.
    """

    def survey() -> Survey:
        return Survey(function, args, kwargs)

    return staying(Description(function), _may_draw(function), survey, make or survey)
