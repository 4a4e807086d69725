"""What a model holds: modules to look into, flags, sites, and what is left as it is."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from torch import nn

from safemodules.conversion.regions import Edited, RegionSite, find_region_sites
from safemodules.errors import ConversionError, ModuleTypeError
from safemodules.mutation.forwards import FORWARD, has_own_forward
from safemodules.mutation.found import FoundSite, Obstacle
from safemodules.mutation.internals import (
    children,
    is_initialised,
    is_lazy,
    is_sharded,
    user_class_of,
    why_opaque,
)
from safemodules.mutation.operators import INPLACE_MODULES
from safemodules.mutation.reach import Reach, ReachedClass, Skipped, explore
from safemodules.mutation.resolution import is_torch_class
from safemodules.mutation.sites import Site, SiteKind, joined_path
from safemodules.mutation.source import SourceFile
from safemodules.rewriting.inference import FLAG_MARK

_FLAGGED = tuple(INPLACE_MODULES)
_FLAGGED_FORWARDS = frozenset(inspect.getattr_static(cls, FORWARD) for cls in INPLACE_MODULES)


@dataclass(eq=False)
class SourceSite(Edited):
    """A site in the source of one or more functions on the forward path.

    Attributes:
        site: where it is.
        found: what stands there.
        file: the file that holds it.
        class_name: the class that mangles private names there.
        obstacle: why it cannot be rewritten, if so.
        modules: the modules that run it, by all their dotted paths.
    """

    site: Site
    found: FoundSite
    file: SourceFile
    class_name: str | None
    obstacle: Obstacle | None
    modules: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        """Dotted paths of the modules that run it."""
        return tuple(self.modules)

    @property
    def span(self) -> tuple[int, int]:
        """Offsets of the edit in the file."""
        return self.file.start(self.found.node), self.file.end(self.found.node)


@dataclass(eq=False)
class FlagSite:
    """A module whose ``inplace`` flag is set.

    Attributes:
        site: where it is.
        module: the module.
        paths: all dotted paths under which the model holds it.
    """

    site: Site
    module: nn.Module
    paths: tuple[str, ...]

    @property
    def done(self) -> bool:
        """Whether an earlier conversion has switched it off."""
        return FLAG_MARK in self.module.__dict__


AnySite = SourceSite | FlagSite


@dataclass(eq=False)
class Survey:
    """Everything that a conversion has to decide about.

    Attributes:
        model: the model.
        reach: the functions that its forward reaches.
        flags: modules whose flag is set.
        sources: sites in source.
        regions: what could be checkpointed, or is by torch.
        skipped: what is left as it is, and why.
        modules: pairs of dotted path and module, without what cannot be looked into.
        classes: the class of each as its user knows it.
    """

    model: nn.Module
    reach: Reach
    flags: list[FlagSite] = field(default_factory=list)
    sources: list[SourceSite] = field(default_factory=list)
    regions: list[RegionSite] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    classes: list[type] = field(default_factory=list)

    @property
    def rerouted(self) -> list[RegionSite]:
        """Regions that torch checkpoints."""
        return [region for region in self.regions if region.is_rerouted]

    def sites(self) -> Iterator[AnySite]:
        """All sites: flags in the order of the modules, then source sites by file and line."""
        yield from self.flags
        yield from self.sources


def check_is_module(model: Any) -> None:
    """Refuse what is not an instance of ``torch.nn.Module``.

    Raises:
        ModuleTypeError: it is something else, or its ``__init__`` has not run.
    """
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ModuleTypeError(
            f"expected a module, got the class {model.__name__}: create an instance first, "
            f"as in {model.__name__}(...)."
        )
    if not isinstance(model, nn.Module):
        raise ModuleTypeError(
            f"expected a torch.nn.Module, got {type(model).__module__}.{type(model).__qualname__}."
        )
    _check_initialised(model, "")


def _check_initialised(module: nn.Module, path: str) -> None:
    if not is_initialised(module):
        where = f"{path}, a {type(module).__name__}," if path else type(module).__name__
        raise ModuleTypeError(
            f"{where} is not initialised: its __init__ must call super().__init__()."
        )


def check_model(model: Any) -> None:
    """Refuse what is not a module, and what cannot be converted at all.

    Raises:
        ModuleTypeError: see :func:`check_is_module`.
        ConversionError: a module is sharded, or lazy and has not run.
    """
    check_is_module(model)
    for path, module in _all_modules(model, "", set()):
        where = path or "the model itself"
        if is_sharded(module):
            raise ConversionError(
                f"{where} is sharded by fully_shard, whose class must lie on top of ours. "
                "Convert the model first, then call fully_shard."
            )
        if is_lazy(module):
            raise ConversionError(
                f"{where} is a lazy {type(module).__name__} whose parameters do not exist yet, "
                "and whose class changes at its first call. Run the model once, then convert it."
            )


def _all_modules(module: nn.Module, path: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    _check_initialised(module, path)
    yield path, module
    for name, child in children(module).items():
        if child is not None:
            yield from _all_modules(child, joined_path(path, name), seen)


def survey_model(model: nn.Module) -> Survey:
    """Look at every module of a model and at the functions that their forwards reach.

    Modules that are converted already are looked at as their user's class.

    Raises:
        ModuleTypeError, ConversionError: see :func:`check_model`.
        SourceError: the text of a reached function is not the text of what runs.
    """
    check_model(model)
    skipped: list[Skipped] = []
    modules = visible_modules(model, skipped)
    classes: dict[type, ReachedClass] = {}
    for path, module in modules:
        if has_own_forward(module):
            reason = "its forward was replaced on the instance, whose source is not looked at"
            skipped.append(Skipped(path, reason))
        else:
            cls = user_class_of(type(module))
            classes.setdefault(cls, ReachedClass(cls, [])).instances.append((path, module))
    reach = explore(classes.values())
    survey = Survey(model, reach, skipped=[*skipped, *reach.skipped], modules=modules)
    survey.classes = [user_class_of(type(module)) for _, module in modules]
    paths = _paths(model)
    survey.sources = _source_sites(reach, paths)
    survey.regions = find_region_sites(reach, paths)
    survey.flags = list(_flag_sites(modules, paths, reach, survey.skipped))
    return survey


def _paths(model: nn.Module) -> dict[int, list[str]]:
    """All dotted paths of each module."""
    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    return paths


def visible_modules(
    model: nn.Module, skipped: list[Skipped] | None = None
) -> list[tuple[str, nn.Module]]:
    """The modules that can be looked into, by dotted path; the others are noted as skipped."""
    return list(_visible_modules(model, "", [] if skipped is None else skipped, set()))


def _visible_modules(
    module: nn.Module, path: str, skipped: list[Skipped], seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    reason = why_opaque(module)
    if reason is not None:
        skipped.append(Skipped(path, reason))
        return
    yield path, module
    for name, child in children(module).items():
        if child is not None:
            yield from _visible_modules(child, joined_path(path, name), skipped, seen)


# -- sites in source ------------------------------------------------------------------------


def _source_sites(reach: Reach, paths: dict[int, list[str]]) -> list[SourceSite]:
    """Sites of all reached functions; one that several classes run is listed once."""
    found: dict[int, SourceSite] = {}
    for reached in reach.all():
        if reached.source is None:
            continue
        file = reached.source.file
        for site in reached.findings.sites:
            known = found.get(site.key)
            if known is None:
                line = file.line(site.lineno)
                where = Site(file.filename, site.lineno, line, reached.path, site.op, site.kind)
                name = reached.source.class_name
                known = found[site.key] = SourceSite(where, site, file, name, site.obstacle)
            known.obstacle = known.obstacle or site.obstacle
            for module in reach.modules_running(reached):
                known.modules.update((path, module) for path in paths[id(module)])
    return sorted(found.values(), key=_order)


def _order(site: SourceSite) -> tuple[str, int, int]:
    node = site.found.node
    return site.file.filename, node.lineno, node.col_offset


# -- flags ----------------------------------------------------------------------------------


def _flag_sites(
    modules: Iterable[tuple[str, nn.Module]],
    paths: dict[int, list[str]],
    reach: Reach,
    skipped: list[Skipped],
) -> Iterator[FlagSite]:
    readers = {
        reached.context.owner
        for reached in reach.all()
        if "inplace" in reached.findings.attributes and reached.context.owner is not None
    }
    for path, module in modules:
        flag = FLAG_MARK in module.__dict__ or _flag(module, path)
        cls = user_class_of(type(module))
        if not flag or (is_torch_class(cls) and not issubclass(cls, _FLAGGED)):
            continue
        if flag is not True:
            reason = f"its flag `inplace` is {flag!r}, neither True nor False"
            skipped.append(Skipped(path, reason))
        elif cls in readers or _runs_torch_forward(cls, reach):
            op = f"{cls.__name__.lower()}_"
            site = Site(
                _file_of(cls), 0, f"{cls.__name__}(inplace=True)", path, op, SiteKind.MODULE_FLAG
            )
            yield FlagSite(site, module, tuple(paths[id(module)]))
        elif not has_own_forward(module):  # which is said already
            reason = "it has a flag `inplace` that its forward does not read"
            skipped.append(Skipped(path, reason))


def _flag(module: nn.Module, path: str) -> Any:
    try:
        return getattr(module, "inplace", False)
    except Exception as error:
        raise ConversionError(
            f"the flag `inplace` of {path or 'the model itself'} ({type(module).__name__}) cannot "
            f"be read: {type(error).__name__}: {error}."
        ) from error


def _runs_torch_forward(cls: type, reach: Reach) -> bool:
    """Whether a class runs the forward of one of torch's classes that read the flag."""
    if inspect.getattr_static(cls, FORWARD, None) in _FLAGGED_FORWARDS:
        return True
    found = reach.classes.get(cls)
    if found is not None and not _FLAGGED_FORWARDS.isdisjoint(found.supers.values()):
        return True
    return any(
        value in _FLAGGED_FORWARDS
        for reached in reach.all()
        if reached.context.owner is cls
        for reference in reached.findings.references
        for value in reference.values
        if isinstance(value, FunctionType)
    )


def _file_of(cls: type) -> str:
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None) or cls.__module__
