"""Verdicts on the sites of a model: neutral, load-bearing or unknown."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType

from torch import nn

from safemodules.mutation.liveness.callables import forget_callables, lost
from safemodules.mutation.liveness.changing import Changing
from safemodules.mutation.liveness.interpreter import Interpreter
from safemodules.mutation.liveness.run import Key
from safemodules.mutation.liveness.runs import Setting, run_alone, run_model
from safemodules.mutation.reach import Reach
from safemodules.mutation.regions import FoundRegion

_RUNS = 8


class Effect(Enum):
    """What a swap does to the function."""

    NEUTRAL = "neutral"
    LOAD_BEARING = "load-bearing"
    UNKNOWN = "unknown"
    UNREACHED = "unreached"
    NO_TENSOR = "no tensor"


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
        setting = Setting(reach, changing, modules.keys(), verdicts.keys(), at)
        run = run_model(model, setting)
        for value in lost():
            changing.note(value)
        if changing.size > relied:
            continue
        found = _not_neutral(run, reach, [*sites, *modules])
        proven = _for_any_caller(found, setting)
        if changing.size > relied:
            continue
        found = {key: verdict for key, verdict in found.items() if key not in proven}
        news = {key: verdict for key, verdict in found.items() if key not in verdicts}
        verdicts.update(news)
        if not news:
            harmless = {key: _harmless(key, run) for key in [*sites, *modules]}
            run.overwritten.update(_changed_around(run, setting))
            if changing.outside:  # which a checkpoint does not put back
                run.overwritten.update({r.key: changing.outside for r in at.values()})
            return Verdicts({**harmless, **proven, **verdicts}, run.overwritten)
    end = "the analysis has found no end"
    gave_up = SiteVerdict(Effect.UNKNOWN, end)
    sites_left = {key: verdicts.get(key, gave_up) for key in [*sites, *modules]}
    return Verdicts(sites_left, dict.fromkeys((region.key for region in at.values()), end))


def _for_any_caller(found: Mapping[Key, SiteVerdict], setting: Setting) -> dict[Key, SiteVerdict]:
    """Undecided sites that are harmless whoever calls their function.

    See NOTE [ Any caller ].
    """
    proven: dict[Key, SiteVerdict] = {}
    for function, runs in setting.reach.functions.items():
        keys = {site.key for reached in runs for site in reached.findings.sites}
        undecided = {
            key
            for key in keys - setting.kept
            if key in found and found[key].effect is Effect.UNKNOWN
        }
        run, ended = run_alone(function, setting) if undecided else (None, False)
        if run is not None and ended:
            for key in undecided & (run.ran | run.plain) - run.unknown.keys() - run.readers.keys():
                proven[key] = _harmless(key, run)
    return proven


def _changed_around(run: Interpreter, setting: Setting) -> dict[Key, str]:
    """Regions that may differ later, also by what could not be followed."""
    missing = {region.key for region in setting.regions.values()} - run.followed
    found: dict[Key, str] = {}
    given_up = _given_up(run, setting.reach) if missing else {}
    for function in (each for each in given_up if each in setting.reach.functions):
        _, ended = run_alone(function, setting, missing)
        if not ended:  # whatever it changes
            unclear = f"{function.__qualname__} cannot be followed"
            found.update({region.key: unclear for region in setting.regions.values()})
    # of the runs alone, too; what is overwritten there, the checkpoint itself would notice
    return {**found, **setting.changing.differing}


def _harmless(key: Key, run: Interpreter) -> SiteVerdict:
    """The verdict on a site of which a run has shown nothing else."""
    if key in run.plain and key not in run.ran:
        return SiteVerdict(Effect.NO_TENSOR, "it overwrites no tensor")
    return SiteVerdict(Effect.NEUTRAL, filled=run.filled.get(key, False))


def _not_neutral(run: Interpreter, reach: Reach, keys: Iterable[Key]) -> dict[Key, SiteVerdict]:
    found: dict[Key, SiteVerdict] = {}
    hidden = _hidden(run, reach)
    apart = _of_plain_functions(reach)
    ran = run.ran | run.plain
    for key in keys:
        if key in run.unknown:
            read = key in run.read_by_name
            found[key] = SiteVerdict(Effect.UNKNOWN, run.unknown[key], read=read)
        elif key in hidden:
            read = key in run.read_by_name
            found[key] = SiteVerdict(Effect.UNKNOWN, hidden[key], read=read)
        elif key in run.readers:
            reader, sure = run.readers[key]
            effect = Effect.LOAD_BEARING if sure else Effect.UNKNOWN
            reason = reader if sure else f"perhaps {reader}"
            found[key] = SiteVerdict(effect, reason, read=True)
        elif key not in ran and run.unknown_callee and key not in apart:
            reason = f"what {run.unknown_callee} calls is not known, and may be this"
            found[key] = SiteVerdict(Effect.UNKNOWN, reason)
        elif key not in ran:
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


def _given_up(run: Interpreter, reach: Reach) -> dict[FunctionType, str]:
    """Functions that something may run which could not be looked into, and why."""
    callees: dict[FunctionType, set[FunctionType]] = {}
    for (called, _), callers in reach.callers.items():
        for caller, _ in callers:
            callees.setdefault(caller, set()).add(called)
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
    return functions


def _hidden(run: Interpreter, reach: Reach) -> dict[Key, str]:
    """Sites that something runs which could not be looked into."""
    hidden = dict(run.opaque_modules)
    functions = _given_up(run, reach)
    for reached in reach.all():
        if reached.function in functions:
            for site in reached.findings.sites:
                hidden.setdefault(site.key, functions[reached.function])
    return hidden
