"""From what a recorder has seen to sites, clashes and a diagnosis."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from safemodules.diagnosis.advice import advise
from safemodules.diagnosis.findings import Clash, SiteReport
from safemodules.mutation.frames import Where
from safemodules.mutation.graph import Overwritten, find_overwritten
from safemodules.mutation.recorder import Operation, Recorder, state_tensors, storage_of
from safemodules.mutation.sites import Site, SiteKind

_AUGMENTED = re.compile(r"[^=!<>]=|(\+|-|\*|/|%|&|\||\^|>>|<<)=")
_UNSEEN = Site("<unknown>", 0, "not written by Python code", "", "", SiteKind.METHOD)


def module_names(model: nn.Module | None) -> Callable[[Where], str]:
    """Dotted path of the module in which an operation ran.

    Without a model the path is counted from the outermost module that was called.
    """
    tables: dict[int, dict[int, str]] = {}

    def name(where: Where) -> str:
        root = where.root if model is None else model
        if root is None or where.module is None:
            return ""
        if id(root) not in tables:
            tables[id(root)] = {id(m): path for path, m in root.named_modules()}
        return tables[id(root)].get(id(where.module), type(where.module).__name__)

    return name


def site_of(operation: Operation, names: Callable[[Where], str]) -> Site:
    """Where an operation is written."""
    line = operation.where.line
    kind = _kind(operation.name, line.source)
    return Site(line.filename, line.lineno, line.source, names(operation.where), operation.name, kind)


def _kind(name: str, source: str) -> SiteKind:
    if name == "__setitem__":
        return SiteKind.ITEM
    if "out=" in source and not name.endswith("_"):
        return SiteKind.OUT
    if re.search(r"(\+|-|\*|/|%|&|\||\^|>>|<<)=", source):
        return SiteKind.AUGMENTED
    if f".{name}(" in source:
        return SiteKind.METHOD
    return SiteKind.FUNCTION_FLAG if "inplace" in source else SiteKind.MODULE_FLAG


def buffer_names(models: Iterable[nn.Module]) -> dict[int, str]:
    """Names of buffers and other state that is no parameter, by storage."""
    found: dict[int, str] = {}
    for model in models:
        parameters = {id(p) for p in model.parameters()}
        for name, tensor in state_tensors(model):
            if id(tensor) not in parameters and storage_of(tensor):
                found[storage_of(tensor)] = name
    return found


def clashes_of(
    roots: Iterable[Tensor],
    recorder: Recorder,
    names: Callable[[Where], str],
    buffers: Mapping[int, str],
) -> tuple[Clash, ...]:
    """Clashes that backward from some tensors would find, one per pair of lines."""
    unique: dict[Any, Clash] = {}
    for found in find_overwritten(roots, recorder.writes):
        clash = _clash(found, names, buffers)
        unique.setdefault((clash.mutated_at, clash.saved_at, clash.tensor), clash)
    return tuple(unique.values())


def _clash(
    found: Overwritten, names: Callable[[Where], str], buffers: Mapping[int, str]
) -> Clash:
    mutations = tuple(dict.fromkeys(site_of(w.operation, names) for w in found.writes))
    saved = site_of(found.operation, names) if found.operation is not None else _UNSEEN
    what = "a tensor"
    if found.operand is not None:
        dtype = str(found.operand.dtype).removeprefix("torch.")
        what = f"a {dtype} tensor of sizes {list(found.operand.shape)}"
    name = found.operation.name if found.operation is not None else found.node
    return Clash(
        mutated_at=mutations[0] if mutations else _UNSEEN,
        saved_at=saved,
        expected_version=found.expected,
        found_version=found.found,
        advice=advise(found, buffers),
        tensor=f"{what}, kept as {found.role!r} by {name}",
        mutations=mutations,
        possible=found.possible,
    )


def site_reports(
    recorder: Recorder, clashes: Iterable[Clash], names: Callable[[Where], str]
) -> tuple[SiteReport, ...]:
    """Every line that wrote, clashes first."""
    guilty = {(s.filename, s.lineno) for clash in clashes for s in clash.mutations}
    calls: dict[Site, int] = {}
    sizes: dict[Site, int] = {}
    for writes in list(recorder.writes.values()):
        for write in writes:
            site = site_of(write.operation, names)
            calls[site] = calls.get(site, 0) + 1
            size = write.target.shape.numel() * write.target.dtype.itemsize
            sizes[site] = sizes.get(site, 0) + size
    reports = [
        SiteReport(
            site,
            "clash" if (site.filename, site.lineno) in guilty else "harmless",
            count,
            sizes[site] if (site.filename, site.lineno) in guilty else 0,
        )
        for site, count in calls.items()
    ]
    return tuple(sorted(reports, key=lambda report: report.verdict))
