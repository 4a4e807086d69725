"""Step time and peak memory of exact checkpointing against torch's own, and against its peers.

Example:
    Both models, table in ``benchmarks/results/checkpoint_time.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.checkpoint_time

Exit status: 1 if ``safemodules.checkpoint`` takes more than ``--limit`` of the time of torch's
non-reentrant checkpoint, or has a higher peak.
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
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.memory import measure_step
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.step_time import loss, step
from benchmarks.timing import Ratio, interleave
from safemodules import CheckpointedSeq
from safemodules import checkpoint as exact

BASE = "torch's checkpoint per block"
NOISE = f"{BASE}, again"
OURS = "safemodules.checkpoint per block"
MIB = 2**20
Run = Callable[[nn.Sequential, Tensor], Tensor]


class Chain(nn.Module):
    """A model of a stem, blocks and a head; only the blocks are checkpointed.

    Args:
        stem: what comes first.
        blocks: the blocks.
        head: what comes last.
        run: how the blocks are run.
    """

    def __init__(self, stem: nn.Module, blocks: nn.Sequential, head: nn.Module, run: Run) -> None:
        super().__init__()
        self.stem, self.blocks, self.head, self.run = stem, blocks, head, run

    def forward(self, x: Tensor) -> Tensor:
        """The whole model."""
        out: Tensor = self.head(self.run(self.blocks, self.stem(x)))
        return out


class Embedding(nn.Module):
    """What a vision transformer does before its blocks."""

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of sizes (N, L, C) from images of sizes (N, 3, H, W)."""
        x = self.vit._process_input(x)
        x = torch.cat([self.vit.class_token.expand(len(x), -1, -1), x], dim=1)
        out: Tensor = self.vit.encoder.dropout(x + self.vit.encoder.pos_embedding)
        return out


class First(nn.Module):
    """The first token."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, C) -> (N, C)."""
        return x[:, 0]


def resnet50() -> tuple[nn.Module, nn.Sequential, nn.Module]:
    """Stem, 16 bottlenecks, head."""
    import torchvision

    net = torchvision.models.resnet50()
    stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    blocks = nn.Sequential(*net.layer1, *net.layer2, *net.layer3, *net.layer4)
    return stem, blocks, nn.Sequential(net.avgpool, nn.Flatten(), net.fc)


def vit_b_16(side: int) -> tuple[nn.Module, nn.Sequential, nn.Module]:
    """Stem, 12 encoder blocks, head."""
    import torchvision

    net = torchvision.models.vit_b_16(image_size=side)
    layers = nn.Sequential(*net.encoder.layers)
    head = nn.Sequential(net.encoder.ln, First(), net.heads)
    net.encoder.layers, net.heads = nn.Sequential(), nn.Identity()
    net.encoder.ln = nn.Identity()
    return Embedding(net), layers, head


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "resnet50": (resnet50, (4, 3, 160, 160)),
    "vit_b_16": (functools.partial(vit_b_16, 112), (4, 3, 112, 112)),
}


def each(run: Callable[..., Tensor]) -> Run:
    """Run every block by a checkpoint function."""

    def blocks(seq: nn.Sequential, x: Tensor) -> Tensor:
        for block in seq:
            x = run(block, x)
        return x

    return blocks


def plain(seq: nn.Sequential, x: Tensor) -> Tensor:
    """Run the blocks as they are."""
    out: Tensor = seq(x)
    return out


def timm_seq(seq: nn.Sequential, x: Tensor) -> Tensor:
    """Timm's ``checkpoint_seq``, one block at a time."""
    from timm.models import checkpoint_seq

    out: Tensor = checkpoint_seq(seq, x, every=1)
    return out


def wrapped_by_torch(chain: Chain) -> Chain:
    """Put torch's CheckpointWrapper around every block."""
    blocks = set(chain.blocks)
    apply_activation_checkpointing(chain, check_fn=lambda module: module in blocks)
    return chain


def as_seq(segments: Any) -> Callable[[Chain], Chain]:
    """Make the blocks a ``CheckpointedSeq``."""

    def wrap(chain: Chain) -> Chain:
        CheckpointedSeq.wrap(chain.blocks, segments=segments)
        return chain

    return wrap


def variants(parts: tuple[nn.Module, nn.Sequential, nn.Module]) -> dict[str, Chain]:
    """The same model, checkpointed in every way; each has parameters of its own."""
    again = functools.partial(checkpoint, use_reentrant=False)

    def make(run: Run, change: Callable[[Chain], Chain] = lambda chain: chain) -> Chain:
        return change(Chain(*copy.deepcopy(parts), run))

    def sequential(k: int) -> Run:
        return lambda seq, x: checkpoint_sequential(seq, k, x, use_reentrant=False)

    return {
        BASE: make(each(again)),
        NOISE: make(each(again)),
        OURS: make(each(exact)),
        "no checkpoint": make(plain),
        "CheckpointedSeq": make(plain, as_seq(None)),
        'CheckpointedSeq, "sqrt"': make(plain, as_seq("sqrt")),
        'CheckpointedSeq, "log"': make(plain, as_seq("log")),
        "checkpoint_sequential, 4": make(sequential(4)),
        "CheckpointWrapper": make(plain, wrapped_by_torch),
        "timm's checkpoint_seq": make(timm_seq),
    }


@dataclass(frozen=True)
class Row:
    """One variant of one model.

    Attributes:
        model: the model.
        variant: how it is checkpointed.
        ratio: its time over that of the base; None for the base itself.
        saved: bytes that forward leaves.
        peak: largest live bytes in a step.
        is_exact: whether gradients and buffers are those of the model without a checkpoint.
    """

    model: str
    variant: str
    ratio: Ratio | None
    saved: int
    peak: int
    is_exact: bool


def state_after_a_step(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Gradients, and buffers."""
    model = copy.deepcopy(model)
    torch.manual_seed(0)
    step(model, inputs)()
    return [p.grad for p in model.parameters() if p.grad is not None] + list(model.buffers())


def measure(name: str, rounds: int, peers: int) -> tuple[float, list[Row]]:
    """Time all variants of one model, interleaved; returns the base's seconds too."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    chains = variants(make())
    inputs = torch.randn(shape)
    expected = state_after_a_step(chains["no checkpoint"], inputs)
    exact_ones = {
        key
        for key, chain in chains.items()
        if all(map(torch.equal, state_after_a_step(chain, inputs), expected))
    }
    steps: dict[str, Callable[[], object]] = {
        key: step(chain, inputs) for key, chain in chains.items()
    }
    main = {key: steps[key] for key in (BASE, NOISE, OURS)}
    seconds, ratios = interleave(main, BASE, rounds=rounds, warm=1, clock=time.process_time)
    rest = {key: value for key, value in steps.items() if key not in (NOISE, OURS)}
    ratios |= interleave(rest, BASE, rounds=peers, warm=1, clock=time.process_time)[1]
    rows = []
    for key, chain in chains.items():
        same = key in exact_ones
        saved, peak = measure_step(chain, inputs, loss)
        rows.append(Row(name, key, ratios.get(key), saved, peak, same))
        print(f"{name}: {key}: {ratios.get(key)}, peak {peak / MIB:.1f} MiB, {same}", flush=True)
    return seconds, rows


def page(found: dict[str, tuple[float, list[Row]]], shapes: dict[str, str], command: str) -> str:
    """The Markdown page."""
    pairs = version_list()
    lines = [
        "# Step time and peak of exact checkpointing",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {pairs}; CPU, {torch.get_num_threads()} thread(s).",
        "",
        "CPU seconds: each run is divided by the mean of the runs of torch's own checkpoint",
        "(non-reentrant, one region per block) just before and after it; median, ± half the",
        "distance between the quartiles. A step is forward and backward of the sum. *peak*: live",
        "storage bytes beyond parameters, buffers and input, gradients included; *saved*: what",
        "forward leaves of them.",
        "*exact*: gradients and buffers are, bit for bit, those without a checkpoint.",
    ]
    for name, (seconds, rows) in found.items():
        lines += ["", f"## {name}, {shapes[name]}", ""]
        lines += [f"{BASE}: {1e3 * seconds:.0f} ms.", ""]
        body = [
            [
                row.variant,
                "1" if row.ratio is None else str(row.ratio),
                "" if row.ratio is None else str(row.ratio.rounds),
                f"{row.saved / MIB:.1f}",
                f"{row.peak / MIB:.1f}",
                "yes" if row.is_exact else "**no**",
            ]
            for row in rows
        ]
        lines += table(["", "time", "rounds", "saved MiB", "peak MiB", "exact"], body)
    return "\n".join(lines) + "\n"


def failures(rows: Sequence[Row], limit: float) -> list[str]:
    """What is worse than it should be."""
    by_name = {row.variant: row for row in rows}
    ours, base = by_name[OURS], by_name[BASE]
    assert ours.ratio is not None
    found = []
    if ours.ratio.median > limit:
        found.append(f"{ours.model}: {ours.ratio} of the time of torch's checkpoint")
    # what is copied of buffers is not in torch's peak: less than a hundredth
    if ours.peak > 1.01 * base.peak:
        found.append(f"{ours.model}: peak of {ours.peak} bytes, torch's has {base.peak}")
    if not ours.is_exact:
        found.append(f"{ours.model}: not exact")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_time")
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=31, help="for the two that are compared")
    parser.add_argument("--peers", type=int, default=7, help="rounds for the others")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.03, help="largest good ratio")
    parser.add_argument("--output", type=Path, default=RESULTS / "checkpoint_time.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    command = command_line("checkpoint_time", arguments)
    found, shapes = {}, {}
    for name in options.only:
        found[name] = measure(name, options.rounds, options.peers)
        shapes[name] = "x".join(map(str, MODELS[name][1]))
        options.output.write_text(page(found, shapes, command))
    bad = [line for _, rows in found.values() for line in failures(rows, options.limit)]
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
