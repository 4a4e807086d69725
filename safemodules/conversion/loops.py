"""Which regions are checkpointed, and why: measured on example inputs, then compared."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import torch
from torch import nn

from safemodules.conversion.bisection import find_guilty
from safemodules.conversion.region_decisions import (
    COPIED,
    DIFFERS,
    NOT_RUN,
    RegionDecision,
    decide_regions_without_inputs,
    overwritten_later,
)
from safemodules.conversion.regions import RegionSite
from safemodules.conversion.trial import Outcome, Trial
from safemodules.errors import ConversionError
from safemodules.rewriting.checkpoints import metered
from safemodules.state import preserved, seed_everything
from safemodules.state.saved import SavedBytes
from safemodules.trees import clone_inputs, flatten_tensors
from safemodules.verification import Equivalence
from safemodules.verification.observation import set_mode

__all__ = ["decide_regions"]

# A loop that saves a smaller share of what the step keeps is not worth its recomputation.
WORTH: Final = 0.05


@dataclass
class _Measured:
    """What one region has used in one forward.

    Attributes:
        calls: bytes that each of its calls has saved for backward.
        seconds: seconds in all.
        inner: regions that ran inside of it.
    """

    calls: list[int] = field(default_factory=list)
    seconds: float = 0.0
    inner: set[tuple[str, int]] = field(default_factory=set)

    @property
    def saved(self) -> int:
        """Bytes that are not kept if it is checkpointed; one call's are, in the recomputation."""
        return sum(self.calls) - max(self.calls)


class _LoopMeter:
    """Runs regions and counts what they save for backward."""

    def __init__(self, model: nn.Module) -> None:
        self.regions: dict[tuple[str, int], _Measured] = defaultdict(_Measured)
        self.total = 0
        self._memory = SavedBytes((*model.parameters(), *model.buffers()))
        self._open: list[tuple[str, int]] = []
        self._bytes: list[int] = []

    def counting(self) -> AbstractContextManager[Any]:
        """Count what is saved."""
        return self._memory.counted(self._add)

    def _add(self, size: int) -> None:
        self.total += size
        self._bytes = [count + size for count in self._bytes]

    def __call__(self, filename: str, key: int, call: Callable[..., Any], call_args: Any) -> Any:
        """Run one call of a region."""
        name = _original(filename), key
        for outer in self._open:
            self.regions[outer].inner.add(name)
        # What a region is given stays alive for its recomputation.
        self._memory.meet(tensor for _, tensor in flatten_tensors(call_args))
        args, kwargs = call_args
        self._open.append(name)
        self._bytes.append(0)
        started = perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            measured = self.regions[name]
            measured.seconds += perf_counter() - started
            measured.calls.append(self._bytes.pop())
            self._open.pop()


def _original(filename: str) -> str:
    """The file that an edited file was made of: ``<safemodules 3 of net.py>``."""
    return filename.partition(" of ")[2].removesuffix(">")


def decide_regions(
    trial: Trial, outcome: Outcome, chosen: Mapping[str, nn.Module], *, loops: bool
) -> tuple[dict[RegionSite, RegionDecision], Outcome]:
    """Decide by measuring the regions, and by comparing the checkpointed model.

    Args:
        trial: the original's behaviour on example inputs.
        outcome: what is done with the in-place sites.
        chosen: modules that are to be checkpointed whenever they are called, by path.
        loops: checkpoint loop bodies.

    Returns:
        Decisions, and the outcome with the comparison of the checkpointed model.

    Raises:
        ConversionError: a region that the user checkpoints, or a module that is to be, does not
            compute the same.
    """
    modules = tuple(chosen.values())
    copied = _copied(trial.survey.regions, outcome)
    regions = [region for region in trial.survey.regions if region not in copied]
    decided = decide_regions_without_inputs(regions, {}, loops=loops)
    if loops and any(not region.is_rerouted for region in regions):
        decided.update(_measured(trial, outcome, regions))
    decided.update(dict.fromkeys(copied, COPIED))
    kept = [region for region, decision in decided.items() if decision.verdict == "checkpoint"]
    if not kept and not chosen:
        return decided, outcome
    plain = trial.observe_plain(outcome)

    def compare(
        regions: Sequence[RegionSite], modules: Sequence[nn.Module]
    ) -> tuple[Equivalence, bool]:
        return trial.compare_checkpointed(outcome, plain, regions, modules)

    equivalence, equivalent = compare(kept, modules)
    if not equivalent:
        _check_chosen(chosen, lambda modules: compare((), modules)[1])
        guilty = find_guilty(kept, lambda some: not compare(some, ())[1])
        _refuse([region for region in guilty if region.is_rerouted], equivalence)
        decided.update(dict.fromkeys(guilty, DIFFERS))
        kept = [region for region in kept if region not in guilty]
        equivalence, _ = compare(kept, modules)
    return decided, Outcome(outcome.decisions, outcome.copies, equivalence)


def _check_chosen(
    chosen: Mapping[str, nn.Module], equivalent: Callable[[Sequence[nn.Module]], bool]
) -> None:
    """Refuse modules that do not compute the same when they are checkpointed."""
    guilty = find_guilty(list(chosen), lambda some: not equivalent([chosen[p] for p in some]))
    if guilty:
        raise ConversionError(
            f"checkpointed, {', '.join(map(repr, guilty))} would not compute what the model "
            f"computes without. Leave it out of checkpoint=. The model is unchanged."
        )


def _refuse(regions: Sequence[RegionSite], equivalence: Equivalence) -> None:
    """Refuse regions that the user checkpoints, and that do not compute the same so."""
    if not regions:
        return
    lines = "\n".join(f"  {region}" for region in regions)
    reason = next(iter(equivalence.differences), None) or equivalence
    raise ConversionError(
        f"checkpointed, these regions do not compute what they compute without:\n{lines}\n"
        f"{reason}\nTake the checkpoint off there, or change what it runs. The model is unchanged."
    )


def _copied(regions: Sequence[RegionSite], outcome: Outcome) -> list[RegionSite]:
    """Regions that are calls around which a copy is made for backward."""
    around = {
        (copy.file.filename, edit.start, edit.end) for copy in outcome.copies for edit in copy.edits
    }
    return [region for region in regions if (region.file.filename, *region.span) in around]


def _measured(
    trial: Trial, outcome: Outcome, regions: Sequence[RegionSite]
) -> dict[RegionSite, RegionDecision]:
    meter = _measure(trial, outcome, regions)
    loops = [region for region in regions if not region.is_rerouted]
    worth = {
        name
        for name, measured in meter.regions.items()
        if measured.saved >= WORTH * meter.total and measured.saved > 0
    }
    return {region: _decision(trial, region, meter, worth) for region in loops}


def _decision(
    trial: Trial, region: RegionSite, meter: _LoopMeter, worth: set[tuple[str, int]]
) -> RegionDecision:
    measured = meter.regions.get(region.key)
    if measured is None:
        line = trial.source.overwritten.get(region)
        return NOT_RUN if line is None else overwritten_later(line)
    share = measured.saved / meter.total if meter.total else 0.0
    found: dict[str, Any] = {
        "calls": len(measured.calls),
        "saved_bytes": measured.saved,
        "seconds": measured.seconds,
    }
    if measured.inner & worth:
        reason = "the loops of the modules that it runs are checkpointed"
        return RegionDecision("plain", reason, calls=len(measured.calls))
    if region.key not in worth:
        reason = f"would save {share:.1%} of what the step keeps, less than {WORTH:.0%}"
        return RegionDecision("plain", reason, **found)
    return RegionDecision("checkpoint", f"saves {share:.1%} of what the step keeps", **found)


def _measure(trial: Trial, outcome: Outcome, regions: Sequence[RegionSite]) -> _LoopMeter:
    """Run the model once, its regions through a meter."""
    model = trial.survey.model
    meter = _LoopMeter(model)
    mode = trial.modes[0]
    with trial.with_regions(outcome, regions), preserved(model), metered(meter):
        set_mode(model, mode)
        seed_everything(0)
        handed, _ = clone_inputs(trial.call, requires_grad=False)
        with torch.enable_grad(), meter.counting():
            model(*handed.inputs, **handed.kwargs)
    return meter
