"""One JSON document and one Markdown page of what several programs have found."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.charts import bar_chart
from benchmarks.pages import PageRatio

FORMAT = 1


@dataclass(frozen=True)
class Run:
    """One program's run.

    Attributes:
        program: Its name.
        title: What it measures.
        command: The command that repeats it.
        exact: Whether its exit status is a verdict that does not depend on time.
        status: Its exit status, ``None`` where the page of an earlier run was read.
        seconds: How long it took, 0 where the page of an earlier run was read.
        machine: Where it ran.
        versions: Of Python and libraries.
        ratios: What its page says.
    """

    program: str
    title: str
    command: str
    exact: bool
    status: int | None
    seconds: float
    machine: str
    versions: dict[str, str]
    ratios: tuple[PageRatio, ...]

    @property
    def verdict(self) -> str:
        """The exit status in words."""
        if self.status is None:
            return "an earlier run"
        return "0" if self.status == 0 else f"**{self.status}**"


def machine() -> str:
    """The machine in words: processor, cores that this process may use, memory, system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        size = f", {memory:.0f} GiB"
    except (ValueError, OSError, AttributeError):
        size = ""
    return f"{_processor()}, {cores} cores{size}, {platform.system()} {platform.machine()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def read(path: Path) -> list[Run]:
    """The runs of a document.

    Raises:
        ValueError: The file is of another format.
    """
    data = json.loads(path.read_text("utf-8"))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{path} is no summary of format {FORMAT}; `--output` writes one")
    return [_run(row) for row in data["runs"]]


def read_note(path: Path) -> str:
    """The remark of a document, empty if it is not there or has none."""
    return str(json.loads(path.read_text("utf-8"))["note"]) if path.exists() else ""


def _run(row: dict[str, Any]) -> Run:
    return Run(**{**row, "ratios": tuple(PageRatio(**ratio) for ratio in row["ratios"])})


def write(runs: Sequence[Run], path: Path, title: str, note: str = "") -> None:
    """Write the document, the page beside it, and a chart for each program with ratios.

    Args:
        runs: The runs.
        path: The document; the page has the same name and ends in ``.md``.
        title: The heading of the page.
        note: A remark for the page.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(run) for run in runs]
    data = {"format": FORMAT, "title": title, "note": note, "runs": rows}
    path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    charts = {}
    for run in runs:
        if run.ratios:
            charts[run.program] = f"{path.stem}_{run.program}.svg"
            chart = bar_chart(run.title, run.ratios)
            path.with_name(charts[run.program]).write_text(chart, "utf-8")
    path.with_suffix(".md").write_text(markdown(runs, title, charts, note), "utf-8")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _distinct(values: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value)) or "not recorded"


def _version_text(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in run.versions.items())


def markdown(runs: Sequence[Run], title: str, charts: dict[str, str], note: str = "") -> str:
    """The page.

    Args:
        runs: The runs.
        title: The heading.
        charts: File of the chart, by program.
        note: A remark.
    """
    lines = [
        f"# {title}",
        "",
        f"Machine: {_distinct([run.machine for run in runs])}.",
        "",
        f"Versions: {_distinct([_version_text(run) for run in runs])}.",
        "",
        "Ratios, of which less is better: time or bytes over those of what each program compares",
        "with. The spread is half the distance between the quartiles of single rounds; what a",
        "ratio means stands on the program's own page. In bold: what safemodules itself costs; of",
        "these `--check` finds regressions.",
        *(["", note] if note else []),
        "",
        *_table(
            ("program", "what it does", "command", "exit status", "seconds"),
            [
                (
                    run.program,
                    run.title,
                    f"`{run.command}`" if run.command else "not recorded",
                    run.verdict,
                    f"{run.seconds:.0f}" if run.seconds else "",
                )
                for run in runs
            ],
        ),
    ]
    for run in runs:
        if not run.ratios:
            continue
        lines += ["", f"## {run.program}", "", f"![{run.title}]({charts[run.program]})", ""]
        rows = [
            (
                f"**{ratio.name}**" if ratio.own else ratio.name,
                ratio.kind,
                f"{ratio.value:.3f}",
                f"±{ratio.spread:.3f}" if ratio.spread else "",
            )
            for ratio in run.ratios
        ]
        lines += _table(("what", "kind", "ratio", "spread"), rows)
    return "\n".join(lines) + "\n"
