"""How long ``convert_model`` takes, with and without example inputs.

*Cold* is the first conversion of a fresh process, *warm* that of a new model of the same kind
in the same process. A step is one forward and backward of the original, for scale.

Example:
    Table in ``benchmarks/results/conversion_time.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.conversion_time

Exit status: 1 if a conversion without example inputs takes longer than ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.cases import load_case
from benchmarks.report import RESULTS, command_line, table, version_list

MODELS = (
    "resnet18",
    "resnet50",
    "resnet152",
    "densenet201",
    "efficientnet_v2_s",
    "inception_v3",
    "swin_t",
    "vit_b_16",
    "maskrcnn_resnet50_fpn",
)
WARM_RUNS = 3


def measure_here(name: str, with_inputs: bool) -> dict[str, float]:
    """Convert new models of one kind in this process, the first one cold."""
    import safemodules

    torch.set_num_threads(1)
    case = load_case(f"torchvision/{name}")
    seconds = []
    for _ in range(1 + WARM_RUNS):
        model, call = case.build(), case.call("train")
        started = time.perf_counter()
        if with_inputs:
            safemodules.convert_model(model, example_inputs=call.args, example_kwargs=call.kwargs)
        else:
            safemodules.convert_model(model)
        seconds.append(time.perf_counter() - started)
    return {"cold": seconds[0], "warm": statistics.median(seconds[1:])}


def step_seconds(name: str) -> float:
    """Time of one forward and backward of the original, the better of two."""
    from benchmarks.runs import run

    torch.set_num_threads(1)
    case = load_case(f"torchvision/{name}")
    model = case.build()
    return min(run(model, case, "train").seconds for _ in range(2))


def measure(name: str, with_inputs: bool, runs: int) -> dict[str, float]:
    """Median over fresh processes."""
    words = [sys.executable, "-m", "benchmarks.conversion_time", "--one", name]
    results = []
    for _ in range(runs):
        done = subprocess.run(
            words + (["--with-inputs"] if with_inputs else []),
            check=True,
            capture_output=True,
            text=True,
        )
        results.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: statistics.median(result[key] for result in results) for key in results[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversion_time")
    parser.add_argument("--only", nargs="*", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes for each figure")
    parser.add_argument("--limit", type=float, default=2.0, help="seconds without inputs")
    parser.add_argument("--output", type=Path, default=RESULTS / "conversion_time.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--with-inputs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure_here(options.one, options.with_inputs)))
        return 0
    rows, slow = [], []
    for name in options.only:
        alone = measure(name, False, options.runs)
        checked = measure(name, True, options.runs)
        figures = [alone["cold"], alone["warm"], checked["cold"], checked["warm"]]
        rows.append([name, f"{step_seconds(name):.2f}", *(f"{value:.2f}" for value in figures)])
        slow += [name] if alone["cold"] > options.limit else []
        print(" ".join(rows[-1]), flush=True)
    command = command_line("conversion_time", arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page(rows, command, options.runs))
    return 1 if slow else 0


def page(rows: Sequence[Sequence[str]], command: str, runs: int) -> str:
    """The Markdown page."""
    pairs = version_list()
    header = ["model", "one step", "cold", "warm", "cold, with inputs", "warm, with inputs"]
    lines = [
        "# Seconds that `convert_model` takes",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {pairs}; CPU, one thread.",
        "",
        "Cold: first conversion of a fresh process; warm: a new model in the same process.",
        f"Medians of {runs} processes. One step: forward and backward of the original. Inputs",
        "are those of the zoo. With inputs the model is run and compared with the original.",
        "",
        *table(header, rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
