"""Step time of a model under a memory budget, against checkpointing chosen by hand.

Example:
    Both models, table in ``benchmarks/results/budget_time.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.budget_time

Exit status: 1 if a step is over its budget, or does not compute what the plain one does.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import safemodules as sm
from benchmarks.checkpoint_time import MODELS as CHAINS
from benchmarks.checkpoint_time import Chain, Run, each, plain, vit_b_16
from benchmarks.memory import measure_activations
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.step_time import loss, step
from benchmarks.timing import Ratio, interleave

BASE = "no budget"
NOISE = "no budget, again"
SHARES = (75, 50, 33)
MODELS = {**CHAINS, "vit_b_16": (functools.partial(vit_b_16, 224), (4, 3, 224, 224))}
# What the project set out to take, at most.
AIMS = {
    ("resnet50", 75): 1.04,
    ("resnet50", 50): 1.10,
    ("resnet50", 33): 1.20,
    ("vit_b_16", 75): 1.02,
    ("vit_b_16", 50): 1.06,
    ("vit_b_16", 33): 1.12,
}


@dataclass(frozen=True)
class Row:
    """One way of running a step.

    Attributes:
        model: the model.
        way: how it is run.
        ratio: its time against that of the plain step.
        predicted: the ratio that the plan has told.
        peak: peak of the activations against the plain step's.
        exact: whether gradients and buffers are those of the plain step, bit for bit.
    """

    model: str
    way: str
    ratio: Ratio | None
    predicted: float | None
    peak: float
    exact: bool


def per_block(seq: nn.Sequential, x: Tensor) -> Tensor:
    """Torch's checkpoint around each block."""
    return each(lambda block, x: checkpoint(block, x, use_reentrant=False))(seq, x)


def first_half(seq: nn.Sequential, x: Tensor) -> Tensor:
    """Torch's checkpoint around each of the first half of the blocks."""
    for index, block in enumerate(seq):
        x = checkpoint(block, x, use_reentrant=False) if index < len(seq) // 2 else block(x)
    return x


def eight_segments(seq: nn.Sequential, x: Tensor) -> Tensor:
    """``checkpoint_sequential``."""
    out: Tensor = checkpoint_sequential(seq, min(8, len(seq)), x, use_reentrant=False)
    return out


PEERS: dict[str, Run] = {
    "checkpoint_sequential, 8 segments": eight_segments,
    "torch's checkpoint per block": per_block,
    "torch's checkpoint, first half of the blocks": first_half,
}


def variants(name: str) -> tuple[dict[str, nn.Module], dict[str, sm.CheckpointPlan], Tensor]:
    """All ways to run a model, with the plans of those that have one."""
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    stem, blocks, head = make()
    inputs = torch.randn(sizes)
    base = sm.convert_model(Chain(stem, blocks, head, plain), inputs, checkpoint=False)
    found: dict[str, nn.Module] = {BASE: base, NOISE: copy.deepcopy(base)}
    plans = {}
    for share in SHARES:
        plan = sm.plan_checkpoints(copy.deepcopy(base), inputs, f"{share}% of activations")
        way = f"memory_budget {share}%"
        found[way] = sm.convert_model(copy.deepcopy(base), inputs, checkpoint=plan)
        plans[way] = plan
    for way, run in PEERS.items():
        peer = copy.deepcopy(base)
        peer.run = run
        found[way] = peer
    return found, plans, inputs


def bits(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Gradients and buffers after one step of a copy."""
    model = copy.deepcopy(model)
    torch.manual_seed(0)
    loss(model(inputs)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*(gradient for gradient in gradients if gradient is not None), *model.buffers()]


def measure(name: str, rounds: int, clock: Callable[[], float]) -> list[Row]:
    """Time all ways of one model, interleaved."""
    models, plans, inputs = variants(name)
    expected = bits(models[BASE], inputs)
    exact = {
        way: all(torch.equal(a, b) for a, b in zip(expected, bits(model, inputs), strict=True))
        for way, model in models.items()
    }
    peaks = {way: measure_activations(model, inputs, loss)[1] for way, model in models.items()}
    steps = {way: step(model, inputs) for way, model in models.items()}
    _, ratios = interleave(steps, BASE, rounds=rounds, warm=1, clock=clock)
    return [
        Row(
            name,
            way,
            ratios.get(way),
            plans[way].overhead if way in plans else None,
            peaks[way] / peaks[BASE],
            exact[way],
        )
        for way in models
    ]


def page(rows: Sequence[Row], command: str, clock: str) -> str:
    """The Markdown page."""
    cells = [
        (
            row.model,
            row.way,
            "1" if row.ratio is None else str(row.ratio),
            "" if row.predicted is None else f"{row.predicted:.3f}",
            aim_of(row),
            f"{row.peak:.3f}",
            "yes" if row.exact else "**no**",
        )
        for row in rows
    ]
    head = ("model", "way", "time", "predicted", "aim", "activation peak", "exact")
    rounds = next(row.ratio.rounds for row in rows if row.ratio is not None)
    return "\n".join(
        [
            "# A training step under a memory budget",
            "",
            f"Command: `{command}`",
            "",
            f"Versions: {version_list()}; CPU, {torch.get_num_threads()} thread.",
            "",
            "A step is forward and backward; ResNet-50 on 4 images of 160 px, ViT-B/16 on 4 of 224",
            f"px. Time is {clock}, a ratio to the mean of the plain steps just before and after,",
            f"the median of {rounds} rounds ± half the distance of the quartiles. The peak is that",
            "of live tensor bytes without the gradients of parameters. Exact: gradients and",
            "buffers are bit for bit those of the plain step.",
            "",
            *table(head, cells),
            "",
        ]
    )


def aim_of(row: Row) -> str:
    """What the project set out to take."""
    if row.predicted is None:
        return ""
    share = int(row.way.split()[1].removesuffix("%"))
    return f"{AIMS[row.model, share]:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget_time", description=__doc__)
    parser.add_argument("--only", choices=sorted(MODELS), action="append")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that is not idle")
    parser.add_argument("--output", type=Path, default=RESULTS / "budget_time.md")
    options = parser.parse_args(arguments)
    clock = time.process_time if options.cpu_time else time.perf_counter
    names = options.only or list(MODELS)
    rows = [row for name in names for row in measure(name, options.rounds, clock)]
    told = "CPU seconds" if options.cpu_time else "wall clock"
    options.output.write_text(page(rows, command_line("budget_time", arguments), told))
    print(options.output)
    ours = [row for row in rows if row.predicted is not None]
    met = all(100 * row.peak <= int(row.way.split()[1].removesuffix("%")) for row in ours)
    return 0 if met and all(row.exact for row in ours) else 1


if __name__ == "__main__":
    sys.exit(main())
