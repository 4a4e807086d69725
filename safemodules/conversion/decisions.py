"""Which sites are swapped, and why."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from safemodules.conversion.regions import RegionSite
from safemodules.conversion.survey import FORWARD, AnySite, FlagSite, SourceSite, Survey
from safemodules.mutation.fresh_modules import (
    Freshness,
    Freshnesses,
    fresh_in_sequentials,
    is_sequential,
)
from safemodules.mutation.freshness import analyse
from safemodules.mutation.liveness.verdicts import Effect, SiteVerdict, find_verdicts
from safemodules.mutation.reach import Reached

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
FRESH = Decision("swap", "a fresh tensor that nothing else refers to")
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
    found = [
        (reached, analyse(reached)) for reached in survey.reach.all() if reached.source is not None
    ]
    levels = _site_levels(found)
    decisions: dict[AnySite, Decision] = {}
    for site in survey.sources:
        if site.obstacle is not None:
            decisions[site] = Decision("keep", str(site.obstacle))
            continue
        verdict = verdicts[site]
        level = levels.get(site.found.key, Freshness.SHARED)
        filled = level is Freshness.FILLED or verdict.filled
        if site.found.copies and filled and (level or verdict.effect is Effect.NEUTRAL):
            decisions[site] = FILLED
        else:
            decisions[site] = FRESH if level else _decision(verdict)
    evidence = _FlagEvidence(survey, found)
    for flag in survey.flags:
        fresh = evidence.fresh(flag)
        decisions[flag] = FRESH if fresh else _decision(verdicts[flag])
    return {site: decisions[site] for site in survey.sites()}


def _decision(verdict: SiteVerdict) -> Decision:
    """What is done by a verdict from source alone."""
    if verdict.effect is Effect.NEUTRAL:
        return Decision("swap", verdict.reason)
    if verdict.effect is Effect.LOAD_BEARING:
        return load_bearing(verdict.reason)
    if verdict.effect is Effect.UNREACHED:
        return Decision("keep", verdict.reason)
    return Decision("keep", f"{UNDECIDED}: {verdict.reason}; example_inputs may decide it")


def _site_levels(found: Iterable[tuple[Reached, Freshnesses]]) -> Mapping[int, Freshness]:
    """The least freshness of each site over all classes that run it."""
    levels: dict[int, Freshness] = {}
    for reached, known in found:
        for site in reached.findings.sites:
            level = known.sites.get(site.key, Freshness.SHARED)
            levels[site.key] = min(level, levels.get(site.key, level))
    return levels


class _FlagEvidence:
    """Whether a module with a set flag is, wherever the model holds it, given a fresh tensor."""

    def __init__(self, survey: Survey, found: list[tuple[Reached, Freshnesses]]) -> None:
        self.named = dict(survey.model.named_modules(remove_duplicate=False))
        self.in_sequence = fresh_in_sequentials(self.named.values())
        self.given: dict[int, bool] = {}
        self.called: set[int] = set()
        self.exposed: set[int] = set()
        self.owners = {reached.context.owner for reached, _ in found}
        for _, known in found:
            self.called |= known.called
            self.exposed |= known.exposed
            for key, fresh in known.flags.items():
                self.given[key] = self.given.get(key, True) and fresh

    def fresh(self, flag: FlagSite) -> bool:
        """Whether every path leads to a place where only fresh tensors are given."""
        if FORWARD in flag.module.__dict__:  # which may keep what it is given
            return False
        return id(flag.module) not in self.exposed and all(
            self._fresh_at(path, flag.module) for path in flag.paths
        )

    def _fresh_at(self, path: str, module: nn.Module) -> bool:
        if not path:
            return False  # the caller of the model may read its input afterwards
        parent_path = path.rpartition(".")[0]
        parent = self.named[parent_path]
        given = self.given.get(id(module))
        if is_sequential(parent):
            if not self._called_as_a_whole(parent_path, parent):
                return False
            return self.in_sequence.get(id(module), False) or given is True
        return given is True

    def _called_as_a_whole(self, path: str, module: nn.Module) -> bool:
        """Whether a Sequential is called, and not iterated or indexed, by what holds it."""
        if id(module) in self.exposed:
            return False
        if not path:
            return True
        parent_path = path.rpartition(".")[0]
        parent = self.named[parent_path]
        if is_sequential(parent):
            return self._called_as_a_whole(parent_path, parent)
        return id(module) in self.called


def decided_before(survey: Survey) -> dict[AnySite, Decision]:
    """Sites that an earlier conversion has swapped."""
    return {site: DONE for site in survey.sites() if site.done}
