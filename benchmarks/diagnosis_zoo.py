"""Diagnose every model of the zoo: no alarm where plain PyTorch's backward runs.

Example:
    All suites, with the table in ``benchmarks/results/diagnosis_zoo.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.diagnosis_zoo

    The rows are stored after every model; ``--update`` keeps those of earlier runs, and
    ``--update --missing`` goes on where one was cut short.

Exit status: 1 if a clash is reported where backward runs, or none where it raises.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

import safemodules as sm
from benchmarks.cases import RUN_SEED, SUITES, Call, Case, Mode, load_suite, seed_everything, select
from benchmarks.report import RESULTS, command_line, read_commands, table, version_list
from safemodules.trees import clone_inputs, flatten_tensors


@dataclass(frozen=True)
class Row:
    """One model in one mode.

    Attributes:
        name: Name of the case.
        mode: ``"train"`` or ``"eval"``.
        raised: What plain forward or backward raised, empty if nothing.
        clashes: Number of clashes reported, the possible ones left out.
        possible: Number of possible ones.
        sites: Number of in-place sites that ran.
        warnings: Number of warnings.
        seconds: Seconds of the diagnosis.
        crash: What the diagnosis itself raised, empty if nothing.
    """

    name: str
    mode: str
    raised: str = ""
    clashes: int = 0
    possible: int = 0
    sites: int = 0
    warnings: int = 0
    seconds: float = 0.0
    crash: str = ""

    @property
    def good(self) -> bool:
        """Whether the verdict is PyTorch's."""
        if self.crash:
            return False
        if "inplace operation" in self.raised:
            return self.clashes + self.possible > 0
        return self.clashes == 0


def plain_error(model: nn.Module, call: Call) -> str:
    """What forward and backward raise, without us; some forwards take no inputs but leaves."""
    raised = _plain_error(model, call, requires_grad=True)
    if raised and "inplace operation" not in raised:
        return _plain_error(model, call, requires_grad=False)
    return raised


def _plain_error(model: nn.Module, call: Call, *, requires_grad: bool) -> str:
    handed, _ = clone_inputs(call, requires_grad=requires_grad)
    try:
        out = model(*handed.args, **handed.kwargs)
        floats = [t.sum() for _, t in flatten_tensors(out) if t.requires_grad]
        if floats:
            torch.autograd.backward(floats)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def run(case: Case, mode: Mode) -> Row:
    """Diagnose one model in one mode."""
    model = case.build().train(mode == "train")
    call = case.call(mode)
    seed_everything(RUN_SEED)
    started = time.perf_counter()
    found = sm.diagnose(model, call.args, call.kwargs)
    seconds = time.perf_counter() - started
    seed_everything(RUN_SEED)
    raised = found.error or plain_error(model, call)
    certain = [clash for clash in found.clashes if not clash.possible and not clash.silent]
    return Row(
        case.name,
        mode,
        raised,
        len(certain),
        len(found.clashes) - len(certain),
        len(found.sites),
        len(found.warnings),
        seconds,
    )


def read(path: Path) -> list[Row]:
    """The rows that an earlier run has stored, empty if there was none."""
    stored = path.with_suffix(".json")
    return [Row(**row) for row in json.loads(stored.read_text())["rows"]] if stored.exists() else []


def write(rows: Sequence[Row], path: Path, commands: Sequence[str]) -> None:
    """Write the page, and the rows beside it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(rows, commands))
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    data = f'{{"commands": {json.dumps(commands)}, "rows": [\n{lines}\n]}}\n'
    path.with_suffix(".json").write_text(data)


def page(rows: Sequence[Row], commands: Sequence[str]) -> str:
    """The Markdown page."""
    pairs = version_list()
    bad = [row for row in rows if not row.good and not row.crash]
    shown = [row for row in rows if row.clashes or row.possible or row.warnings or row.raised]
    body = [
        [row.name, row.mode, *map(str, (row.clashes, row.possible, row.warnings)), row.raised]
        for row in [*bad, *(row for row in shown if row not in bad)]
    ]
    crashed = [row for row in rows if row.crash]
    suites = [
        [suite, str(len({row.name for row in own})), str(len(own)), str(sum(r.sites for r in own))]
        for suite in SUITES
        if (own := [row for row in rows if row.name.startswith(f"{suite}/")])
    ]
    lines = [
        "# Diagnosis of every model of the zoo",
        "",
        f"Command: {', then '.join(f'`{command}`' for command in commands)}",
        "",
        f"Versions: {pairs}; CPU, {torch.get_num_threads()} thread(s).",
        "",
        f"{len({row.name for row in rows})} models, {len(rows)} diagnoses, "
        f"{sum(row.sites for row in rows)} in-place sites that ran: {len(bad)} verdicts differ "
        f"from that of PyTorch's own backward, {len(crashed)} crashed.",
        "",
        *table(["suite", "models", "diagnoses", "sites that ran"], suites),
        "",
    ]
    if body:
        header = ["model", "mode", "clashes", "possible or silent", "warnings", "PyTorch raised"]
        lines += ["Models with any finding:", "", *table(header, body), ""]
    lines += [f"- {row.name} {row.mode}: {row.crash}" for row in crashed]
    return "\n".join(lines).rstrip() + "\n"


def measured(case: Case, mode: Mode) -> Row:
    """The row of one model in one mode; an error of the diagnosis becomes a row."""
    try:
        return run(case, mode)
    except Exception as error:
        return Row(case.name, mode, crash=f"{type(error).__name__}: {error}".splitlines()[0])
    finally:
        gc.collect()


def report(number: int, row: Row) -> None:
    """Print a line of progress."""
    verdict = row.crash or ("good" if row.good else "WRONG")
    print(
        f"{number:4} {row.name:50} {row.mode:5} {verdict:5} {row.clashes} clashes, "
        f"{row.possible} possible, {row.warnings} warnings, {row.sites} sites, "
        f"{row.seconds:.1f} s {row.raised[:80]}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis_zoo")
    add = parser.add_argument
    add("--suite", default=",".join(SUITES))
    add("--only", metavar="GLOB", default="*")
    add("--light", action="store_true", help="leave out the heavy models")
    add("--update", action="store_true", help="keep the other rows of the page")
    add("--missing", action="store_true", help="leave out the models that the page has")
    add("--output", type=Path, default=RESULTS / "diagnosis_zoo.md")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    suites = options.suite.split(",")
    cases = select((case for suite in suites for case in load_suite(suite)), options.only)
    known = read(options.output) if options.update else []
    rows = {(row.name, row.mode): row for row in known}
    commands = read_commands(options.output) if options.update else []
    commands.append(command_line("diagnosis_zoo", arguments))
    for number, case in enumerate(case for case in cases if not (options.light and case.heavy)):
        for mode in case.gradients:
            if options.missing and (case.name, mode) in rows:
                continue
            row = rows[case.name, mode] = measured(case, mode)
            report(number, row)
        ordered = sorted(rows.values(), key=lambda row: SUITES.index(row.name.split("/")[0]))
        write(ordered, options.output, commands)
    return 0 if rows and all(row.good for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
