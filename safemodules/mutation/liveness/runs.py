"""Abstract runs from beginning to end: of a whole model, and of one function for any caller.

NOTE [ Any caller ]: of what is called behind a call that could not be followed, the run of a
whole model knows nothing. Many functions need not know their caller: what they overwrite they
have made themselves. So a function with undecided sites is run once more, by itself: its
arguments, `self` among them, are memory that anybody may hold, and so is what it returns. A
site that is neutral there is neutral, whoever calls.
"""

import inspect
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch import nn

from safemodules.mutation.internals import user_class_of
from safemodules.mutation.liveness.callables import forget_callables
from safemodules.mutation.liveness.changing import Changing
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.interpreter import Interpreter
from safemodules.mutation.liveness.run import Key
from safemodules.mutation.liveness.unsupported import ImpossibleCallError, UnsupportedError
from safemodules.mutation.liveness.values import (
    REST,
    STATE,
    UNKNOWN,
    Abstract,
    Rest,
    Storages,
    Value,
)
from safemodules.mutation.liveness.world import World
from safemodules.mutation.reach import Reach
from safemodules.mutation.regions import FoundRegion

_STEPS_ALONE = 20_000


@dataclass(frozen=True)
class Setting:
    """What a run takes as given.

    Attributes:
        reach: the functions that the forward reaches.
        changing: what the forward itself changes; a run notes more of it.
        flags: identities of modules whose flag is set.
        kept: sites that stay in place.
        regions: what may be recomputed in backward, by the identities of its nodes.
    """

    reach: Reach
    changing: Changing
    flags: Collection[int]
    kept: Set[Key]
    regions: Mapping[int, FoundRegion]

    def run(self) -> Interpreter:
        """A run that has not begun."""
        return Interpreter(self.reach, self.changing, self.flags, self.kept, self.regions)


def run_model(model: nn.Module, setting: Setting) -> Interpreter:
    """Run the whole forward."""
    forget_callables()
    run = setting.run()
    forward: Any = getattr(user_class_of(type(model)), "forward", None)
    inputs = frozenset({run.numbers.new()})
    run.inputs = inputs
    caller: Any = next(setting.reach.all(), None)  # whose text is not looked at
    frame = Frame(caller, {}, World())
    args, kwargs = _arguments(forward, inputs, 1)
    try:
        value = run.call_module(model, args, kwargs, frame)
    except UnsupportedError as reason:
        run.opaque_module(model, str(reason))
        for function in setting.reach.functions:
            run.opaque(function, None, str(reason))
        return run
    run.note_readers(
        frame.world.held_by(inputs), frame.world, "the caller may read its input", exact=True
    )
    _end(run, value, frame.world)
    return run


def run_alone(
    function: FunctionType, setting: Setting, around: Iterable[Key] = ()
) -> tuple[Interpreter, bool]:
    """Run one function as anybody may call it.

    Args:
        function: it.
        setting: what is taken as given.
        around: regions inside of which it may be called; then what it calls is not followed.

    Returns:
        The run, and whether it came to its end.
    """
    run = setting.run()
    run.limit = _STEPS_ALONE
    run.around += around
    run.shallow = bool(run.around)
    args, kwargs = _arguments(function, frozenset({UNKNOWN}), 0)
    try:
        value, world = run.run_function(function, args, kwargs, World())
    except (ImpossibleCallError, UnsupportedError, RecursionError):
        return run, False
    _end(run, value, world)
    return run, function not in run.opaque_functions


def _arguments(function: Any, memory: Storages, bound: int) -> tuple[list[Value], dict[str, Value]]:
    """Arguments for all parameters but the first ones: any number of them, under any names."""
    given: Value = Abstract(memory)
    if not isinstance(function, FunctionType):
        return [given], {}
    code = function.__code__
    args: list[Value] = [given] * (code.co_argcount - bound)
    kwargs: dict[str, Value] = dict.fromkeys(
        code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount], given
    )
    if code.co_flags & inspect.CO_VARARGS:
        args.append(Rest(memory))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs[REST] = Rest(memory)
    return args, kwargs


def _end(run: Interpreter, value: Value, world: World) -> None:
    """Note who reads what is left when a run has ended."""
    # what an attribute keeps may be called by the next forward, and a result by the caller
    run.lose_callables(world.held_by(value.storages | {STATE, UNKNOWN}))
    ends = (
        (value.storages, "it is returned to the caller"),
        (frozenset({STATE}), "an attribute of the model keeps it"),
        (frozenset({UNKNOWN}), "code that is not looked into may keep it"),
    )
    for storages, reader in ends:
        sure = len(storages) == 1 and UNKNOWN not in storages
        run.note_readers(world.held_by(storages), world, reader, exact=sure)
