"""What a model holds: modules to look into, flags, sites, and what is left as it is."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from safemodules.errors import ConversionError, ModuleTypeError
from safemodules.mutation.finder import FoundSite, Obstacle
from safemodules.mutation.internals import is_compiled_in_place, is_optimized
from safemodules.mutation.operators import INPLACE_MODULES
from safemodules.mutation.reach import Reach, ReachedClass, Skipped, explore
from safemodules.mutation.resolution import is_torch_class
from safemodules.mutation.sites import Site, SiteKind
from safemodules.mutation.source import SourceFile
from safemodules.rewriting.classes import generated_class, user_class

FORWARD = "forward"


@dataclass(eq=False)
class SourceSite:
    """A site in the source of one or more functions on the forward path.

    Attributes:
        site: where it is.
        found: what stands there.
        file: the file that holds it.
        class_name: the class that mangles private names there.
        obstacle: why it cannot be rewritten, if so.
    """

    site: Site
    found: FoundSite
    file: SourceFile
    class_name: str | None
    obstacle: Obstacle | None


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


AnySite = SourceSite | FlagSite


@dataclass(eq=False)
class Survey:
    """Everything that a conversion has to decide about."""

    model: nn.Module
    reach: Reach
    flags: list[FlagSite] = field(default_factory=list)
    sources: list[SourceSite] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)

    def sites(self) -> Iterator[AnySite]:
        """All sites: flags in the order of the modules, then source sites by file and line."""
        yield from self.flags
        yield from self.sources


def check_model(model: Any) -> None:
    """Refuse what is not a module, and what cannot be converted at all.

    Raises:
        ModuleTypeError: not an instance of ``torch.nn.Module``.
        ConversionError: a module is sharded, lazy or not initialised.
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
    if "_modules" not in model.__dict__:
        raise ModuleTypeError(
            f"{type(model).__name__} is not initialised: its __init__ must call super().__init__()."
        )
    for path, module in model.named_modules():
        where = path or "the model itself"
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            raise ConversionError(
                f"{where} is sharded by fully_shard, whose class must lie on top of ours. "
                "Convert the model first, then call fully_shard."
            )
        if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
            raise ConversionError(
                f"{where} is a lazy {type(module).__name__} whose parameters do not exist yet, "
                "and whose class changes at its first call. Run the model once, then convert it."
            )


def survey_model(model: nn.Module) -> Survey:
    """Look at every module of a model and at the functions that their forwards reach.

    Raises:
        ModuleTypeError, ConversionError: see :func:`check_model`.
        SourceError: the text of a reached function is not the text of what runs.
    """
    check_model(model)
    skipped: list[Skipped] = []
    modules = list(_visible_modules(model, "", skipped, set()))
    classes: dict[type, ReachedClass] = {}
    for path, module in modules:
        if FORWARD in module.__dict__:
            reason = "its forward was replaced on the instance, whose source is not looked at"
            skipped.append(Skipped(path, reason))
        elif generated_class(type(module)) is None:
            cls = user_class(module)
            classes.setdefault(cls, ReachedClass(cls, [])).instances.append((path, module))
    reach = explore(classes.values())
    survey = Survey(model, reach, skipped=[*skipped, *reach.skipped], modules=modules)
    survey.sources = _source_sites(reach)
    survey.flags = list(_flag_sites(model, modules, reach, survey.skipped))
    return survey


def _why_opaque(module: nn.Module) -> str | None:
    """Why a module and all that it holds cannot be looked into, if so."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(module).__mro__}
    if isinstance(module, torch.jit.ScriptModule):
        return "a ScriptModule: its code is compiled. Convert the model before scripting it"
    if is_optimized(module):
        return "compiled by torch.compile. Convert the model before compiling it"
    if isinstance(module, torch.fx.GraphModule):
        return "a GraphModule: its forward is generated from a graph. Convert before tracing"
    if "torch.nn.cpp.ModuleWrapper" in names:
        return "a C++ module: it has no Python source"
    if any(".quantized" in name and name.startswith("torch.") for name in names):
        return "quantized: it has no gradients to keep exact"
    return None


def _visible_modules(
    module: nn.Module, path: str, skipped: list[Skipped], seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    reason = _why_opaque(module)
    if reason is not None:
        skipped.append(Skipped(path, reason))
        return
    if is_compiled_in_place(module):
        skipped.append(Skipped(path, "compiled in place. Convert the model before compiling it"))
        return
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _visible_modules(child, f"{path}.{name}" if path else name, skipped, seen)


def _source_sites(reach: Reach) -> list[SourceSite]:
    """Sites of all reached functions; one that several classes run is listed once."""
    found: dict[int, SourceSite] = {}
    for reached in reach.all():
        if reached.source is None:
            continue
        file = reached.source.file
        for site in reached.findings.sites:
            known = found.get(site.key)
            if known is not None:
                known.obstacle = known.obstacle or site.obstacle
                continue
            line = file.line(site.lineno)
            where = Site(file.filename, site.lineno, line, reached.path, site.op, site.kind)
            name = reached.source.class_name
            found[site.key] = SourceSite(where, site, file, name, site.obstacle)
    return sorted(found.values(), key=_order)


def _order(site: SourceSite) -> tuple[str, int, int]:
    node = site.found.node
    return site.file.filename, node.lineno, node.col_offset


def _flag_sites(
    model: nn.Module, modules: list[tuple[str, nn.Module]], reach: Reach, skipped: list[Skipped]
) -> Iterator[FlagSite]:
    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    readers = {
        reached.context.owner
        for reached in reach.all()
        if "inplace" in reached.findings.attributes and reached.context.owner is not None
    }
    for path, module in modules:
        if getattr(module, "inplace", False) is not True:
            continue
        cls = user_class(module)
        known = any(base in INPLACE_MODULES for base in cls.__mro__)
        if not known and cls not in readers and not _reads_flag(cls, reach):
            if not is_torch_class(cls):
                reason = "it has a flag `inplace` that its forward does not read"
                skipped.append(Skipped(path, reason))
            continue
        name = f"{cls.__name__}(inplace=True)"
        site = Site(_file_of(cls), 0, name, path, _flag_op(cls), SiteKind.MODULE_FLAG)
        yield FlagSite(site, module, tuple(paths.get(id(module), [path])))


def _reads_flag(cls: type, reach: Reach) -> bool:
    """Whether a method of a converted class, which is not looked into again, reads the flag."""
    found = reach.classes.get(cls)
    if found is not None:
        return False
    forward = getattr(cls, FORWARD, None)
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    return "inplace" in names


def _file_of(cls: type) -> str:
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None) or cls.__module__


def _flag_op(cls: type) -> str:
    return f"{cls.__name__.lower()}_"

