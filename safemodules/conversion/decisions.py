"""Which sites are swapped, and why."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from safemodules.conversion.regions import RegionSite
from safemodules.conversion.survey import AnySite, SourceSite, Survey
from safemodules.mutation.liveness.verdicts import Effect, SiteVerdict, find_verdicts

Verdict = Literal["swap", "keep"]


@dataclass(frozen=True)
class Decision:
    """What is done with a site, and why."""

    verdict: Verdict
    reason: str


CLASH = Decision("swap", "overwrites what backward needs")
NO_CLASH = Decision("keep", "overwrites nothing that backward needs")
DONE = Decision("swap", "converted already")
COMPARED = Decision("swap", "the model computes the same out of place")
UNDECIDED = "not decided"  # how the reason of a site begins that was not
HARMLESS = Decision("keep", "no backward needs the old value, and a swap would copy the tensor")
ROUNDED = Decision("keep", "out of place its gradient is summed in another order: last bits differ")
CHANGED = Decision("keep", "out of place, the model computes something else")
FILLED = Decision("keep", "fills a new tensor, whose old values no operator has kept")


def load_bearing(reader: str) -> Decision:
    """A site whose old tensor is read afterwards, so that the overwrite is part of the function."""
    return Decision("keep", f"load-bearing: {reader}")


def intended(reader: str) -> Decision:
    """A load-bearing site that is swapped all the same, on the user's word."""
    return Decision("swap", f"changes the function: {reader}")


def decide_with_inputs(
    survey: Survey, clashing: Collection[AnySite], *, only_clashes: bool
) -> dict[AnySite, Decision]:
    """Decide every site, to be confirmed by comparing the models.

    Args:
        survey: the model's sites.
        clashing: the sites that overwrite what backward needs.
        only_clashes: swap no others.
    """
    decisions: dict[AnySite, Decision] = {}
    for site in survey.sites():
        if isinstance(site, SourceSite) and site.obstacle is not None:
            decisions[site] = Decision("keep", str(site.obstacle))
        elif site in clashing:
            decisions[site] = CLASH
        elif only_clashes:
            decisions[site] = NO_CLASH
        elif isinstance(site, SourceSite) and site.found.copies:
            decisions[site] = HARMLESS
        else:
            decisions[site] = COMPARED
    return decisions


@dataclass(frozen=True)
class SourceVerdicts:
    """What the source alone says.

    Attributes:
        sites: of each site that could be swapped.
        overwritten: regions of which something that they read may be overwritten before they
            are recomputed, and where.
    """

    sites: Mapping[AnySite, SiteVerdict]
    overwritten: Mapping[RegionSite, str]


def verdicts_from_source(survey: Survey) -> SourceVerdicts:
    """Follow the forward through its source, without running anything."""
    flags = [flag.module for flag in survey.flags]
    regions = [region for region in survey.regions if not region.is_rerouted]
    found = find_verdicts(survey.model, survey.reach, flags, [region.found for region in regions])
    sites = {
        site: found.sites[site.found.key if isinstance(site, SourceSite) else id(site.module)]
        for site in survey.sites()
        if not (isinstance(site, SourceSite) and site.obstacle is not None)
    }
    keys = {region.found.key: region for region in regions}
    return SourceVerdicts(sites, {keys[key]: line for key, line in found.overwritten.items()})


def not_exercised(decision: Decision) -> Decision:
    """A site that the example inputs do not reach: what the source says of it holds."""
    return Decision(decision.verdict, f"not exercised by the example inputs; {decision.reason}")


def read_elsewhere(verdict: SiteVerdict) -> Decision:
    """A site whose old tensor is read on a path that the example inputs do not take."""
    return Decision(
        "keep", f"load-bearing on another path than that of the inputs: {verdict.reason}"
    )


def decide_without_inputs(
    survey: Survey, verdicts: Mapping[AnySite, SiteVerdict]
) -> dict[AnySite, Decision]:
    """Decide the sites that the source alone decides; the rest is kept.

    Args:
        survey: the model's sites.
        verdicts: see :func:`verdicts_from_source`.
    """
    decisions: dict[AnySite, Decision] = {}
    for site in survey.sites():
        if isinstance(site, SourceSite) and site.obstacle is not None:
            decisions[site] = Decision("keep", str(site.obstacle))
            continue
        verdict = verdicts[site]
        neutral = verdict.effect is Effect.NEUTRAL
        copies = isinstance(site, SourceSite) and site.found.copies
        decisions[site] = FILLED if copies and verdict.filled and neutral else _decision(verdict)
    return decisions


def _decision(verdict: SiteVerdict) -> Decision:
    """What is done by a verdict from source alone."""
    if verdict.effect is Effect.NEUTRAL:
        return Decision("swap", verdict.reason)
    if verdict.effect is Effect.LOAD_BEARING:
        return load_bearing(verdict.reason)
    if verdict.effect in (Effect.UNREACHED, Effect.NO_TENSOR):
        return Decision("keep", verdict.reason)
    return Decision("keep", f"{UNDECIDED}: {verdict.reason}; example_inputs may decide it")


def decided_before(survey: Survey) -> dict[AnySite, Decision]:
    """Sites that an earlier conversion has swapped."""
    return {site: DONE for site in survey.sites() if site.done}
