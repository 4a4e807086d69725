"""Findings as text. Data in, lines out: nothing is computed here."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from safemodules.memory.text import size_text
from safemodules.mutation.sites import location

if TYPE_CHECKING:  # the data renders itself by these functions
    from safemodules.diagnosis.findings import Clash, Diagnosis, SiteReport
    from safemodules.mutation.frames import Line
    from safemodules.mutation.sites import Site

__all__ = ["clash_text", "diagnosis_text"]

_LABEL = 15


def terminal_width() -> int:
    """Columns of the terminal, 100 where there is none."""
    return max(60, shutil.get_terminal_size((100, 24)).columns)


def clash_text(clash: Clash, width: int | None = None) -> str:
    """A clash, with both lines and what to do."""
    return "\n".join(_clash_lines(clash, width or terminal_width()))


def diagnosis_text(diagnosis: Diagnosis, width: int | None = None) -> str:
    """A whole diagnosis: clashes first, then every site."""
    width = width or terminal_width()
    lines: list[str] = []
    if diagnosis.error:
        lines += _wrapped(f"the forward raised {diagnosis.error}", width)
    if not diagnosis.clashes and not diagnosis.error:
        lines.append("no clash: backward finds every saved tensor as it was saved")
    for number, clash in enumerate(diagnosis.clashes):
        lines += ([""] if number or diagnosis.error else []) + _clash_lines(clash, width)
    for warning in diagnosis.warnings:
        lines += ["", *_wrapped(f"warning: {warning}", width)]
    if diagnosis.reports:
        lines += ["", f"{_count(len(diagnosis.reports), 'in-place site')} ran:"]
    for report in diagnosis.reports:
        lines += _report_lines(report, width)
    return "\n".join(lines)


def _clash_lines(clash: Clash, width: int) -> list[str]:
    kind = "possible clash" if clash.possible else "silent clash" if clash.silent else "clash"
    lines = _wrapped(f"{kind}: {clash.tensor}", width)
    lines += _site_lines("saved by", clash.saved_at, clash.saved_called_at, width)
    lines += _site_lines("overwritten at", clash.mutated_at, clash.mutated_called_at, width)
    for site in clash.mutations[1:]:
        lines += _site_lines("and at", site, None, width)
    if clash.found_version != clash.expected_version:
        versions = f"version {clash.expected_version} was saved, {clash.found_version} is found"
        lines.append(f"  {versions}")
    if clash.possible:
        lines += _indented("a custom Function saved it: its own backward decides.", width)
    return lines + _indented(clash.advice, width)


def _site_lines(label: str, site: Site, called: Line | None, width: int) -> list[str]:
    if not site.lineno:
        return [f"  {label:{_LABEL}}{site.source}"]
    lines = [f"  {label:{_LABEL}}{location(site.filename, site.lineno)}{_module(site)}"]
    lines.append(f"  {'':{_LABEL}}    {_clipped(site.source, width - _LABEL - 6)}")
    if called is not None:
        at = location(called.filename, called.lineno)
        lines.append(f"  {'called from':{_LABEL}}{at}")
        lines.append(f"  {'':{_LABEL}}    {_clipped(called.source, width - _LABEL - 6)}")
    return lines


def _report_lines(report: SiteReport, width: int) -> list[str]:
    site = report.site
    cost = f", {size_text(report.bytes, digits=1)} to swap" if report.bytes else ""
    head = f"  {report.verdict:9} {report.calls}x {site.op}{cost}"
    at = f"{location(site.filename, site.lineno)}{_module(site)}"
    lines = [f"{head}  {at}", f"  {'':9} {_clipped(site.source, width - 12)}"]
    if report.called_at is not None:
        call = location(report.called_at.filename, report.called_at.lineno)
        lines.append(f"  {'':9} called from {call}")
    return lines


def _module(site: Site) -> str:
    return f" in {site.module}" if site.module else ""


def _clipped(source: str, width: int) -> str:
    return source if len(source) <= width else f"{source[: width - 1]}…"


def _wrapped(text: str, width: int) -> list[str]:
    lines: Iterable[str] = text.splitlines() or [""]
    return [part for line in lines for part in textwrap.wrap(line, width) or [""]]


def _indented(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
