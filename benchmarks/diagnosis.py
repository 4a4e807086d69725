"""Cost of `diagnose` and `watch` beside a plain step, anomaly mode and mutation on saved tensors.

Example:
    ResNet-50 at batch 4 and 160 pixels, 31 rounds, in ``benchmarks/results/diagnosis.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.diagnosis

Exit status: 1 if ``diagnose`` takes more than 1.5, or ``watch`` more than 1.15, of its base.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

import safemodules as sm
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.timing import Ratio, interleave

PLAIN, AGAIN, DIAGNOSE, WATCH = "plain", "plain again (noise)", "diagnose", "watch"
LIMITS = {DIAGNOSE: 1.5, WATCH: 1.15}
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (torchvision.models.resnet50, (4, 3, 160, 160)),
    "resnet18": (torchvision.models.resnet18, (4, 3, 64, 64)),
}


def passes(model: nn.Module, inputs: Tensor) -> dict[str, Callable[[], object]]:
    """One forward and backward, plain and beside `diagnose`, which needs no backward."""

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        model(inputs).sum().backward()

    return {PLAIN: plain, AGAIN: plain, DIAGNOSE: lambda: sm.diagnose(model, inputs)}


def steps(model: nn.Module, inputs: Tensor) -> dict[str, Callable[[], object]]:
    """One training step with SGD, in several surroundings."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    graph = torch.autograd.graph

    def step(context: Callable[[], AbstractContextManager[object]]) -> Callable[[], None]:
        def run() -> None:
            with context():
                optimizer.zero_grad(set_to_none=True)
                model(inputs).square().mean().backward()
                optimizer.step()

        return run

    def anomaly(check_nan: bool) -> Callable[[], AbstractContextManager[object]]:
        return lambda: torch.autograd.detect_anomaly(check_nan=check_nan)

    return {
        PLAIN: step(nullcontext),
        AGAIN: step(nullcontext),
        WATCH: step(sm.watch),
        "watch(model)": step(lambda: sm.watch(model)),
        "anomaly mode": step(anomaly(True)),
        "anomaly mode, no check for NaN": step(anomaly(False)),
        "allow_mutation_on_saved_tensors": step(graph.allow_mutation_on_saved_tensors),
    }


def measure(name: str, rounds: int) -> list[tuple[str, float, dict[str, Ratio]]]:
    """Ratios of both groups for one model."""
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, inputs = make(), torch.randn(shape)
    found = []
    for label, variants in (
        (f"{name}: forward and backward", passes(copy.deepcopy(model), inputs)),
        (f"{name}: training step", steps(copy.deepcopy(model), inputs)),
    ):
        seconds, ratios = interleave(variants, PLAIN, rounds=rounds)
        found.append((label, seconds, ratios))
        print(f"{label}: {1e3 * seconds:.1f} ms", flush=True)
        for variant, ratio in ratios.items():
            print(f"  {variant:32} {ratio}", flush=True)
    return found


def page(found: Sequence[tuple[str, float, dict[str, Ratio]]], command: str) -> str:
    """The Markdown page."""
    pairs = version_list()
    body = [
        [label, f"{1e3 * seconds:.1f}", variant, str(ratio), str(LIMITS.get(variant, ""))]
        for label, seconds, ratios in found
        for variant, ratio in ratios.items()
    ]
    rounds = next(iter(found[0][2].values())).rounds
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, (_, shape) in CASES.items())
    lines = [
        "# Cost of diagnose and watch while nothing fails",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {pairs}; CPU, {torch.get_num_threads()} thread(s). Inputs: {shapes}.",
        "",
        "Each run is divided by the mean of the plain runs just before and after it; median of",
        f"{rounds} rounds, ± half the distance between the quartiles. `diagnose` is compared with",
        "one forward and backward, the others with one training step of SGD with momentum.",
        "",
        *table(["what", "plain ms", "variant", "of plain", "limit"], body),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "diagnosis.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found = [row for name in options.only for row in measure(name, options.rounds)]
    command = command_line("diagnosis", arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page(found, command))
    slow = [
        f"{label}, {variant} {ratio}"
        for label, _, ratios in found
        if label.startswith("resnet50")
        for variant, ratio in ratios.items()
        if ratio.median > LIMITS.get(variant, float("inf"))
    ]
    if slow:
        print("over the limit: " + "; ".join(slow))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
