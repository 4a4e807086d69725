"""Compare a converted model with what the same object did before, bit for bit.

The truth is the original's own run: nothing here uses the checks of the library under test.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from benchmarks.cases import Case, Mode
from benchmarks.converters import Converter, Sites
from benchmarks.digests import same_values
from benchmarks.runs import (
    BufferSnapshot,
    Record,
    first_line,
    parameters_digest,
    rng_digest,
    run,
)

GOOD = ("equal", "refused", "repeatable")
SHOWN_DIFFERENCES = 12


@dataclass(frozen=True)
class Outcome:
    """The row of one case.

    Attributes:
        case: Name of the case.
        status: ``equal``, ``refused``, ``mismatch``, ``crashed``, ``timeout`` or ``memory``;
            without a conversion ``repeatable`` or ``unstable``.
        detail: What was refused or raised, or what the original does that is worth knowing.
        differences: What is not equal, the first few.
        sites: In-place sites found and decided.
        convert_seconds: CPU seconds of the conversion.
        pass_seconds: CPU seconds of all measured runs, train and eval, before and after.
        parameters: Number of parameters.
        informative: Smallest share, over the modes, of parameters with a finite gradient
            that is not all zero.
        peak_mib: Largest resident memory of the process until then.
    """

    case: str
    status: str
    detail: str = ""
    differences: tuple[str, ...] = ()
    sites: Sites = field(default_factory=Sites)
    convert_seconds: float = 0.0
    pass_seconds: float = 0.0
    parameters: int = 0
    informative: float = 1.0
    peak_mib: float = 0.0


class Structure:
    """Names, objects, classes and plain attributes of a model, to be compared later."""

    def __init__(self, model: nn.Module) -> None:
        # Kept alive, so that no later object can get the identity of one of these.
        self._alive = [*model.modules(), *model.parameters(), *model.buffers()]
        self.modules = [(name, id(module)) for name, module in model.named_modules()]
        self.parameters = [(n, id(p)) for n, p in model.named_parameters(remove_duplicate=False)]
        self.buffers = [(n, id(b)) for n, b in model.named_buffers(remove_duplicate=False)]
        self.keys = list(model.state_dict())
        self.classes = [(name, type(module)) for name, module in model.named_modules()]
        self.names = [
            (name, type(module).__module__, type(module).__qualname__)
            for name, module in model.named_modules()
        ]
        self.attributes = [
            (name, {key: _plain(value) for key, value in vars(module).items()})
            for name, module in model.named_modules()
        ]

    def differences(self, other: Structure, *, converted: bool) -> list[str]:
        """What differs in another state of the model.

        Args:
            other: The later state.
            converted: Whether the later state is a converted one, where classes may be
                generated subclasses of the same name, and flags are set.
        """
        kinds = ["modules", "parameters", "buffers", "keys", "names"]
        if not converted:
            kinds += ["classes", "attributes"]
        return [
            f"structure: {kind}{_first_change(getattr(self, kind), getattr(other, kind))}"
            for kind in kinds
            if getattr(self, kind) != getattr(other, kind)
        ]


def _plain(value: Any) -> Any:
    """The value of a flag or number; for anything else that it is there."""
    return value if isinstance(value, (bool, int, float, str, type(None))) else "..."


def _first_change(before: list[Any], after: list[Any]) -> str:
    for one, two in zip(before, after, strict=False):
        if one != two:
            return f": {one} became {two}"
    return f": {len(before)} became {len(after)}"


def compare(case: Case, converter: Converter, *, with_inputs: bool = True) -> Outcome:
    """Run, convert, run again, revert, run again; say what differs.

    Args:
        case: The model and its inputs.
        converter: What converts it.
        with_inputs: Whether the converter is given example inputs.
    """
    model = case.build()
    state = BufferSnapshot(model)
    parameters = parameters_digest(model)
    before = _run_modes(model, case, state)
    structure = Structure(model)  # after the runs: some models cache numbers in attributes

    rng = rng_digest()
    call = case.call("train" if "train" in case.modes else "eval") if with_inputs else None
    refused = ""
    started = time.process_time()
    try:
        converted = converter.convert(model, call)
    except converter.refusals as error:
        refused = f"{type(error).__name__}: {first_line(error)}"
        converted = model
    seconds = time.process_time() - started

    differences = ["convert: another object is returned"] if converted is not model else []
    differences += structure.differences(Structure(model), converted=not refused)
    differences += _traces(model, state, rng)
    sites = Sites() if refused else converter.sites(model)
    after = _run_modes(model, case, state)
    notes: list[str] = []
    for mode in case.modes:
        found, note = compare_records(before[mode], after[mode])
        differences += [f"{mode} {difference}" for difference in found]
        notes += [f"{mode}: {note}"] if note else []
    if not refused:
        differences += _compare_reverted(model, case, converter, state, structure, before)
    if parameters_digest(model) != parameters:
        differences.append("parameters: values differ")

    status = "mismatch" if differences else "refused" if refused else "equal"
    return Outcome(
        case=case.name,
        status=status,
        detail=refused or "; ".join(notes),
        differences=_shorten(differences),
        sites=sites,
        convert_seconds=seconds,
        pass_seconds=sum(r.seconds for r in [*before.values(), *after.values()]),
        parameters=sum(p.numel() for p in model.parameters()),
        informative=min(r.informative for r in before.values()),
    )


def check_repeatable(case: Case) -> Outcome:
    """Run the original twice in each mode and compare it with itself."""
    model = case.build()
    state = BufferSnapshot(model)
    structure = Structure(model)
    parameters = parameters_digest(model)
    first = _run_modes(model, case, state)
    second = _run_modes(model, case, state)
    differences = structure.differences(Structure(model), converted=True)
    notes: list[str] = []
    for mode in case.modes:
        found, _ = compare_records(first[mode], second[mode])
        differences += [f"{mode} {difference}" for difference in found]
        error = first[mode].entries.get("backward:")
        notes += [f"{mode}: the original's backward raises {error}"] if error else []
    if parameters_digest(model) != parameters:
        differences.append("parameters: values differ")
    return Outcome(
        case=case.name,
        status="unstable" if differences else "repeatable",
        detail="; ".join(notes),
        differences=_shorten(differences),
        pass_seconds=sum(r.seconds for r in [*first.values(), *second.values()]),
        parameters=sum(p.numel() for p in model.parameters()),
        informative=min(r.informative for r in first.values()),
    )


def _run_modes(model: nn.Module, case: Case, state: BufferSnapshot) -> dict[Mode, Record]:
    records: dict[Mode, Record] = {}
    for mode in case.modes:
        records[mode] = run(model, case, mode, backward=mode in case.gradients)
        state.restore()
    return records


def _traces(model: nn.Module, state: BufferSnapshot, rng: str) -> list[str]:
    """What the conversion left behind beside the conversion."""
    found = [f"convert: buffer {name} changed" for name in state.changed()]
    found += [f"convert: {n} is in another mode" for n in state.modes_changed()]
    if rng_digest() != rng:
        found.append("convert: a random generator was moved")
    if any(parameter.grad is not None for parameter in model.parameters()):
        found.append("convert: gradients are left")
    return found


def compare_records(before: Record, after: Record) -> tuple[list[str], str]:
    """The entries in which two runs differ, and a note on the original's backward.

    Where the original's backward raised and the other's did not, gradients have no
    counterpart and are left out.
    """
    one, two = dict(before.entries), dict(after.entries)
    note = ""
    if "backward:" in one and "backward:" not in two:
        note = f"the original's backward raises {one['backward:']}"
        for entries in (one, two):
            for key in [k for k in entries if k.split(":")[0].endswith(("backward", "gradient"))]:
                del entries[key]
    found = []
    for key in [*one, *(key for key in two if key not in one)]:
        first, second = one.get(key, "absent"), two.get(key, "absent")
        if first == second:
            continue
        kind = "strides of " if same_values(first, second) else ""
        found.append(f"{kind}{key}: {first} became {second}{_distance(key, before, after)}")
    return found, note


def _distance(key: str, before: Record, after: Record) -> str:
    one, two = before.values.get(key), after.values.get(key)
    if one is None or two is None or one.shape != two.shape or not one.numel():
        return ""
    return f" (largest difference {(one - two).abs().max().item():.3g})"


def _compare_reverted(
    model: nn.Module,
    case: Case,
    converter: Converter,
    state: BufferSnapshot,
    structure: Structure,
    before: dict[Mode, Record],
) -> list[str]:
    """Revert; classes, flags and the forward must be those of the beginning."""
    reverted = converter.revert(model)
    found = ["revert: another object is returned"] if reverted is not model else []
    found += [f"revert: {d}" for d in structure.differences(Structure(model), converted=False)]
    for mode in case.modes:
        graph = mode in case.gradients
        again = run(model, case, mode, backward=False, graph=graph)
        state.restore()
        for key, value in before[mode].entries.items():
            kind = key.split(":")[0]
            if kind not in ("output", "buffer", "input") or key.endswith("requires grad"):
                continue
            if again.entries.get(key) != value:
                found.append(f"revert: {mode} {key} differs")
    return found


def _shorten(differences: list[str]) -> tuple[str, ...]:
    """The first few, and how many of which kind there are."""
    if len(differences) <= SHOWN_DIFFERENCES:
        return tuple(differences)
    kinds = Counter(difference.split(":")[0] for difference in differences)
    counted = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    return (f"{len(differences)} differences ({counted})", *differences[:SHOWN_DIFFERENCES])
