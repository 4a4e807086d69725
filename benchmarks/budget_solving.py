"""How near to the best plans for memory budgets are, and how long it takes to find them.

Example:
    Ten models, with the table in ``benchmarks/results/budget_solving.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.budget_solving

Exit status: 1 if a plan is proven to cost more than the best by more than a hundredth of a step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn

import safemodules as sm
from benchmarks.budget_front import torchvision_model, unet
from benchmarks.report import RESULTS, command_line, table, version_list
from safemodules.memory.plans import plan_step
from safemodules.memory.recording import record_step
from safemodules.memory.tape import Tape
from safemodules.trees import CallArguments

SHARES = (75, 50, 35)
NEAR = 0.01
HEAD = ("model", "budget", "operators", "time", "no less than", "apart", "s")
HEAD = (*HEAD, "without: time", "apart", "s")


def _timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "squeezenet1_1": (partial(torchvision_model, "squeezenet1_1"), (8, 3, 224, 224)),
    "resnet50": (partial(torchvision_model, "resnet50"), (8, 3, 224, 224)),
    "resnet152": (partial(torchvision_model, "resnet152"), (8, 3, 224, 224)),
    "densenet121": (partial(torchvision_model, "densenet121"), (8, 3, 224, 224)),
    "efficientnet_b0": (partial(torchvision_model, "efficientnet_b0"), (8, 3, 224, 224)),
    "U-Net (resnet34)": (unet, (8, 3, 256, 256)),
    "vit_b_16": (partial(torchvision_model, "vit_b_16"), (8, 3, 224, 224)),
    "vit_l_16": (partial(torchvision_model, "vit_l_16"), (8, 3, 224, 224)),
    "swin_t": (partial(torchvision_model, "swin_t"), (8, 3, 224, 224)),
    "swin_large (timm)": (partial(_timm, "swin_large_patch4_window7_224"), (8, 3, 224, 224)),
}


@dataclass(frozen=True)
class Row:
    """One model and budget.

    Attributes:
        model: the model.
        share: the budget, as percent of the activations' peak.
        operators: how many operators the forward runs.
        seconds: that choosing took.
        cost: step time of the plan, a ratio to the plain step's.
        bound: no plan has less.
        refusal: what the error says, where no plan fits.
        unaided: step time of the plan that is made without a solver; none where none is found.
        searched: seconds that this took.
    """

    model: str
    share: int
    operators: int
    seconds: float
    cost: float = 0.0
    bound: float = 0.0
    refusal: str = ""
    unaided: float | None = None
    searched: float = 0.0


def measure(name: str) -> list[Row]:
    """Plan all budgets of one model, on tensors that have no memory."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    # With loops checkpointed there would be less left to choose.
    model = sm.convert_model(make().train(), checkpoint=False)
    tape = record_step(model, CallArguments((torch.empty(shape),), {}), fake=True)
    return [_solved(name, share, tape) for share in SHARES]


def _solved(name: str, share: int, tape: Tape) -> Row:
    budget, count = f"{share}% of activations", len(tape.operators)
    started = time.perf_counter()
    try:
        plan = plan_step(tape, budget)
    except sm.BudgetError as error:
        told = str(error).partition("bytes, ")[2].partition(")")[0]
        seconds = time.perf_counter() - started
        how = "impossible" if "cannot be" in str(error) else "not found"
        return Row(name, share, count, seconds, refusal=f"{how}; least found {told}")
    solved = time.perf_counter()
    with without_solver():
        try:
            unaided = plan_step(tape, budget).overhead
        except sm.BudgetError:
            unaided = None
    return Row(
        name,
        share,
        count,
        solved - started,
        plan.overhead,
        1 + plan.bound / plan.step_seconds,
        unaided=unaided,
        searched=time.perf_counter() - solved,
    )


@contextmanager
def without_solver() -> Iterator[None]:
    """Plans as where scipy is not installed."""
    with ExitStack() as stack:
        for module in ("choosing", "plans"):
            stack.enter_context(patch(f"safemodules.memory.{module}.is_solvable", lambda: False))
        yield


def _unaided(row: Row) -> tuple[str, str, str]:
    if row.refusal:
        return "", "", ""
    seconds = f"{row.searched:.1f}"
    if row.unaided is None:
        return "not found", "", seconds
    return f"{row.unaided:.4f}", f"{100 * (row.unaided - row.bound):.2f}%", seconds


def page(rows: Sequence[Row], command: str) -> str:
    """The Markdown page."""
    cells = [
        (
            row.model,
            f"{row.share}%",
            str(row.operators),
            *(
                (row.refusal, "", "")
                if row.refusal
                else (f"{row.cost:.4f}", f"{row.bound:.4f}", f"{100 * (row.cost - row.bound):.2f}%")
            ),
            f"{row.seconds:.1f}",
            *_unaided(row),
        )
        for row in rows
    ]
    met = [row for row in rows if not row.refusal]
    within = sum(row.cost - row.bound <= 1e-3 for row in met)
    found = [(row.unaided, row.bound) for row in met if row.unaided is not None]
    apart = [unaided - bound for unaided, bound in found] or [0.0]
    return "\n".join(
        [
            "# Plans for memory budgets against the best there can be",
            "",
            f"Command: `{command}`",
            "",
            f"Versions: {version_list()}; CPU, {torch.get_num_threads()} thread.",
            "",
            "Training steps on 8 images of 224 px (U-Net: 256), planned on fake tensors: times are",
            "estimated from sizes, and the budget is a share of the activations' peak. *time*: of",
            "the planned step, a ratio to the plain one; *no less than*: what the integer",
            "programme proves of any choice; *apart*: of a step; *s*: what choosing took.",
            "*Without*: the same where scipy is not installed, and a search chooses.",
            "",
            f"{len(met)} of {len(rows)} budgets are met. {within} of these plans are proven to be",
            "within 0.1% of a step of the best, and all within "
            f"{100 * max((row.cost - row.bound for row in met), default=0):.2f}%. Without a solver",
            f"{len(found)} are met, within {100 * statistics.median(apart):.2f}% of a step of "
            f"the best in the median and {100 * max(apart):.2f}% at most.",
            "",
            *table(HEAD, cells),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budget_solving", description=__doc__
    )
    parser.add_argument("--only", choices=sorted(MODELS), action="append")
    parser.add_argument("--output", type=Path, default=RESULTS / "budget_solving.md")
    options = parser.parse_args(arguments)
    command = command_line("budget_solving", arguments)
    rows: list[Row] = []
    for name in options.only or MODELS:
        rows += measure(name)
        options.output.write_text(page(rows, command))
        print(f"{name} done", flush=True)
    print(options.output)
    return int(any(row.cost - row.bound > NEAR for row in rows))


if __name__ == "__main__":
    sys.exit(main())
