"""Step time of networks that fail as written, mended by conversion and by hand.

Example:
    Both networks, 41 rounds, table in ``benchmarks/results/mended_step.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.mended_step

Exit status: 1 if ``inplace="unsafe"`` takes more than ``--limit`` of the hand-mended step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import safemodules as sm
from benchmarks.memory import measure_step
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.step_time import HAND, MIB, loss, step
from benchmarks.timing import Ratio, interleave

UNSAFE = 'inplace="unsafe"'


class Gated(nn.Module):
    """The sum overwrites what the sigmoid has kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.conv(x))
        y += x
        return y


class GatedByHand(Gated):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.conv(x))
        return y + x


class Coupled(Gated):
    """A write through a view, which the base is read for afterwards: it has to stay."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.conv(x))
        half = y[:, : y.shape[1] // 2]
        half += 1
        return y


class CoupledByHand(Coupled):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.conv(x)).clone()
        half = y[:, : y.shape[1] // 2]
        half += 1
        return y


NETS = {
    "an overwritten result, 12 blocks": (Gated, GatedByHand),
    "a write through a view, 12 blocks": (Coupled, CoupledByHand),
}


def build(block: type[Gated], width: int = 32, depth: int = 12) -> nn.Module:
    """A network of blocks, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *(block(width) for _ in range(depth)))


def measure(name: str, rounds: int) -> tuple[float, dict[str, Ratio], dict[str, int]]:
    """Time all variants, interleaved; seconds by hand, ratios and peak bytes."""
    torch.manual_seed(1)
    inputs = torch.randn(4, 3, 64, 64)
    block, by_hand = NETS[name]
    models = {
        HAND: build(by_hand),
        "by hand again (noise)": build(by_hand),
        UNSAFE: sm.convert_model(build(block), inputs, inplace="unsafe"),
        'inplace="all"': sm.convert_model(build(block), inputs),
    }
    outputs = [model(inputs) for model in models.values()]
    assert all(torch.equal(outputs[0], output) for output in outputs)
    steps: dict[str, Callable[[], None]] = {k: step(m, inputs) for k, m in models.items()}
    steps["allow_mutation_on_saved_tensors"] = allowed(step(build(block), inputs))
    seconds, ratios = interleave(steps, HAND, rounds=rounds)
    peaks = {key: measure_step(model, inputs, loss)[1] for key, model in models.items()}
    return seconds, ratios, peaks


def allowed(run: Callable[[], None]) -> Callable[[], None]:
    """The original's step, under torch's own way to let it run."""

    def inside() -> None:
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            run()

    return inside


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mended_step")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--limit", type=float, default=1.01)
    parser.add_argument("--output", type=Path, default=RESULTS / "mended_step.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    body, over = [], False
    for name in NETS:
        seconds, ratios, peaks = measure(name, options.rounds)
        over = over or ratios[UNSAFE].median > options.limit
        for variant, ratio in ratios.items():
            peak = f"{peaks[variant] / MIB:.2f}" if variant in peaks else ""
            body.append((name, f"{1e3 * seconds:.1f}", variant, str(ratio), peak))
            print(*body[-1], flush=True)
        body.append((name, f"{1e3 * seconds:.1f}", HAND, "1", f"{peaks[HAND] / MIB:.2f}"))
    command = command_line("mended_step", arguments)
    known = version_list()
    lines = [
        "# Step time of networks that fail as written",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {known}; CPU, 1 thread.",
        "",
        "Each run is divided by the mean of the hand-mended runs just before and after it; median",
        f"of {options.rounds} rounds, ± half the distance of the quartiles. Peak: live bytes of",
        "storages beyond parameters and input.",
        "",
        *table(("network", "by hand ms", "variant", "of by hand", "peak MiB"), body),
    ]
    options.output.write_text("\n".join(lines) + "\n")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
