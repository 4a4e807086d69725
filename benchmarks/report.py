"""The tables of the zoo, in Markdown for people and in JSON for scripts."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.compare import Outcome
from benchmarks.converters import Sites

LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "segmentation-models-pytorch",
    "transformers",
    "safemodules",
)
RESULTS = Path(__file__).parent / "results"
SHOWN_LENGTH = 160


def versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries that the results depend on."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def version_list() -> str:
    """The versions in words."""
    return ", ".join(f"{name} {version}" for name, version in versions().items())


def command_line(program: str, arguments: Sequence[str] | None) -> str:
    """The command that runs a benchmark again.

    Args:
        program: Name of the module.
        arguments: Its arguments; ``None`` for those of the process.

    Example:
        >>> command_line("loop", ["--rounds", "5"])
        'python -m benchmarks.loop --rounds 5'
    """
    words = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", f"benchmarks.{program}", *words])


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line: how many cases ended how, and what was found in them."""
    counts = Counter(outcome.status for outcome in outcomes)
    parts = [f"{count} {status}" for status, count in counts.most_common()]
    text = f"{len(outcomes)} models: {', '.join(parts) or 'none'}"
    sites = sum(outcome.sites.found for outcome in outcomes)
    if sites:
        swapped = sum(outcome.sites.swapped for outcome in outcomes)
        text += f"; {sites} in-place sites, {swapped} swapped"
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def _cell(text: str) -> str:
    text = text.replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 1] + "…"


def _row(outcome: Outcome) -> list[str]:
    sites = outcome.sites
    converted = bool(outcome.convert_seconds)
    detail = outcome.detail or (outcome.differences[0] if outcome.differences else "")
    return [
        outcome.case.split("/", 1)[1],
        outcome.status if outcome.status in ("equal", "repeatable") else f"**{outcome.status}**",
        f"{outcome.parameters / 1e6:.2f}",
        *(str(n) if converted else "" for n in (sites.found, sites.swapped, sites.kept)),
        str(sites.other) if converted else "",
        f"{outcome.convert_seconds:.2f}" if converted else "",
        f"{outcome.pass_seconds:.2f}",
        f"{outcome.informative:.0%}",
        _cell(detail),
    ]


HEADER = (
    "model",
    "result",
    "M parameters",
    "sites",
    "swapped",
    "kept",
    "other",
    "convert s",
    "runs s",
    "gradients seen",
    "remark",
)


def markdown(
    outcomes: Sequence[Outcome], commands: Sequence[str], title: str, missing: Sequence[str]
) -> str:
    """The whole page: what was run, a summary, a table for each suite, and all differences."""
    pairs = version_list()
    lines = [
        f"# {title}",
        "",
        f"Command: {', then '.join(f'`{command}`' for command in commands)}",
        "",
        f"Versions: {pairs}; {platform.machine()}, CPU, one thread.",
        "",
        f"**{summary(outcomes)}**",
        "",
        "*equal*: outputs, gradients of parameters and inputs, buffers, generators and the",
        "caller's inputs are equal bit for bit, in train and in eval mode; names, objects and",
        "`state_dict` keys are the same; reverting restores classes, flags and the forward.",
        "*runs s*, *convert s*: CPU seconds; *gradients seen*: share of parameters with a finite",
        "gradient that is not all zero, in the worse mode.",
    ]
    if missing:
        lines += ["", f"Not run: {len(missing)} of the zoo's models ({', '.join(missing)})."]
    for suite in dict.fromkeys(outcome.case.split("/", 1)[0] for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.case.startswith(f"{suite}/")]
        lines += ["", f"## {suite}", "", summary(own), ""]
        lines += table(HEADER, [_row(outcome) for outcome in own])
    failed = [outcome for outcome in outcomes if outcome.differences]
    if failed:
        lines += ["", "## Differences"]
    for outcome in failed:
        lines += ["", f"### {outcome.case}", "", "```", *outcome.differences, "```"]
    return "\n".join(lines) + "\n"


def read(path: Path) -> list[Outcome]:
    """The outcomes that an earlier run has written, empty if there was none."""
    stored = path.with_suffix(".json")
    if not stored.exists():
        return []
    rows = json.loads(stored.read_text())["outcomes"]
    return [
        Outcome(
            **{
                **row,
                "sites": Sites(**row["sites"]),
                "differences": tuple(row["differences"]),
            }
        )
        for row in rows
    ]


def read_commands(path: Path) -> list[str]:
    """The commands of the runs whose outcomes a page holds, empty if there is none."""
    stored = path.with_suffix(".json")
    if not stored.exists():
        return []
    commands: list[str] = json.loads(stored.read_text())["commands"]
    return commands


def write(
    outcomes: Sequence[Outcome],
    path: Path,
    commands: Sequence[str],
    title: str,
    missing: Sequence[str] = (),
) -> None:
    """Write the page to a ``.md`` file and the same data beside it as ``.json``.

    Args:
        outcomes: The rows.
        path: The page.
        commands: The commands that have run, the last one last.
        title: The heading.
        missing: Names of models of the zoo that no run has reached.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(outcomes, commands, title, missing))
    data = {
        "commands": list(commands),
        "versions": versions(),
        "summary": summary(outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    path.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
