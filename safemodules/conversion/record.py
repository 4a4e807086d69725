"""A plan as plain data: what is shown, printed, and kept with a converted model."""

import html
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from safemodules.conversion.decisions import Decision, Verdict
from safemodules.conversion.survey import AnySite, FlagSite
from safemodules.mutation.reach import Skipped
from safemodules.mutation.sites import Site
from safemodules.verification import Equivalence

NOTHING_FOUND = "no in-place site was found in this model; nothing to convert"


@dataclass(frozen=True)
class PlannedSite:
    """A site and what is decided about it.

    Attributes:
        site: where it is.
        decision: ``"swap"`` for out of place, ``"keep"`` for as it is.
        reason: why.
        modules: all dotted paths of a flagged module; that of the first one that runs a site
            in source.
    """

    site: Site
    decision: Verdict
    reason: str
    modules: tuple[str, ...]


@dataclass(frozen=True)
class ConversionRecord:
    """A conversion as plain data.

    Attributes:
        sites: every site with its decision.
        skipped: what is left as it is, and why.
        equivalence: what was compared; ``None`` if nothing was run.
        diff: the edits of the source as a unified diff.
    """

    sites: tuple[PlannedSite, ...]
    skipped: tuple[Skipped, ...]
    equivalence: Equivalence | None
    diff: str

    def joined(self, other: "ConversionRecord | None") -> "ConversionRecord":
        """This record after another one of the same model."""
        if other is None:
            return self
        return ConversionRecord(
            other.sites + self.sites,
            self.skipped,
            self.equivalence,
            other.diff + self.diff,
        )

    def table(self) -> str:
        """The record as text: a line per site, what is skipped, what was compared."""
        if not self.sites:
            lines = [NOTHING_FOUND]
        else:
            counts = Counter(site.decision for site in self.sites)
            lines = [f"{len(self.sites)} in-place sites: {counts['swap']} swapped for "
                     f"out-of-place ones, {counts['keep']} kept as they are"]  # fmt: skip
            lines += _columns([self._row(site) for site in self.sites])
        if self.skipped:
            lines += ["not looked into:", *(f"  {skipped}" for skipped in self.skipped)]
        if self.equivalence is not None:
            lines += ["compared with the original on the example inputs:"]
            lines += [f"  {line}" for line in str(self.equivalence).splitlines()]
        return "\n".join(lines)

    @staticmethod
    def _row(planned: PlannedSite) -> tuple[str, ...]:
        site = planned.site
        place = f"{_short(site.filename)}:{site.lineno}" if site.lineno else ""
        module = site.module or "(the model itself)"
        return (planned.decision, module, place, str(site.kind), site.source, planned.reason)

    def to_json(self) -> str:
        """The record as a JSON object."""
        data = {
            "sites": [
                {**asdict(planned), "site": {**asdict(planned.site), "kind": str(planned.site.kind)}}
                for planned in self.sites
            ],
            "skipped": [asdict(skipped) for skipped in self.skipped],
            "equivalence": None if self.equivalence is None else json.loads(self.equivalence.to_json()),
            "diff": self.diff,
        }
        return json.dumps(data, indent=2)

    def to_html(self) -> str:
        """The record as an HTML table, for notebooks."""
        head = ("decision", "module", "place", "kind", "source", "reason")
        rows = [head, *(self._row(site) for site in self.sites)]
        cells = "".join(
            f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in row)}</tr>"
            for tag, row in (("th" if row is head else "td", row) for row in rows)
        )
        rest = self.table().splitlines()[len(self.sites) + 1 :]
        below = f"<pre>{html.escape(chr(10).join(rest))}</pre>" if rest else ""
        return f"<table>{cells}</table>{below}"


def _short(filename: str) -> str:
    return "/".join(filename.replace("\\", "/").split("/")[-2:])


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    widths[4] = min(widths[4], 48)
    return [
        "  " + "  ".join(_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def planned_sites(decisions: Mapping[AnySite, Decision]) -> tuple[PlannedSite, ...]:
    """Sites and decisions as plain data."""
    return tuple(
        PlannedSite(
            site.site,
            decision.verdict,
            decision.reason,
            site.paths if isinstance(site, FlagSite) else (site.site.module,),
        )
        for site, decision in decisions.items()
    )
