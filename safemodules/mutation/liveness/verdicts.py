"""Verdicts on the sites of a model: neutral, load-bearing or unknown."""

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any

from torch import nn

from safemodules.mutation.internals import user_class_of
from safemodules.mutation.liveness.callables import forget_callables, lost
from safemodules.mutation.liveness.changing import Changing
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.interpreter import Interpreter
from safemodules.mutation.liveness.run import Key
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    REST,
    STATE,
    UNKNOWN,
    Abstract,
    Rest,
    Value,
)
from safemodules.mutation.liveness.world import World
from safemodules.mutation.reach import Reach
from safemodules.mutation.regions import FoundRegion

_RUNS = 8


class Effect(Enum):
    """What a swap does to the function."""

    NEUTRAL = "neutral"
    LOAD_BEARING = "load-bearing"
    UNKNOWN = "unknown"
    UNREACHED = "unreached"


@dataclass(frozen=True)
class SiteVerdict:
    """What is known of a site from source alone.

    Attributes:
        effect: what a swap does.
        reason: who reads the old tensor, or why that is not known.
        filled: the site overwrites unread values of a factory only.
        read: somebody reads the old tensor, on some path at least, or perhaps does.
    """

    effect: Effect
    reason: str = "nobody reads the old tensor afterwards"
    filled: bool = False
    read: bool = False


@dataclass(frozen=True)
class Verdicts:
    """What the source says.

    Attributes:
        sites: a verdict for each site in source, by its key, and for each module with a flag,
            by identity. A site that does not run as the attributes of the modules are now is
            unreached.
        overwritten: regions of which something that they read may be overwritten before they
            are recomputed, by their keys, and where.
    """

    sites: dict[Key, SiteVerdict]
    overwritten: dict[Key, str]


def find_verdicts(
    model: nn.Module,
    reach: Reach,
    flags: Iterable[nn.Module],
    regions: Iterable[FoundRegion] = (),
) -> Verdicts:
    """Decide sites without running anything.

    Args:
        model: an initialised module.
        reach: the functions that its forward reaches.
        flags: its modules whose flag is set.
        regions: what may be recomputed in backward.
    """
    at = {id(node): region for region in regions for node in region.nodes}
    try:
        return _settled(model, reach, {id(module): module for module in flags}, at)
    finally:
        forget_callables()


def _settled(
    model: nn.Module,
    reach: Reach,
    modules: Mapping[int, nn.Module],
    at: Mapping[int, FoundRegion],
) -> Verdicts:
    """Run again, with the sites that are not neutral left in place, until all others are."""
    sites = {s.key for run in reach.all() for s in run.findings.sites if s.obstacle is None}
    verdicts: dict[Key, SiteVerdict] = {}
    changing = Changing(reach)
    for _ in range(_RUNS):
        relied = changing.size
        run = _run(model, reach, changing, modules.keys(), verdicts.keys(), at)
        for value in lost():
            changing.note(value)
        if changing.size > relied:
            continue
        found = _not_neutral(run, reach, [*sites, *modules])
        news = {key: verdict for key, verdict in found.items() if key not in verdicts}
        verdicts.update(news)
        if not news:
            neutral = {
                key: SiteVerdict(Effect.NEUTRAL, filled=run.filled.get(key, False))
                for key in [*sites, *modules]
                if key not in verdicts
            }
            if changing.outside:  # which a checkpoint does not put back
                run.overwritten.update({r.key: changing.outside for r in at.values()})
            return Verdicts({**neutral, **verdicts}, run.overwritten)
    end = "the analysis has found no end"
    gave_up = SiteVerdict(Effect.UNKNOWN, end)
    sites_left = {key: verdicts.get(key, gave_up) for key in [*sites, *modules]}
    return Verdicts(sites_left, dict.fromkeys((region.key for region in at.values()), end))


def _run(
    model: nn.Module,
    reach: Reach,
    changing: Changing,
    flags: Collection[int],
    kept: Collection[Key],
    regions: Mapping[int, FoundRegion],
) -> Interpreter:
    """One abstract run of the whole forward, with some sites left in place."""
    forget_callables()
    run = Interpreter(reach, changing, flags, kept, regions)
    forward: Any = getattr(user_class_of(type(model)), "forward", None)
    inputs = run.numbers.new()
    given: Value = Abstract(frozenset({inputs}))
    run.inputs = given.storages
    caller: Any = next(reach.all(), None)  # whose text is not looked at
    frame = Frame(caller, {}, World())
    args, kwargs = [given], {}
    if isinstance(forward, FunctionType):
        code = forward.__code__
        args *= max(1, code.co_argcount - 1)
        names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        kwargs = dict.fromkeys(names, given)
        # what a user passes to the model: any number of arguments, under any names
        rest = Rest(given.storages)
        if code.co_flags & inspect.CO_VARARGS:
            args = [*args[: code.co_argcount - 1], rest]
        if code.co_flags & inspect.CO_VARKEYWORDS:
            kwargs[REST] = rest
    try:
        value = run.call_module(model, args, kwargs, frame)
    except UnsupportedError as reason:
        run.opaque_module(model, str(reason))
        for function in reach.functions:
            run.opaque(function, None, str(reason))
        return run
    world = frame.world
    # what an attribute keeps may be called by the next forward
    run.lose_callables(world.held_by(frozenset({STATE, UNKNOWN})))
    ends = (
        (frozenset({inputs}), "the caller may read its input"),
        (value.storages, "it is returned to the caller"),
        (frozenset({STATE}), "an attribute of the model keeps it"),
        (frozenset({UNKNOWN}), "code that is not looked into may keep it"),
    )
    for storages, reader in ends:
        sure = len(storages) == 1 and UNKNOWN not in storages
        run.note_readers(world.held_by(storages), world, reader, exact=sure)
    return run


def _not_neutral(run: Interpreter, reach: Reach, keys: Iterable[Key]) -> dict[Key, SiteVerdict]:
    found: dict[Key, SiteVerdict] = {}
    hidden = _hidden(run, reach)
    apart = _of_plain_functions(reach)
    for key in keys:
        if key in run.unknown:
            read = key in run.read_by_name
            found[key] = SiteVerdict(Effect.UNKNOWN, run.unknown[key], read=read)
        elif key in hidden:
            found[key] = SiteVerdict(Effect.UNKNOWN, hidden[key])
        elif key in run.readers:
            reader, sure = run.readers[key]
            effect = Effect.LOAD_BEARING if sure else Effect.UNKNOWN
            reason = reader if sure else f"perhaps {reader}"
            found[key] = SiteVerdict(effect, reason, read=True)
        elif key not in run.ran and run.unknown_callee and key not in apart:
            reason = f"what {run.unknown_callee} calls is not known, and may be this"
            found[key] = SiteVerdict(Effect.UNKNOWN, reason)
        elif key not in run.ran:
            found[key] = SiteVerdict(Effect.UNREACHED, "it does not run as the modules are set now")
    return found


def _of_plain_functions(reach: Reach) -> set[Key]:
    """Sites of functions outside of classes and other functions.

    Whatever unknown code calls, the edited form of such a function is known to those alone that
    name it, see NOTE [ Callables as memory ]; by any other way the original is found.
    """
    return {
        site.key
        for reached in reach.all()
        if "." not in reached.function.__qualname__
        for site in reached.findings.sites
    }


def _hidden(run: Interpreter, reach: Reach) -> dict[Key, str]:
    """Sites that something runs which could not be looked into."""
    callees: dict[FunctionType, set[FunctionType]] = {}
    for (called, _), callers in reach.callers.items():
        for caller, _ in callers:
            callees.setdefault(caller, set()).add(called)
    hidden = dict(run.opaque_modules)
    functions = dict(run.opaque_functions)
    classes = {
        cls
        for cls, found in reach.classes.items()
        for _, module in found.instances
        if id(module) in run.opaque_modules
    }
    for reached in reach.all():
        if reached.context.owner in classes and reached.function not in functions:
            module = next(
                m for _, m in reach.classes[reached.context.owner].instances
                if id(m) in run.opaque_modules
            )  # fmt: skip
            functions[reached.function] = run.opaque_modules[id(module)]
    rest = list(functions)
    while rest:
        function = rest.pop()
        for called in callees.get(function, ()):
            if called not in functions:
                functions[called] = functions[function]
                rest.append(called)
    for reached in reach.all():
        if reached.function in functions:
            for site in reached.findings.sites:
                hidden.setdefault(site.key, functions[reached.function])
    return hidden
