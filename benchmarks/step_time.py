"""Step time and peak memory of a converted model against the model edited by hand.

Example:
    All models, 41 rounds, table in ``benchmarks/results/step_time.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.step_time

Exit status: 1 if a converted model takes more than ``--limit`` of the hand-edited one's time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.hand_edits import MODELS, build, edit_by_hand
from benchmarks.memory import measure_step
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.timing import Ratio, interleave

HAND = "edited by hand"
CONVERTED = "converted"
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One model: seconds of the hand-edited step, and each variant against it."""

    model: str
    seconds: float
    ratios: dict[str, Ratio]
    memory: dict[str, tuple[int, int]]


def loss(output: Tensor) -> Tensor:
    """The sum, so that the step is the model's own work."""
    return output.sum()


def step(
    model: nn.Module, inputs: Tensor, loss_fn: Callable[..., Tensor] = loss
) -> Callable[[], None]:
    """One forward and backward."""

    def run() -> None:
        model.zero_grad(set_to_none=True)
        loss_fn(model(inputs)).backward()

    return run


def seeded(model: nn.Module, inputs: Tensor) -> Tensor:
    """The output from one seed, since dropout draws."""
    torch.manual_seed(0)
    output: Tensor = model(inputs)
    return output


def measure(name: str, rounds: int) -> Row:
    """Time all variants of one model, interleaved."""
    import safemodules

    inputs = build(name)[1]
    models = {
        HAND: edit_by_hand(build(name)[0]),
        "edited by hand again (noise)": edit_by_hand(build(name)[0]),
        CONVERTED: safemodules.convert_model(build(name)[0], example_inputs=inputs),
        "original": build(name)[0],
    }
    outputs = [seeded(model, inputs) for model in models.values()]
    if not all(torch.equal(outputs[0], output) for output in outputs):
        raise AssertionError(f"{name}: the variants do not compute the same")
    seconds, ratios = interleave(
        {key: step(model, inputs) for key, model in models.items()}, HAND, rounds=rounds
    )
    memory = {key: measure_step(model, inputs, loss) for key, model in models.items()}
    return Row(name, seconds, ratios, memory)


def page(rows: Sequence[Row], command: str) -> str:
    """The Markdown page."""
    pairs = version_list()
    first = rows[0].ratios
    names = list(first)
    header = ["model", "input", "by hand ms", *names, *(f"peak MiB {n}" for n in rows[0].memory)]
    body = [
        [
            row.model,
            "x".join(map(str, MODELS[row.model][1])),
            f"{1e3 * row.seconds:.1f}",
            *(str(row.ratios[name]) for name in names),
            *(f"{peak / MIB:.2f}" for _, peak in row.memory.values()),
        ]
        for row in rows
    ]
    lines = [
        "# Step time of a converted model against the model edited by hand",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {pairs}; CPU, {torch.get_num_threads()} thread(s).",
        "",
        "Each run is divided by the mean of the hand-edited runs just before and after it;",
        f"median of {first[names[0]].rounds} rounds, ± half the distance between the quartiles.",
        "A step is forward and backward of the sum. Peak: live storage bytes beyond parameters,",
        "buffers and input, gradients included.",
        "",
        *table(header, body),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_time")
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.01, help="largest good ratio")
    parser.add_argument("--output", type=Path, default=RESULTS / "step_time.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.only:
        rows.append(measure(name, options.rounds))
        text = ", ".join(f"{key} {ratio}" for key, ratio in rows[-1].ratios.items())
        print(f"{name}: by hand {1e3 * rows[-1].seconds:.1f} ms; {text}", flush=True)
    command = command_line("step_time", arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page(rows, command))
    slow = [row.model for row in rows if row.ratios[CONVERTED].median > options.limit]
    if slow:
        print(f"over {options.limit}: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
