"""What plans for a memory budget predict, against what the steps then measure.

Example:
    A model of each classification family of torchvision, with the table in
    ``benchmarks/results/budget_families.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.budget_families

Exit status: 1 if a step is over its budget, or its peak is not within 1% of the predicted one.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

import safemodules as sm
from benchmarks.memory import measure_activations
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.step_time import step
from benchmarks.timing import timed

# One model for each family; sides of the images that the family accepts.
FAMILIES = {
    "alexnet": 128,
    "convnext_tiny": 96,
    "densenet121": 96,
    "efficientnet_b0": 96,
    "efficientnet_v2_s": 96,
    "googlenet": 96,
    "inception_v3": 299,
    "maxvit_t": 224,
    "mnasnet1_0": 96,
    "mobilenet_v2": 96,
    "mobilenet_v3_large": 96,
    "regnet_y_400mf": 96,
    "resnet50": 96,
    "resnext50_32x4d": 96,
    "shufflenet_v2_x1_0": 96,
    "squeezenet1_1": 96,
    "swin_t": 96,
    "swin_v2_t": 96,
    "vgg11_bn": 96,
    "vit_b_32": 224,
    "wide_resnet50_2": 96,
}
SHARES = (75, 50, 35)
BATCH = 4


@dataclass(frozen=True)
class Row:
    """One model and budget.

    Attributes:
        model: the model.
        share: the budget, as percent of the activations' peak.
        saved: bytes that forward leaves, predicted and measured.
        peak: the peak, predicted and measured, in bytes; none if the budget cannot be met.
        before: the peak without a budget.
        overhead: time against the plain step's, predicted and measured.
        bound: no plan is predicted to take less.
        solved: seconds that planning took, running the model included.
        least: where no plan fits: what the error says.
    """

    model: str
    share: int
    before: int = 0
    saved: tuple[int, int] = (0, 0)
    peak: tuple[int, int] = (0, 0)
    overhead: tuple[float, float] = (1.0, 1.0)
    bound: float = 1.0
    solved: float = 0.0
    least: str = ""


def loss(output: object) -> Tensor:
    """The sum of what a model returns; some return several tensors in training."""
    found = output if isinstance(output, tuple) else (output,)
    return torch.stack([each.sum() for each in found if isinstance(each, Tensor)]).sum()


def build(name: str) -> tuple[nn.Module, Tensor]:
    """A converted model and a batch."""
    options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    torch.manual_seed(0)
    net = torchvision.models.get_model(name, weights=None, **options)
    inputs = torch.randn(BATCH, 3, FAMILIES[name], FAMILIES[name])
    return sm.convert_model(net, inputs, checkpoint=False), inputs


def measure(name: str, rounds: int) -> list[Row]:
    """All budgets of one model."""
    net, inputs = build(name)
    rows = []
    for share in SHARES:
        started = time.perf_counter()
        try:
            plan = sm.plan_checkpoints(
                copy.deepcopy(net), inputs, f"{share}% of activations", loss_fn=loss
            )
        except sm.BudgetError as error:
            least = str(error).partition("found is ")[2].partition(". ")[0]
            rows.append(Row(name, share, least=least))
            continue
        solved = time.perf_counter() - started
        budgeted = sm.convert_model(copy.deepcopy(net), inputs, checkpoint=plan)
        saved, peak = measure_activations(budgeted, inputs, loss)
        ratios = []
        plain, own = step(net, inputs, loss), step(budgeted, inputs, loss)
        for _ in range(rounds):
            first, ours, second = timed(plain), timed(own), timed(plain)
            ratios.append(2 * ours / (first + second))
        rows.append(
            Row(
                name,
                share,
                plan.peak_before,
                (plan.live[plan.forward_events - 1], saved),
                (plan.peak, peak),
                (plan.overhead, statistics.median(ratios)),
                1 + plan.bound / plan.step_seconds,
                solved,
            )
        )
    return rows


def page(rows: Sequence[Row], command: str, rounds: int) -> str:
    """The Markdown page."""
    head = ("model", "budget", "before MiB", "peak: predicted", "measured", "off", "of it")
    head = (*head, "time: no plan below", "predicted", "measured", "planned in")
    cells = []
    for row in rows:
        if row.least:
            cells.append((row.model, f"{row.share}%", "", f"least: {row.least}", *[""] * 7))
            continue
        predicted, measured = row.peak
        cells.append(
            (
                row.model,
                f"{row.share}%",
                f"{row.before / 2**20:.2f}",
                f"{predicted / 2**20:.2f}",
                f"{measured / 2**20:.2f}",
                f"{predicted / measured - 1:+.2%}",
                f"{measured / row.before:.3f}",
                f"{row.bound:.3f}",
                f"{row.overhead[0]:.3f}",
                f"{row.overhead[1]:.3f}",
                f"{row.solved:.1f} s",
            )
        )
    met = [row for row in rows if not row.least]
    off = max(abs(row.peak[0] / row.peak[1] - 1) for row in met)
    late = [abs(row.overhead[0] - row.overhead[1]) for row in met]
    return "\n".join(
        [
            "# Predictions of memory budgets",
            "",
            f"Command: `{command}`",
            "",
            f"Versions: {version_list()}; CPU, {torch.get_num_threads()} thread.",
            "",
            f"Steps on {BATCH} images, peaks of the activations: live tensor bytes without the",
            "gradients of parameters. Time is a ratio to plain steps just before and after, the",
            f"median of {rounds} rounds. Where a budget cannot be met, the least that was found.",
            "",
            f"{len(met)} of {len(rows)} budgets are met; no step is over its budget: "
            f"{all(row.peak[1] <= row.share / 100 * row.before for row in met)}. Peaks are off by",
            f"at most {off:.2%}; times by {statistics.median(late):.3f} in the median and "
            f"{max(late):.3f} at most.",
            "",
            *table(head, cells),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budget_families", description=__doc__
    )
    parser.add_argument("--only", choices=sorted(FAMILIES), action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "budget_families.md")
    options = parser.parse_args(arguments)
    command = command_line("budget_families", arguments)
    rows: list[Row] = []
    for name in options.only or FAMILIES:
        rows += measure(name, options.rounds)
        options.output.write_text(page(rows, command, options.rounds))
        print(rows[-1], flush=True)
    met = [row for row in rows if not row.least]
    close = all(abs(row.peak[0] / row.peak[1] - 1) <= 0.01 for row in met)
    return 0 if close and all(row.peak[1] <= row.share / 100 * row.before for row in met) else 1


if __name__ == "__main__":
    sys.exit(main())
