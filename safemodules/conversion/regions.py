"""Regions that a conversion checkpoints: loop bodies, and calls of torch's own checkpoint."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from safemodules.mutation.reach import Reach, Reached
from safemodules.mutation.regions import FoundRegion, RegionKind, find_regions
from safemodules.mutation.source import SourceFile
from safemodules.rewriting.classes import rewriting_of
from safemodules.rewriting.region_edits import RegionEdits, key_of

__all__ = ["RegionSite", "find_region_sites"]


class Edited:
    """Something in the source of modules that a conversion edits."""

    file: SourceFile
    modules: dict[str, nn.Module]

    @property
    def span(self) -> tuple[int, int]:
        """Offsets of the edit in the file."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether an earlier conversion has edited it, for every module that runs it."""
        modules = {id(module): module for module in self.modules.values()}
        return bool(modules) and all(map(self.done_in, modules.values()))

    def done_in(self, module: nn.Module) -> bool:
        """Whether an earlier conversion of one module has edited it."""
        rewriting = rewriting_of(type(module))
        return rewriting is not None and rewriting.holds(self.file.filename, *self.span)


@dataclass(eq=False)
class RegionSite(Edited):
    """A region in the source of one or more functions on the forward path.

    Attributes:
        found: what stands there.
        file: the file that holds it.
        path: dotted path of the first module that runs it.
        runs: the functions that hold it, as each class runs them.
        modules: the modules that run it, by all their dotted paths.
    """

    found: FoundRegion
    file: SourceFile
    path: str
    runs: list[Reached] = field(default_factory=list)
    modules: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def kind(self) -> RegionKind:
        """What it looks like."""
        return self.found.kind

    @property
    def is_rerouted(self) -> bool:
        """Whether the user checkpoints it already."""
        return self.kind is RegionKind.REROUTED

    @property
    def key(self) -> tuple[str, int]:
        """File and number by which edited code names it."""
        return self.file.filename, key_of(self.file, self.found)

    @functools.cached_property
    def span(self) -> tuple[int, int]:
        """Offsets in the file."""
        edit = RegionEdits(self.file).edit(self.found)
        return edit.start, edit.end

    def __str__(self) -> str:
        lineno = self.found.lineno
        where = self.path or "the model itself"
        return f"{self.file.filename}:{lineno} `{self.file.line(lineno)}` ({self.kind} in {where})"


def find_region_sites(reach: Reach, paths: dict[int, list[str]]) -> list[RegionSite]:
    """Regions of all reached functions; where two overlap, the user's own comes first.

    Args:
        reach: the functions that a forward reaches.
        paths: all dotted paths of each module, by its identity.
    """
    sites = {
        key
        for reached in reach.all()
        for site in reached.findings.sites
        for key in (site.key, id(site.node))
    }
    found: dict[int, RegionSite] = {}
    for reached in reach.all():
        if reached.source is None:
            continue
        for region in find_regions(reached.source.node, reached.context, sites):
            known = found.get(region.key)
            if known is None:
                file = reached.source.file
                known = found[region.key] = RegionSite(region, file, reached.path)
            known.runs.append(reached)
            for module in reach.modules_running(reached):
                known.modules.update((path, module) for path in paths[id(module)])
    return _without_overlaps(found.values())


def _without_overlaps(regions: Iterable[RegionSite]) -> list[RegionSite]:
    kept: list[RegionSite] = []
    ordered = sorted(regions, key=lambda r: (not r.is_rerouted, r.file.filename, r.span))
    for region in ordered:
        start, end = region.span
        if not any(
            other.file is region.file
            and other.span[0] < end
            and start < other.span[1]
            and not (region.is_rerouted and other.is_rerouted)
            for other in kept
        ):
            kept.append(region)
    return sorted(kept, key=lambda r: (r.file.filename, r.span))
