"""Diagnose every model of the zoo: no alarm where plain PyTorch's backward runs.

Example:
    All suites, with the table in ``benchmarks/results/diagnosis_zoo.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.diagnosis_zoo

Exit status: 1 if a clash is reported where backward runs, or none where it raises.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import safemodules as sm
from benchmarks.cases import RUN_SEED, SUITES, Call, Case, Mode, load_suite, seed_everything, select
from benchmarks.report import RESULTS, table, versions
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
    """

    name: str
    mode: str
    raised: str
    clashes: int
    possible: int
    sites: int
    warnings: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether the verdict is PyTorch's."""
        if "inplace operation" in self.raised:
            return self.clashes + self.possible > 0
        return self.clashes == 0


def plain_error(model: nn.Module, call: Call) -> str:
    """What forward and backward raise, without us."""
    handed, _ = clone_inputs(call, requires_grad=True)
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


def page(rows: Sequence[Row], crashed: Sequence[str], command: str) -> str:
    """The Markdown page."""
    pairs = ", ".join(f"{name} {version}" for name, version in versions().items())
    bad = [row for row in rows if not row.good]
    shown = [row for row in rows if not row.good or row.clashes or row.possible or row.warnings]
    body = [
        [row.name, row.mode, *map(str, (row.clashes, row.possible, row.warnings)), row.raised]
        for row in shown
    ]
    lines = [
        "# Diagnosis of every model of the zoo",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {pairs}; CPU, {torch.get_num_threads()} thread(s).",
        "",
        f"{len({row.name for row in rows})} models, {len(rows)} diagnoses, "
        f"{sum(row.sites for row in rows)} in-place sites that ran: {len(bad)} verdicts differ "
        f"from that of PyTorch's own backward, {len(crashed)} crashed.",
        "",
    ]
    if body:
        header = ["model", "mode", "clashes", "possible or silent", "warnings", "PyTorch raised"]
        lines += ["Models with any finding:", "", *table(header, body), ""]
    lines += [f"- {text}" for text in crashed]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis_zoo")
    parser.add_argument("--suite", default=",".join(SUITES))
    parser.add_argument("--only", metavar="GLOB", default="*")
    parser.add_argument("--light", action="store_true", help="leave out the heavy models")
    parser.add_argument("--output", type=Path, default=RESULTS / "diagnosis_zoo.md")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    suites = options.suite.split(",")
    cases = select((case for suite in suites for case in load_suite(suite)), options.only)
    rows: list[Row] = []
    crashed: list[str] = []
    for number, case in enumerate(case for case in cases if not (options.light and case.heavy)):
        for mode in case.gradients:
            try:
                rows.append(run(case, mode))
            except Exception as error:
                crashed.append(f"{case.name} {mode}: {type(error).__name__}: {error}")
                print(f"{number:4} {crashed[-1]}", flush=True)
                continue
            finally:
                gc.collect()
            row = rows[-1]
            verdict = "good" if row.good else "WRONG"
            print(
                f"{number:4} {row.name:50} {mode:5} {verdict:5} {row.clashes} clashes, "
                f"{row.possible} possible, {row.warnings} warnings, {row.sites} sites, "
                f"{row.seconds:.1f} s {row.raised[:80]}",
                flush=True,
            )
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    command = shlex.join(["python", "-m", "benchmarks.diagnosis_zoo", *words])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page(rows, crashed, command))
    return 1 if crashed or not all(row.good for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
