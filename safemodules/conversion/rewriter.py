"""From the sites that are to be swapped to the edited code of a conversion."""

import ast
import inspect
from collections.abc import Collection, Iterable
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from safemodules.blocks.checkpointed_seq import CheckpointedSeq
from safemodules.conversion.regions import RegionSite
from safemodules.conversion.savers import SaverCopy
from safemodules.conversion.survey import AnySite, SourceSite, Survey
from safemodules.mutation.found import Reference
from safemodules.mutation.internals import user_class_of
from safemodules.mutation.reach import (
    Reach,
    Reached,
    own_name,
    underlying_functions,
    wrapped_functions,
)
from safemodules.mutation.source import SourceFile
from safemodules.rewriting.classes import CALL, Rewriting, class_name
from safemodules.rewriting.edits import Edit
from safemodules.rewriting.functions import EditedFile
from safemodules.rewriting.region_edits import RegionEdits
from safemodules.rewriting.templates import Templates


def make_rewriting(
    survey: Survey,
    swapped: Collection[AnySite],
    copies: Collection[SaverCopy] = (),
    regions: Collection[RegionSite] = (),
    chosen: Collection[nn.Module] = (),
    *,
    forgets: bool = False,
) -> Rewriting | None:
    """Edit, compile and collect what a set of swapped sites needs.

    Args:
        survey: what the model holds.
        swapped: the sites that become out of place; none has an obstacle.
        copies: copies for what backward has saved.
        regions: regions that are checkpointed.
        chosen: modules that are.
        forgets: the model forgets results of its forward.

    Returns:
        The edited code, or ``None`` if nothing is edited.
    """
    if not (swapped or copies or regions or chosen or forgets):
        return None
    called = (*chosen, survey.model) if forgets else chosen
    reach = survey.reach
    sources = [site for site in swapped if isinstance(site, SourceSite)]
    changed = _changed_functions(reach, sources, copies, regions)
    edits: dict[str, set[Edit]] = {}
    files: dict[str, SourceFile] = {}
    modules: dict[str, str] = {}
    owners = {copied.owner for copied in copies}
    for site in sources:
        files[site.file.filename] = site.file
        made = Templates(site.file, owned=site in owners).edit(site.found, site.class_name)
        edits.setdefault(site.file.filename, set()).update(made)
    for copied in (copied for copied in copies if copied.edits):
        files[copied.file.filename] = copied.file
        edits.setdefault(copied.file.filename, set()).update(copied.edits)
    for region in regions:
        files[region.file.filename] = region.file
        made = [RegionEdits(region.file).edit(region.found)]
        edits.setdefault(region.file.filename, set()).update(made)
    for reached in reach.all():
        if reached.source is None:
            continue
        name = reached.source.file.filename
        home = reached.function.__globals__.get("__name__", reached.function.__module__)
        modules.setdefault(name, home)
        made = list(_call_edits(reach, reached, changed))
        if made:
            files[name] = reached.source.file
            edits.setdefault(name, set()).update(made)
    return Rewriting.new(
        files={name: EditedFile.make(files[name], made) for name, made in edits.items()},
        modules=modules,
        methods=_with_calls(survey.model, called, _changed_methods(reach, changed)),
        functions=tuple(
            function
            for function, runs in reach.functions.items()
            if function in changed and any(run.context.owner not in reach.classes for run in runs)
        ),
    )


def _changed_functions(
    reach: Reach,
    swapped: Collection[SourceSite],
    copies: Collection[SaverCopy],
    regions: Collection[RegionSite],
) -> set[FunctionType]:
    """Functions with an edit, and those that must call another function because of one."""
    keys = {site.found.key for site in swapped}
    changed = {
        run.function for run in reach.all() for site in run.findings.sites if site.key in keys
    }
    changed |= {run.function for run in reach.all() if any(c.is_in(run) for c in copies)}
    changed |= {run.function for region in regions for run in region.runs}
    grown = -1
    while grown != len(changed):
        grown = len(changed)
        for run in reach.all():
            if run.function in changed:
                continue
            if any(_leads_to(reach, run, ref, changed) for ref in run.findings.references):
                changed.add(run.function)
            elif run.source is None:
                if any(inner in changed for _, inner in wrapped_functions(run.function)):
                    changed.add(run.function)
    return changed


def _targets(reach: Reach, run: Reached, reference: Reference) -> Iterable[FunctionType]:
    """Functions that a reference calls other than through the class of a module of the model."""
    name = own_name(reference, run.context)
    if name is not None:
        found = reach.classes.get(run.context.owner) if run.context.owner else None
        if found is not None and name in found.methods:
            return
        if found is None and run.context.owner is not None:
            yield from underlying_functions(vars(run.context.owner).get(name))
    for value in reference.values:
        if not _reached_by_class(reach, value):
            yield from underlying_functions(value)
    if not reference.values and isinstance(reference.node, ast.Attribute):
        for other in reach.all():  # an object found elsewhere may have such a method
            owner = other.context.owner
            if owner is not None and owner not in reach.classes:
                found_there = vars(owner).get(reference.node.attr)
                if isinstance(found_there, FunctionType) and found_there is other.function:
                    yield found_there


def _reached_by_class(reach: Reach, value: Any) -> bool:
    return (
        isinstance(value, MethodType)
        and isinstance(value.__self__, nn.Module)
        and user_class_of(type(value.__self__)) in reach.classes
    )


def _leads_to(reach: Reach, run: Reached, reference: Reference, changed: set[FunctionType]) -> bool:
    if reference.is_super:
        found = reach.classes.get(run.context.owner) if run.context.owner else None
        name = reference.node.attr  # type: ignore[attr-defined]
        return found is not None and found.supers.get((run.function, name)) in changed
    return any(function in changed for function in _targets(reach, run, reference))


def _call_edits(reach: Reach, run: Reached, changed: set[FunctionType]) -> Iterable[Edit]:
    assert run.source is not None
    templates = Templates(run.source.file)
    for reference in run.findings.references:
        if not _leads_to(reach, run, reference, changed):
            continue
        if reference.is_super:
            assert isinstance(reference.node, ast.Attribute)
            if run.context.self_name is not None:
                yield templates.super_call(reference.node, run.context.self_name)
        else:
            yield templates.twin(reference.node)


def _with_calls(
    model: nn.Module, chosen: Collection[nn.Module], methods: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The call of the model itself is where inference is told from training; and of others."""
    found = dict(methods)
    # A plain sequence is wrapped instead.
    classes = {user_class_of(type(module)) for module in chosen} - {nn.Sequential, CheckpointedSeq}
    entry = user_class_of(type(model))
    if inspect.getattr_static(entry, CALL) is vars(nn.Module)[CALL]:
        classes.add(entry)
    for cls in classes:
        known = found.get(class_name(cls), ())
        found[class_name(cls)] = tuple(dict.fromkeys((*known, CALL)))
    return found


def _changed_methods(reach: Reach, changed: set[FunctionType]) -> dict[str, tuple[str, ...]]:
    methods: dict[str, tuple[str, ...]] = {}
    for cls, found in reach.classes.items():
        names = {
            name
            for name, attribute in found.methods.items()
            for function in underlying_functions(attribute)
            if function in changed
        }
        if names:
            known = methods.get(class_name(cls), ())
            methods[class_name(cls)] = tuple(sorted({*known, *names}))
    return methods
