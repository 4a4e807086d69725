"""Findings and speed of ``safemodules lint`` on the sources of three libraries.

Fifty findings are drawn by a fixed seed; ``benchmarks/data/lint_judged.json`` holds what a
reader of the code has judged of each: whether what the message claims is so.

Example:
    The table in ``benchmarks/results/lint.md``::

        python -m benchmarks.lint

Exit status: 1 if a drawn finding has not been judged, or a file could not be read.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import DATA
from benchmarks.report import RESULTS, command_line, table, version_list
from safemodules.linting.baseline import fingerprint
from safemodules.linting.codes import CODES
from safemodules.linting.findings import Finding
from safemodules.linting.run import lint_paths

LIBRARIES = ("torchvision", "timm", "transformers")
JUDGED = DATA / "lint_judged.json"
SEED = 0
DRAWN = 50


@dataclass(frozen=True)
class Measured:
    """One library: its findings, and what finding them took."""

    library: str
    findings: tuple[Finding, ...]
    files: int
    lines: int
    seconds: float
    cpu: float


def folder_of(library: str) -> Path:
    """Where a library is installed."""
    spec = importlib.util.find_spec(library)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def measure(library: str, jobs: int) -> Measured:
    """Lint one library."""
    before, started = os.times(), time.perf_counter()
    result = lint_paths([str(folder_of(library))], jobs=jobs)
    after, seconds = os.times(), time.perf_counter() - started
    cpu = sum(after[:4]) - sum(before[:4])  # this process and its children, user and system
    return Measured(library, result.findings, result.files, result.lines, seconds, cpu)


def key_of(found: Finding) -> str:
    """Name of a finding that does not depend on where the libraries are installed."""
    for library in LIBRARIES:
        folder = folder_of(library)
        if Path(found.path).is_relative_to(folder):
            path = Path(found.path).relative_to(folder.parent).as_posix()
            return f"{path}:{found.line}:{found.column} {found.code} {fingerprint(found)}"
    raise AssertionError(found.path)


def draw(measured: Sequence[Measured]) -> list[Finding]:
    """Fifty findings, each as likely as any other."""
    findings = sorted((f for m in measured for f in m.findings), key=key_of)
    return random.Random(SEED).sample(findings, min(DRAWN, len(findings)))


def counts(measured: Sequence[Measured]) -> list[str]:
    """Findings per code and library."""
    rows = []
    for code, row in CODES.items():
        numbers = [sum(f.code == code for f in m.findings) for m in measured]
        if any(numbers):
            rows.append([code, row.name, *map(str, numbers), str(sum(numbers))])
    totals = [len(m.findings) for m in measured]
    rows.append(["all", "", *map(str, totals), str(sum(totals))])
    return table(["Code", "Name", *(m.library for m in measured), "All"], rows)


def severities(measured: Sequence[Measured]) -> list[str]:
    """Findings per severity and verdict."""
    found = Counter((str(f.severity), str(f.verdict)) for m in measured for f in m.findings)
    rows = [[severity, verdict or "no in-place site", str(count)]
            for (severity, verdict), count in sorted(found.items())]  # fmt: skip
    return table(["Severity", "Verdict", "Findings"], rows)


def speed(measured: Sequence[Measured]) -> list[str]:
    """Lines a second."""
    rows = [
        [
            m.library,
            f"{m.files:,}",
            f"{m.lines:,}",
            f"{m.seconds:.1f} s",
            f"{m.lines / m.seconds:,.0f}",
            f"{m.cpu:.1f} s",
            f"{m.lines / m.cpu:,.0f}",
        ]
        for m in measured
    ]
    head = ["Library", "Files", "Lines", "Time", "Lines a second", "CPU time", "Lines a CPU second"]
    return table(head, rows)


def _others(measured: Sequence[Measured]) -> float:
    """Share of the cores that lint did not get while it ran."""
    available = sum(m.seconds for m in measured) * (os.cpu_count() or 1)
    return max(0.0, 1 - sum(m.cpu for m in measured) / available)


def judgement(drawn: Sequence[Finding], judged: dict[str, str]) -> list[str]:
    """The drawn findings with what was judged of them."""
    right = sum(judged.get(key_of(found), "").startswith("right") for found in drawn)
    wrong = sum(judged.get(key_of(found), "").startswith("wrong") for found in drawn)
    open_ = len(drawn) - right - wrong
    rows = [
        [key_of(f).rpartition(" ")[0].rpartition(" ")[0], f.code, f"`{_cell(f.source)}`",
         _cell(f.message), judged.get(key_of(f), "not judged")]
        for f in sorted(drawn, key=key_of)
    ]  # fmt: skip
    return [
        f"{right} of {right + wrong} are right: precision "
        f"{right / max(1, right + wrong):.0%}." + (f" {open_} not judged." if open_ else ""),
        "",
        *table(["Place", "Code", "Line", "Claim", "Judged"], rows),
    ]


def _cell(text: str) -> str:
    text = text.replace("|", "\\|")
    return text if len(text) <= 110 else f"{text[:107]}..."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS / "lint.md")
    parser.add_argument(
        "--recorded",
        type=Path,
        help="keep what was measured in this file, or take it from there: to judge, then print",
    )
    parser.add_argument("--show", action="store_true", help="print the drawn findings' code")
    options = parser.parse_args(argv)
    if options.recorded is not None and options.recorded.exists():
        measured = [Measured(*m) for m in pickle.loads(options.recorded.read_bytes())]
    else:
        measured = [measure(library, options.jobs) for library in LIBRARIES]
        if options.recorded is not None:
            options.recorded.write_bytes(pickle.dumps([tuple(vars(m).values()) for m in measured]))
    drawn = draw(measured)
    judged = json.loads(JUDGED.read_text()) if JUDGED.exists() else {}
    if options.show:
        _show(drawn, judged)
    unread = [f for m in measured for f in m.findings if f.code == "SM001"]
    command = command_line("lint", argv)
    text = "\n".join([
        "# Findings of lint on three libraries",
        "",
        *counts(measured),
        "",
        "What the alias analysis proves of them from source alone:",
        "",
        *severities(measured),
        "",
        "## Speed",
        "",
        f"With {options.jobs} processes on {os.cpu_count()} cores, of which other work took "
        f"{_others(measured):.0%}; CPU time is that of all processes.",
        "",
        *speed(measured),
        "",
        "## Precision",
        "",
        f"{len(drawn)} findings drawn by a fixed seed, each judged by reading the code around it: "
        "right if what the message claims is so.",
        "",
        *judgement(drawn, judged),
        "",
        f"`{command}` with {version_list()}",
        "",
    ])  # fmt: skip
    options.output.write_text(text, encoding="utf-8")
    print("\n".join(text.splitlines()[:60]))
    return 1 if unread or any(key_of(found) not in judged for found in drawn) else 0


def _show(drawn: Sequence[Finding], judged: dict[str, str]) -> None:
    """Print the code around each drawn finding, for whoever judges it."""
    for found in sorted(drawn, key=key_of):
        if key_of(found) in judged:
            continue
        print(f"\n#### {key_of(found)}\n     {found.severity} {found.message}")
        lines = Path(found.path).read_text(encoding="utf-8").splitlines()
        for number in range(max(1, found.line - 9), min(len(lines), found.line + 3) + 1):
            print(f"{'>' if number == found.line else ' '} {number:5} {lines[number - 1]}")


if __name__ == "__main__":
    sys.exit(main())
