"""Peak memory, step time and gradients of AccumulatingLoop beside the other ways to write a loop.

Example:
    Everything, with the page ``benchmarks/results/loop.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.loop

Exit status: 1 if the peak at the largest number of iterations is more than 1.05 of that at one,
or gradients differ by more than 1e-6 from the naive loop's.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.loop_ways import (
    WAYS,
    Head,
    Step,
    extractor,
    head_ways,
    three_convolutions,
    tiny,
)
from benchmarks.memory import StorageCounter
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.timing import interleave

MB = 1e6
Case = tuple[str, Callable[[], nn.Module], tuple[int, ...], int]

# name, body, shape of an item, iterations of the timed step
CASES: tuple[Case, ...] = (
    ("three convolutions, 4 images of 96 px", three_convolutions, (4, 3, 96, 96), 8),
    ("six convolutions with batch norm, 8 images of 112 px", extractor, (8, 3, 112, 112), 4),
    ("six convolutions with batch norm, 4 images of 48 px", extractor, (4, 3, 48, 48), 16),
    ("two linear layers of 16, 8 rows", tiny, (8, 16), 64),
)
# The peaks of the other ways are measured up to 16 iterations.
FLAT = ("AccumulatingLoop",)


def items(shape: tuple[int, ...], count: int) -> Iterator[Tensor]:
    """Inputs made on the fly."""
    for number in range(count):
        yield torch.randn(shape, generator=torch.Generator().manual_seed(number))


def peak(step: Step, net: nn.Module, shape: tuple[int, ...], count: int) -> int:
    """Peak bytes of one step beyond parameters and buffers."""
    net.zero_grad(set_to_none=True)
    counter = StorageCounter([*net.parameters(), *net.buffers()])
    with counter:
        step(net, items(shape, count), count)
    net.zero_grad(set_to_none=True)
    return counter.peak


def gradient(step: Step, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Tensor:
    """The gradient of a step of 8 iterations from one seed."""
    torch.manual_seed(0)
    net = make()
    step(net, items(shape, 8), 8)
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).double()


def memory_rows(case: Case, counts: Sequence[int]) -> tuple[list[list[str]], float]:
    """Peaks of every way, and AccumulatingLoop's at the most iterations over that at one."""
    _, make, shape, _ = case
    rows = []
    ratio = 1.0
    for name, step in WAYS.items():
        limit = counts[-1] if name in FLAT else 16
        net = make()
        step(net, items(shape, 1), 1)
        peaks = [peak(step, net, shape, count) for count in counts if count <= limit]
        rows.append([name, *(f"{p / MB:.2f}" for p in peaks)])
        rows[-1] += [""] * (1 + len(counts) - len(rows[-1]))
        if name == "AccumulatingLoop":
            ratio = peaks[-1] / peaks[0]
        print(f"  {name}: {', '.join(rows[-1][1:])}", flush=True)
    return rows, ratio


def time_rows(case: Case, rounds: int) -> list[list[str]]:
    """Step times against the naive loop, and differences of gradients from it."""
    _, make, shape, count = case
    net = make()
    made = list(items(shape, count))

    def run(step: Step) -> None:
        net.zero_grad(set_to_none=True)
        step(net, made, count)

    variants = {name: functools.partial(run, step) for name, step in WAYS.items()}
    variants["naive again (noise)"] = variants["naive"]
    seconds, ratios = interleave(variants, "naive", rounds=rounds, warm=1, clock=time.process_time)
    base = gradient(WAYS["naive"], make, shape)
    rows = [["naive", f"{seconds * 1e3:.1f} ms", "0"]]
    for name, ratio in ratios.items():
        step = WAYS.get(name, WAYS["naive"])
        same = "logsumexp" not in name
        error = (gradient(step, make, shape) - base).norm() / base.norm() if same else None
        rows.append([name, str(ratio), "" if error is None else f"{error:.1e}"])
        print(f"  {name}: {ratio} {rows[-1][2]}", flush=True)
    return rows


def head_rows(rounds: int) -> list[list[str]]:
    """Peak and time of a language model's head, 1024 tokens of 128 numbers, 8192 words."""
    head, size = Head(128, 8192), 128
    hidden, target = torch.randn(1024, 128, requires_grad=True), torch.randint(8192, (1024,))
    ways = head_ways(size)

    def run(name: str) -> None:
        head.zero_grad(set_to_none=True)
        hidden.grad = None
        ways[name](head, hidden, target).backward()

    rows = []
    first = "all tokens at once"
    variants = {name: functools.partial(run, name) for name in ways}
    seconds, ratios = interleave(variants, first, rounds=rounds, warm=1, clock=time.process_time)
    for name in ways:
        run(name)
        head.zero_grad(set_to_none=True)
        hidden.grad = None
        counter = StorageCounter([*head.parameters(), hidden, target])
        with counter:
            ways[name](head, hidden, target).backward()
        duration = f"{seconds * 1e3:.1f} ms" if name == first else str(ratios[name])
        rows.append([name, f"{counter.peak / MB:.2f}", duration])
        print(f"  {name}: {rows[-1]}", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--counts", default="1,4,16,64,256", help="iterations for the peaks")
    parser.add_argument("--cases", default="0,1,2,3", help="numbers of the cases to run")
    parser.add_argument("--note", default="", help="a remark for the page")
    parser.add_argument("--output", type=Path, default=RESULTS / "loop.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    counts = [int(count) for count in options.counts.split(",")]
    known = version_list()
    lines = [
        "# Loops of losses: AccumulatingLoop beside the other ways",
        "",
        f"Command: `{command_line('loop', arguments)}`",
        "",
        f"Versions: {known}; CPU, one thread.",
        "",
        "A step is forward and backward of the mean of the losses. Peaks are live storage bytes",
        "beyond parameters and buffers, gradients included; inputs are made on the fly. Times are",
        "process times, each divided by the mean of the naive steps just before and after it;",
        "median ± half the distance between the quartiles. Gradients are compared with the naive",
        "loop's over 8 iterations (relative norm of the difference).",
    ]
    lines += ["", options.note] if options.note else []
    failed = False
    chosen = {int(number) for number in options.cases.split(",")}
    for number, case in enumerate(CASES):
        if number not in chosen:
            continue
        print(f"[{number + 1}/{len(CASES)}] {case[0]}", flush=True)
        few = [count for count in counts if number in (0, 2) or count <= 16] or counts[:1]
        rows, ratio = memory_rows(case, few)
        failed |= ratio > 1.05 and number < 2
        lines += ["", f"## {case[0]}", "", "Peak in MB for a number of iterations:", ""]
        lines += table(("way", *map(str, few)), rows)
        lines += ["", f"AccumulatingLoop at {few[-1]} iterations over one: {ratio:.3f}"]
        rows = time_rows(case, options.rounds)
        mine = next(row for row in rows if row[0] == "AccumulatingLoop")
        failed |= float(mine[2]) > 1e-6
        lines += ["", f"Time of a step of {case[3]} iterations against the naive loop:", ""]
        lines += table(("way", "time", "gradients differ by"), rows)
        options.output.write_text("\n".join(lines) + "\n")
    print("a head over a vocabulary", flush=True)
    lines += ["", "## Cross entropy over 8192 words, 1024 tokens in chunks of 128", ""]
    lines += table(("way", "peak MB", "time"), head_rows(options.rounds))
    options.output.write_text("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
