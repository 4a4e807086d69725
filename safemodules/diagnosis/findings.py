"""Findings of a diagnosis as plain data, and their text."""

import html
import json
import textwrap
from dataclasses import asdict, dataclass
from typing import Literal

from safemodules.mutation.sites import Site

SiteVerdict = Literal["harmless", "clash"]


@dataclass(frozen=True)
class Clash:
    """A tensor that backward needs was overwritten.

    Attributes:
        mutated_at: the first line that overwrote it.
        saved_at: the line whose operation had saved it.
        expected_version: version of the tensor when it was saved.
        found_version: its version when backward looks, or would look.
        advice: what to do.
        tensor: what was overwritten: dtype, sizes, and what it was to the saving operation.
        mutations: all lines that overwrote it, in the order of time.
        possible: whether backward asks for the tensor is up to a custom Function.
    """

    mutated_at: Site
    saved_at: Site
    expected_version: int
    found_version: int
    advice: str
    tensor: str = ""
    mutations: tuple[Site, ...] = ()
    possible: bool = False

    def __str__(self) -> str:
        lines = [
            f"{'possible clash' if self.possible else 'clash'}: {self.tensor}",
            f"  saved by       {self.saved_at}",
            f"  overwritten at {self.mutated_at}",
            *(f"  and at         {site}" for site in self.mutations[1:]),
            f"  version {self.expected_version} was saved, version {self.found_version} is found",
            *textwrap.wrap(self.advice, 92, initial_indent="  ", subsequent_indent="  "),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class SiteReport:
    """What one site did in the run.

    Attributes:
        site: the line that overwrites.
        verdict: ``"clash"`` if it overwrote what backward needs, else ``"harmless"``.
        calls: how often it wrote.
        bytes: bytes that an out-of-place operation would keep for backward, in all calls;
            0 for a harmless site, whose old value nothing keeps.
    """

    site: Site
    verdict: SiteVerdict
    calls: int
    bytes: int


@dataclass(frozen=True)
class Diagnosis:
    """What was found in one run of a model.

    Attributes:
        clashes: overwritten tensors that backward needs.
        reports: every site that wrote, clashes first.
        warnings: what torch's own check does not see, and what may go wrong.
        error: the exception that the forward raised, as text; the report goes up to there.
    """

    clashes: tuple[Clash, ...] = ()
    reports: tuple[SiteReport, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site that wrote, clashes first."""
        return tuple(report.site for report in self.reports)

    def to_json(self) -> str:
        """The diagnosis as a JSON object."""
        return json.dumps(asdict(self), indent=2, default=str)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        lines = [f"the forward raised {self.error}"] if self.error else []
        if not self.clashes:
            lines.append("no clash: backward finds every saved tensor as it was saved")
        lines += [str(clash) for clash in self.clashes]
        lines += [f"warning: {text}" for text in self.warnings]
        if self.reports:
            lines.append(f"{len(self.reports)} in-place sites ran:")
        for report in self.reports:
            cost = f", {_size(report.bytes)} to swap" if report.bytes else ""
            lines.append(f"  {report.verdict:8}  {report.calls}x{cost}  {report.site}")
        return lines

    def _repr_html_(self) -> str:
        return to_html(self)


def to_html(diagnosis: Diagnosis) -> str:
    """The diagnosis as HTML: clashes, warnings, and a table of sites."""
    clashes = "".join(f"<pre class='clash'>{html.escape(str(c))}</pre>" for c in diagnosis.clashes)
    head = "<tr><th>verdict</th><th>calls</th><th>bytes</th><th>module</th><th>line</th></tr>"
    rows = "".join(
        f"<tr class='{r.verdict}'><td>{r.verdict}</td><td>{r.calls}</td><td>{r.bytes}</td>"
        f"<td>{html.escape(r.site.module)}</td><td><code>{html.escape(r.site.source)}</code><br>"
        f"{html.escape(r.site.filename)}:{r.site.lineno}</td></tr>"
        for r in diagnosis.reports
    )
    notes = "".join(f"<p>{html.escape(text)}</p>" for text in diagnosis.warnings)
    found = f"{len(diagnosis.clashes)} clashes, {len(diagnosis.reports)} in-place sites"
    return f"<h2>{found}</h2>{clashes}{notes}<table>{head}{rows}</table>"


def _size(count: int) -> str:
    units = ("B", "KiB", "MiB", "GiB")
    size, unit = float(count), units[0]
    for unit in units:
        if size < 1024 or unit == units[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
