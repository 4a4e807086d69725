"""What edited code calls at run time where a region is checkpointed.

NOTE [ Innermost Loops ]: where a loop runs modules that have loops of their own, the inner ones
are checkpointed and the outer one is not: both would compute everything three times.
"""

import dataclasses
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.utils.checkpoint as torch_checkpointing
from torch import nn

from safemodules.checkpointing import checkpoint
from safemodules.checkpointing.checkpoint import checkpoint_under
from safemodules.checkpointing.forgetting import forgetful
from safemodules.checkpointing.plainly import run_plain
from safemodules.errors import BudgetWarning
from safemodules.mutation.internals import is_sharded
from safemodules.mutation.regions import CHECKPOINT_OPTIONS

__all__ = [
    "CALL_MARK",
    "FORGETTING_MARK",
    "LOOP_MARK",
    "Meter",
    "checkpointable",
    "forget_marks",
    "metered",
]

# Kept in the __dict__ of a module whose forward has a checkpointed loop,
LOOP_MARK: Final = "_safemodules_loops"
# and of one that is checkpointed whenever it is called.
CALL_MARK: Final = "_safemodules_checkpointed"
# Of a module that forgets results of its forward: which.
FORGETTING_MARK: Final = "_safemodules_forgetting"


class Meter(Protocol):
    """Told of each run of a region."""

    def __call__(self, filename: str, key: int, call: Callable[..., Any], call_args: Any) -> Any:
        """Run a region of a file on its positional and keyword arguments."""


class _Thread(threading.local):
    meter: Meter | None = None


_thread = _Thread()
_marked: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()


@contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """Run regions of loops through a meter and without checkpointing, in this thread."""
    before = _thread.meter
    _thread.meter = meter
    try:
        with run_plain():
            yield
    finally:
        _thread.meter = before


def forget_marks() -> None:
    """Look again for modules that have loops of their own."""
    _marked.clear()


def _is_region(callee: Any) -> bool:
    """Whether a callee is a module, or a method of one, that leads to no other loop."""
    if isinstance(callee, MethodType):
        owner = callee.__self__
        return isinstance(owner, nn.Module) and not any(map(_has_loops, owner.children()))
    return isinstance(callee, nn.Module) and not _has_loops(callee)


def _has_loops(module: nn.Module) -> bool:
    if _thread.meter is not None:  # which is told of all of them
        return False
    found = _marked.get(module)
    if found is None:
        found = _marked[module] = any(LOOP_MARK in part.__dict__ for part in module.modules())
    return found


def _run(key: int, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if _thread.meter is not None:
        filename = sys._getframe(2).f_code.co_filename
        return _thread.meter(filename, key, call, (args, kwargs))
    return checkpoint(call, *args, **kwargs)


def loop(key: int, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A call in a loop."""
    if torch.compiler.is_compiling():
        return (checkpoint if isinstance(callee, nn.Module) else _call)(callee, *args, **kwargs)
    if not torch.is_grad_enabled() or not _is_region(callee):
        return callee(*args, **kwargs)
    return _run(key, callee, args, kwargs)


def _call(callee: Any, /, *args: Any, **kwargs: Any) -> Any:
    return callee(*args, **kwargs)


def mapped(key: int, callee: Any) -> Any:
    """What is called for each item of a ``map``."""
    return functools.partial(loop, key, callee)


def outlining(callees: tuple[Any, ...]) -> bool:
    """Whether an expression or statements of a loop, that call these, are checkpointed now."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return not callees or any(map(_is_region, callees))


def outlined(key: int, region: Callable[..., Any], /, *args: Any) -> Any:
    """An expression or statements of a loop, with what they read."""
    return _run(key, region, args, {})


def checkpointable(call: Callable[..., Any]) -> Callable[..., Any]:
    """``__call__`` of a class of which some modules are checkpointed, or forget results.

    Args:
        call: the class's own.
    """

    @functools.wraps(call)
    def checkpointed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return call(self, *args, **kwargs)
        if CALL_MARK in self.__dict__:
            return checkpoint(functools.partial(call, self), *args, **kwargs)
        plan = self.__dict__.get(FORGETTING_MARK)
        if plan is None:
            return call(self, *args, **kwargs)
        if any(map(is_sharded, self.modules())):
            plan = dataclasses.replace(plan, keeps_parameters=True)
            warnings.warn(
                "the model is sharded, which takes parameters away between forward and backward: "
                "what is computed of them is kept, which is more than its memory budget has "
                "planned. What is not, as activation functions and sums, is still forgotten.",
                BudgetWarning,
                stacklevel=2,
            )
        return forgetful(plan, call, self, *args, **kwargs)

    return checkpointed


# -- calls of torch's checkpoint ------------------------------------------------------------


def rerouted(callee: Any) -> Any:
    """What may be torch's checkpoint, or a partial of it: an exact and non-reentrant one."""
    if isinstance(callee, functools.partial):
        inner = rerouted(callee.func)
        if inner is callee.func:
            return callee
        return functools.partial(inner, *callee.args, **callee.keywords)
    if callee is torch_checkpointing.checkpoint:
        return _rerouted
    if callee is torch_checkpointing.checkpoint_sequential:
        return _sequential
    if getattr(callee, "__self__", None) is torch_checkpointing.CheckpointFunction:
        return _applied
    return callee


def _applied(function: Any, preserve_rng_state: bool, /, *args: Any) -> Any:
    """``CheckpointFunction.apply``."""
    return _rerouted(function, *args)


def _rerouted(function: Any = None, /, *args: Any, **kwargs: Any) -> Any:
    options = {name: kwargs.pop(name) for name in CHECKPOINT_OPTIONS & kwargs.keys()}
    function = kwargs.pop("function", function)
    if function is None:  # the decorator form
        return lambda function: functools.wraps(function)(
            lambda *args, **kwargs: _rerouted(function, *args, **options, **kwargs)
        )
    context_fn = options.get("context_fn", torch_checkpointing.noop_context_fn)
    if context_fn is torch_checkpointing.noop_context_fn:
        return checkpoint(function, *args, **kwargs)
    return checkpoint_under(context_fn, function, args, kwargs)


def _sequential(functions: Any, segments: int, *args: Any, **kwargs: Any) -> Any:
    """``checkpoint_sequential``: the last segment is not checkpointed."""
    value = args[0] if args else kwargs["input"]
    children = list(functions.children() if isinstance(functions, nn.Sequential) else functions)
    size = len(children) // segments
    for start in range(0, size * (segments - 1), size):
        value = _rerouted(_in_turn(children[start : start + size]), value)
    return _in_turn(children[size * (segments - 1) :])(value)


def _in_turn(functions: list[Any]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return run
