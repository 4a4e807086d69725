"""A plan as plain data: what is shown, printed, and kept with a converted model."""

import html
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from safemodules.conversion.decisions import UNDECIDED, Decision, Verdict
from safemodules.conversion.planned_regions import PlannedRegion
from safemodules.conversion.survey import AnySite
from safemodules.memory.plans import CheckpointPlan
from safemodules.mutation.reach import Skipped
from safemodules.mutation.sites import Site, joined_path
from safemodules.verification import Equivalence

COMPILED = (
    "under torch.compile: left to the compiler's own checkpoint where modules write no state that "
    "they read, plain inside of the graph elsewhere"
)
NO_SITE = "no in-place site was found in this model"
NOTHING_FOUND = f"{NO_SITE}; nothing to convert"
REVERTED = "was swapped, and is reverted"

_HEAD = ("decision", "module", "place", "kind", "source", "reason")
_SOURCE_WIDTH = 48  # characters of a source line that a table shows
_WARNED = 10  # parts that a warning lists


@dataclass(frozen=True)
class PlannedSite:
    """A site and what is decided about it.

    Attributes:
        site: where it is.
        decision: ``"swap"`` for out of place, ``"keep"`` for as it is.
        reason: why.
        modules: all dotted paths of the modules that run it.
    """

    site: Site
    decision: Verdict
    reason: str
    modules: tuple[str, ...]

    def below(self, path: str) -> "PlannedSite":
        """The same site of a model that holds this one at a path."""
        site = replace(self.site, module=joined_path(path, self.site.module))
        return replace(
            self, site=site, modules=tuple(joined_path(path, name) for name in self.modules)
        )

    def among(self, converted: Collection[str]) -> "PlannedSite":
        """The same site, after parts of the model were reverted."""
        if self.decision == "keep" or not self.modules:
            return self
        modules = tuple(name for name in self.modules if name in converted)
        if not modules:
            return replace(self, decision="keep", reason=REVERTED)
        return replace(self, modules=modules)


@dataclass(frozen=True)
class ConversionRecord:
    """A conversion as plain data.

    Attributes:
        sites: every site with its decision.
        skipped: what is left as it is, and why.
        equivalence: what was compared; ``None`` if nothing was run.
        diff: the edits of the source as a unified diff.
        copies: lines whose operation saves a copy, since a kept site overwrites the tensor.
        regions: loop bodies and calls of torch's checkpoint, with their decisions.
        memory: what the step forgets to fit a budget.
    """

    sites: tuple[PlannedSite, ...]
    skipped: tuple[Skipped, ...]
    equivalence: Equivalence | None
    diff: str
    copies: tuple[str, ...] = ()
    regions: tuple[PlannedRegion, ...] = ()
    memory: CheckpointPlan | None = None

    def below(self, path: str) -> "ConversionRecord":
        """The record of a model that holds this one at a path; nothing is said of the rest."""
        skipped = tuple(Skipped(joined_path(path, each.name), each.reason) for each in self.skipped)
        sites = tuple(site.below(path) for site in self.sites)
        regions = tuple(region.below(path) for region in self.regions)
        return replace(self, sites=sites, regions=regions, skipped=skipped)

    def among(self, converted: Collection[str]) -> "ConversionRecord":
        """The record, after all but some modules were reverted."""
        sites = tuple(site.among(converted) for site in self.sites)
        regions = tuple(region.among(converted) for region in self.regions)
        return replace(self, sites=sites, regions=regions)

    def warning(self) -> str | None:
        """What the user must know when the conversion is made: nothing found, or parts skipped."""
        lines = [] if self.sites or self.regions or self.memory else [NOTHING_FOUND]
        open_sites = [site for site in self.sites if site.reason.startswith(UNDECIDED)]
        lines += _listed(
            "these sites are left in place; example_inputs would decide them:",
            [f"{each.site}: {each.reason}" for each in open_sites],
            f"... and {len(open_sites) - _WARNED} more, see the plan",
        )
        lines += _listed(
            "these parts of the model are left as they are:",
            list(map(str, self.skipped)),
            "...; plan_conversion(model).skipped lists all",
        )
        return "\n".join(lines) or None

    def table(self) -> str:
        """The record as text: a line per site, what is skipped, what was compared."""
        return "\n".join((*self._sites(), *self._rest()))

    def _sites(self) -> Iterable[str]:
        if not self.sites:
            return [NO_SITE if self.regions else NOTHING_FOUND]
        counts = Counter(site.decision for site in self.sites)
        head = (
            f"{len(self.sites)} in-place sites: {counts['swap']} swapped for "
            f"out-of-place ones, {counts['keep']} kept as they are"
        )
        return [head, *_columns([_row(site) for site in self.sites])]

    def _rest(self) -> Iterable[str]:
        lines: list[str] = []
        if self.regions:
            lines += ["checkpointed regions (checkpoint=False leaves loops as they are):"]
            lines += [f"  {region}" for region in self.regions]
            if any(region.decision == "checkpoint" for region in self.regions):
                lines += [f"  {COMPILED}"]
        if self.memory is not None:
            lines += ["memory budget:", *(f"  {line}" for line in str(self.memory).splitlines())]
        if self.skipped:
            lines += ["left as they are:", *(f"  {skipped}" for skipped in self.skipped)]
        if self.copies:
            lines += ["copied for backward:", *(f"  {copy}" for copy in self.copies)]
        if self.equivalence is not None:
            lines += ["compared with the original on the example inputs:"]
            lines += [f"  {line}" for line in str(self.equivalence).splitlines()]
        return lines

    def to_json(self) -> str:
        """The record as a JSON object."""
        sites = [
            {**asdict(planned), "site": {**asdict(planned.site), "kind": str(planned.site.kind)}}
            for planned in self.sites
        ]
        equivalence = None if self.equivalence is None else json.loads(self.equivalence.to_json())
        data = {
            "sites": sites,
            "skipped": [asdict(skipped) for skipped in self.skipped],
            "equivalence": equivalence,
            "copies": list(self.copies),
            "regions": [region.to_data() for region in self.regions],
            "memory": None if self.memory is None else json.loads(self.memory.to_json()),
            "diff": self.diff,
        }
        return json.dumps(data, indent=2)

    def to_html(self) -> str:
        """The record as an HTML table, for notebooks."""
        if self.sites:
            rows = [_html_row("th", _HEAD), *(_html_row("td", _row(site)) for site in self.sites)]
            shown = f"<table>{''.join(rows)}</table>"
        else:
            shown = f"<p>{html.escape(next(iter(self._sites())))}</p>"
        rest = "\n".join(self._rest())
        return f"{shown}<pre>{html.escape(rest)}</pre>" if rest else shown


def _listed(head: str, entries: Sequence[str], more: str) -> list[str]:
    """A list for a warning: some entries below a head, and what to say if there are more."""
    if not entries:
        return []
    shown = [*entries[:_WARNED], *([more] if len(entries) > _WARNED else [])]
    return [head, *(f"  {entry}" for entry in shown)]


def joined(records: Sequence[ConversionRecord]) -> ConversionRecord:
    """The record of a model whose parts were converted one by one."""
    if len(records) == 1:
        return records[0]
    return ConversionRecord(
        tuple(site for record in records for site in record.sites),
        tuple(skipped for record in records for skipped in record.skipped),
        None,
        "".join(dict.fromkeys(record.diff for record in records)),
        tuple(dict.fromkeys(copy for record in records for copy in record.copies)),
        tuple(region for record in records for region in record.regions),
    )


def _row(planned: PlannedSite) -> tuple[str, ...]:
    site = planned.site
    place = f"{_short(site.filename)}:{site.lineno}" if site.lineno else ""
    module = site.module or "(the model itself)"
    if len(planned.modules) > 1:
        module += f" (+{len(planned.modules) - 1})"
    return (planned.decision, module, place, str(site.kind), site.source, planned.reason)


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _short(filename: str) -> str:
    return "/".join(filename.replace("\\", "/").split("/")[-2:])


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    source = _HEAD.index("source")
    widths[source] = min(widths[source], _SOURCE_WIDTH)
    lines = []
    for row in rows:
        cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def planned_sites(decisions: Mapping[AnySite, Decision]) -> tuple[PlannedSite, ...]:
    """Sites and decisions as plain data."""
    return tuple(
        PlannedSite(site.site, decision.verdict, decision.reason, site.paths)
        for site, decision in decisions.items()
    )
