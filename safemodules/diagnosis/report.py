"""From what a recorder has seen to sites, clashes and a diagnosis."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from safemodules.diagnosis.advice import Situation, advise
from safemodules.diagnosis.findings import Clash, ModuleEntry, SiteReport
from safemodules.mutation.frames import Line, Where
from safemodules.mutation.graph import Overwritten, Silent, find_overwritten
from safemodules.mutation.operations import (
    UNDECLARED,
    Operand,
    Operation,
    Write,
    state_tensors,
    storage_of,
)
from safemodules.mutation.recorder import Recorder
from safemodules.mutation.sites import Site, SiteKind

__all__ = [
    "Namer",
    "buffer_names",
    "clashes_of",
    "describe_operand",
    "module_entries",
    "site_reports",
    "warn_silent",
]

UNSEEN = Site("<unknown>", 0, "no Python line that was seen", "", "", SiteKind.METHOD)
# Operations that move running statistics, see NOTE [ Undeclared writes ].
_STATISTICS = frozenset(func.__name__ for func in UNDECLARED)
_AUGMENTED = re.compile(r"(?:\+|-|\*\*|\*|//|/|%|&|\||\^|>>|<<)=")
_AUGMENTED_NAMES = frozenset(
    "add_ sub_ mul_ div_ true_divide_ floor_divide_ remainder_ pow_ bitwise_and_ bitwise_or_ "
    "bitwise_xor_ bitwise_left_shift_ bitwise_right_shift_".split()
)


class Namer:
    """Names modules and sites of operations.

    Args:
        model: whose modules are named; without it, paths are counted from the outermost
            module that was called.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model
        self._paths: dict[int, tuple[nn.Module, dict[int, str]]] = {}
        self._sites: dict[tuple[int, int, str, int], Site] = {}

    def module(self, where: Where) -> str:
        """Dotted path of the module in which something ran; empty for the model itself."""
        module, root = where.module, self.model or where.root
        if module is None or root is None:
            return ""
        if id(root) not in self._paths:
            self._paths[id(root)] = root, {id(m): path for path, m in root.named_modules()}
        return self._paths[id(root)][1].get(id(module), type(module).__name__)

    def site(self, operation: Operation) -> Site:
        """Where an operation is written."""
        where = operation.where
        code, lineno = where.position
        key = (id(code), lineno, operation.name, id(where.module))
        if key not in self._sites:
            line = where.line
            kind = _kind(operation.name, line.source)
            self._sites[key] = Site(
                line.filename, line.lineno, line.source, self.module(where), operation.name, kind
            )
        return self._sites[key]


def _kind(name: str, source: str) -> SiteKind:
    if name == "__setitem__":
        return SiteKind.ITEM
    if not name.endswith("_") or name == "__set__":
        return SiteKind.OUT if "out=" in source else SiteKind.FUNCTION
    if _AUGMENTED.search(source) and (name.startswith("__i") or name in _AUGMENTED_NAMES):
        return SiteKind.AUGMENTED
    if f".{name}(" in source:
        return SiteKind.METHOD
    return SiteKind.FUNCTION_FLAG if "inplace" in source else SiteKind.MODULE_FLAG


def module_entries(model: nn.Module) -> tuple[ModuleEntry, ...]:
    """The modules of a model, parents first."""
    return tuple(ModuleEntry(path, type(m).__name__) for path, m in model.named_modules())


def buffer_names(models: Iterable[nn.Module]) -> dict[int, str]:
    """Names of buffers and other state that is no parameter, by storage."""
    found: dict[int, str] = {}
    for model in models:
        parameters = {id(p) for p in model.parameters()}
        for name, tensor in state_tensors(model):
            if id(tensor) not in parameters and storage_of(tensor):
                found[storage_of(tensor)] = name
    return found


def describe_operand(operand: Operand | None) -> str:
    """A tensor in words."""
    if operand is None:
        return "a tensor"
    return f"a {str(operand.dtype).removeprefix('torch.')} tensor of sizes {list(operand.shape)}"


def clashes_of(
    roots: Iterable[Any],
    recorder: Recorder,
    namer: Namer,
    buffers: Mapping[int, str],
    message: str = "",
) -> tuple[Clash, ...]:
    """Clashes that backward from some tensors would find, one per pair of lines.

    Args:
        roots: a loss, or outputs.
        recorder: what was recorded.
        namer: names the modules.
        buffers: names of buffers by storage.
        message: what torch said, if it has; clashes that it may be about come first.
    """
    unique: dict[Any, Clash] = {}
    found = find_overwritten(roots, recorder)
    found.sort(key=lambda each: (each.possible, not _is_about(each, message)))
    for each in found:
        clash = _clash(each, recorder, namer, buffers)
        unique.setdefault((clash.mutated_at, clash.saved_at, clash.tensor), clash)
    return tuple(unique.values())


def _is_about(found: Overwritten, message: str) -> bool:
    """Whether torch's message may be about this tensor: versions and sizes agree."""
    versions = f"is at version {found.found}; expected version {found.expected} "
    sizes = f"{list(found.operand.shape)}]," if found.operand is not None else ""
    return versions in message and sizes in message


def _clash(
    found: Overwritten, recorder: Recorder, namer: Namer, buffers: Mapping[int, str]
) -> Clash:
    sites = (namer.site(write.operation) for write in found.writes)
    mutations = tuple({(s.filename, s.lineno, s.module): s for s in reversed(list(sites))}.values())
    mutations = tuple(reversed(mutations))  # the first of several on one line
    cause, advice = advise(Situation(found, buffers, tuple(recorder.backwards)))
    operation = found.operation
    return Clash(
        mutated_at=mutations[0] if mutations else UNSEEN,
        saved_at=UNSEEN if operation is None else namer.site(operation),
        expected_version=found.expected,
        found_version=found.found,
        advice=advice,
        tensor=_what(found.operand, found.role, found.node, operation),
        mutations=mutations,
        possible=found.possible,
        silent=not found.checked,
        cause=cause.name,
        convertible=cause.convertible,
        mutated_called_at=_called_at(found.writes[0].operation if found.writes else None),
        saved_called_at=_called_at(operation),
    )


def _called_at(operation: Operation | None) -> Line | None:
    return None if operation is None else operation.where.called_at


def _what(operand: Operand | None, role: str, node: str, operation: Operation | None) -> str:
    name = node if operation is None else operation.name
    kept = f"the result of {name}" if role.startswith(("result", "out")) else f"{role} of {name}"
    return f"{describe_operand(operand)}, {kept}"


def warn_silent(found: Iterable[Silent], namer: Namer) -> tuple[str, ...]:
    """Warnings of overwrites that torch does not see, one per pair of lines."""
    warnings: dict[str, None] = {}
    for each in found:
        operation, write = each.operation, each.write
        saved, wrote = namer.site(operation), namer.site(write.operation)
        what = _what(each.operand, each.role, each.node, operation)
        lines = f"{what}, saved by {saved}, was overwritten at {wrote}"
        warnings[f"{lines}{_silent_advice(write.operation.name)}"] = None
    return tuple(warnings)


def _is_own_state(write: Write) -> bool:
    """Whether a batch norm moves its statistics or its counter: no site of the user's."""
    if write.operation.name in _STATISTICS:
        return True
    counter = getattr(write.operation.where.module, "num_batches_tracked", None)
    return isinstance(counter, Tensor) and storage_of(counter) == write.target.storage


def _silent_advice(name: str) -> str:
    if name in _STATISTICS:
        return (
            ": a forward in training mode moved the statistics that a graph of evaluation mode "
            "still reads, and torch does not notice: the gradient is wrong. Run the backward of "
            "the first before the second."
        )
    if name.startswith("_fused_"):
        return (
            " by a fused optimizer, which torch does not notice: the gradient is wrong. Move "
            "optimizer.step() after the last backward that uses the old weights."
        )
    return (
        " through .data, which torch does not notice: the gradient is wrong. Write to the "
        "tensor itself, under torch.no_grad(), after the backward."
    )


def site_reports(
    recorder: Recorder, clashes: Iterable[Clash], namer: Namer
) -> tuple[SiteReport, ...]:
    """Every line that wrote, clashes first."""
    guilty = {(s.filename, s.lineno) for clash in clashes for s in clash.mutations}
    calls: dict[Site, int] = {}
    sizes: dict[Site, int] = {}
    called: dict[Site, Line | None] = {}
    for writes in list(recorder.writes.values()):
        for write in writes:
            if _is_own_state(write):
                continue
            site = namer.site(write.operation)
            calls[site] = calls.get(site, 0) + 1
            size = write.target.shape.numel() * write.target.dtype.itemsize
            sizes[site] = sizes.get(site, 0) + size
            called.setdefault(site, write.operation.where.called_at)
    reports = []
    for site, count in calls.items():
        clash = (site.filename, site.lineno) in guilty
        reports.append(
            SiteReport(
                site,
                "clash" if clash else "harmless",
                count,
                sizes[site] if clash else 0,
                called[site],
            )
        )
    return tuple(sorted(reports, key=lambda report: report.verdict))
