"""What can be decided about a region."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from safemodules.conversion.regions import RegionSite

__all__ = [
    "COPIED",
    "DIFFERS",
    "IN_LOOP",
    "NOT_RUN",
    "OFF",
    "REROUTED",
    "RegionDecision",
    "RegionVerdict",
    "decide_regions_without_inputs",
    "overwritten_later",
]

RegionVerdict = Literal["checkpoint", "plain"]


@dataclass(frozen=True)
class RegionDecision:
    """What is done with a region, and why.

    Attributes:
        verdict: ``"checkpoint"`` or ``"plain"``.
        reason: why.
        calls: how often it ran in a forward; 0 if nothing was run.
        saved_bytes: bytes that are not kept from forward to backward any more.
        seconds: seconds that a step takes longer.
    """

    verdict: RegionVerdict
    reason: str
    calls: int = 0
    saved_bytes: int = 0
    seconds: float = 0.0


REROUTED = RegionDecision("checkpoint", "exact and non-reentrant in place of torch's own")
IN_LOOP = RegionDecision("checkpoint", "runs in a loop, which keeps every iteration alive")
OFF = RegionDecision("plain", "loops are not checkpointed unless asked for (checkpoint='loops')")
NOT_RUN = RegionDecision("checkpoint", "runs in a loop that the example inputs do not reach")
COPIED = RegionDecision("plain", "overwrites what backward needs, so that it runs on a copy")
DIFFERS = RegionDecision("plain", "checkpointed, the model does not compute the same")


def overwritten_later(line: str) -> RegionDecision:
    """A region that could not be recomputed, on some path at least."""
    return RegionDecision("plain", f"what it reads may be overwritten before backward: {line}")


def decide_regions_without_inputs(
    regions: Sequence[RegionSite], overwritten: Mapping[RegionSite, str], *, loops: bool
) -> dict[RegionSite, RegionDecision]:
    """Decide by what the source tells.

    Args:
        regions: the model's regions.
        overwritten: those of which something that they read may be overwritten, and where.
        loops: checkpoint loop bodies.
    """
    decided = {
        region: REROUTED if region.is_rerouted else IN_LOOP if loops else OFF for region in regions
    }
    if loops:
        decided.update({r: overwritten_later(overwritten[r]) for r in regions if r in overwritten})
    return decided
