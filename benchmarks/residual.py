"""Peak memory and step time of 50 SafeResidual blocks against blocks that work in place.

Example:
    With the page ``benchmarks/results/residual.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.residual

Exit status: 1 if a network of SafeResidual has a higher peak than the one in place.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import safemodules as sm
from benchmarks.memory import StorageCounter, measure_step
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.timing import interleave

MB = 1e6
BLOCKS, WIDTH = 50, 16
ACTIVATIONS: dict[str, Callable[[bool], nn.Module]] = {
    "ReLU": nn.ReLU,
    "LeakyReLU": lambda inplace: nn.LeakyReLU(0.1, inplace),
    "ELU": lambda inplace: nn.ELU(1.0, inplace),
    "SiLU": nn.SiLU,
}


class InPlace(nn.Module):
    """``y += x`` and an activation in place."""

    def __init__(self, branch: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y: Tensor = self.branch(x)
        y += x
        return self.activation(y)


class OutOfPlace(InPlace):
    """The usual mend: both out of place."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        return self.activation(self.branch(x) + x)


def network(block: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    """50 blocks of a convolution with batch norm."""
    torch.manual_seed(0)
    branches = [
        nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH))
        for _ in range(BLOCKS)
    ]
    return nn.Sequential(*map(block, branches))


def networks(make: Callable[[bool], nn.Module]) -> dict[str, nn.Sequential]:
    """The three networks with one kind of activation."""
    return {
        "in place": network(lambda branch: InPlace(branch, make(True))),
        "out of place": network(lambda branch: OutOfPlace(branch, make(False))),
        "SafeResidual": network(lambda branch: sm.SafeResidual(branch, activation=make(True))),
    }


def inference_peak(net: nn.Module, x: Tensor) -> int:
    """Peak of a forward without gradients."""
    counter = StorageCounter([*net.parameters(), *net.buffers(), x])
    with torch.no_grad(), counter:
        net(x)
    return counter.peak


def step(net: nn.Module, x: Tensor) -> None:
    """Forward and backward."""
    net.zero_grad(set_to_none=True)
    net(x).square().mean().backward()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.residual")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--note", default="", help="a remark for the page")
    parser.add_argument("--output", type=Path, default=RESULTS / "residual.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    x = torch.randn(4, WIDTH, 32, 32)
    rows, failed = [], False
    for activation, make in ACTIVATIONS.items():
        nets = networks(make)
        peaks = {n: measure_step(net, x, lambda y: y.square().mean()) for n, net in nets.items()}
        variants = {name: functools.partial(step, net, x) for name, net in nets.items()}
        _, ratios = interleave(
            variants, "in place", rounds=options.rounds, warm=1, clock=time.process_time
        )
        failed |= peaks["SafeResidual"][1] > peaks["in place"][1]
        for name, net in nets.items():
            saved, peak = peaks[name]
            seconds = "1" if name == "in place" else str(ratios[name])
            forward = inference_peak(net, x)
            rows.append(
                [activation, name, *(f"{b / MB:.3f}" for b in (saved, peak, forward)), seconds]
            )
            print(rows[-1], flush=True)
    known = version_list()
    lines = [
        f"# {BLOCKS} residual blocks",
        "",
        f"Command: `{command_line('residual', arguments)}`",
        "",
        f"Versions: {known}; CPU, one thread.",
        "",
        f"Blocks of a convolution with batch norm, {WIDTH} channels, on {tuple(x.shape)}. Bytes of",
        "live storages beyond parameters, buffers and input: left for backward, peak of a training",
        "step, peak of a forward without gradients. Times are process times over the network in",
        "place, median ± half the distance between the quartiles.",
        *(["", options.note] if options.note else []),
        "",
        *table(("activation", "block", "saved MB", "peak MB", "forward MB", "time"), rows),
    ]
    options.output.write_text("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
