"""Step time against peak memory: budgets, and what people choose to checkpoint by hand.

Example:
    Five models, with table and picture in ``benchmarks/results/budget_front``::

        OMP_NUM_THREADS=1 python -m benchmarks.budget_front

Exit status: 1 if a step under a budget is over it, or does not compute what the plain one does.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint_sequential

import safemodules as sm
from benchmarks.budget_time import BASE, NOISE, bits
from benchmarks.charts import Point, front_chart
from benchmarks.memory import measure_activations
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.step_time import loss, step
from benchmarks.timing import Ratio, interleave

SHARES = (80, 65, 50, 35)
SEGMENTS = (2, 4, 8)


@dataclass(frozen=True)
class Model:
    """A model, and what of it people checkpoint.

    Attributes:
        make: makes it.
        shape: sizes of its input.
        block: name of the class of its blocks.
        chain: path of the Sequential that ``checkpoint_sequential`` is given, if there is one.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    block: str
    chain: str = ""


def torchvision_model(name: str, **options: Any) -> nn.Module:
    """A model of torchvision, without weights."""
    import torchvision

    model: nn.Module = getattr(torchvision.models, name)(**options)
    return model


def unet() -> nn.Module:
    """A U-Net with a ResNet-34 as its encoder."""
    import segmentation_models_pytorch

    model: nn.Module = segmentation_models_pytorch.Unet("resnet34", encoder_weights=None)
    return model


MODELS = {
    "resnet50": Model(lambda: torchvision_model("resnet50"), (4, 3, 128, 128), "Bottleneck"),
    "densenet121": Model(
        lambda: torchvision_model("densenet121"), (4, 3, 128, 128), "_DenseLayer", "features"
    ),
    "U-Net (resnet34)": Model(unet, (2, 3, 128, 128), "BasicBlock|UnetDecoderBlock"),
    "vit_b_16": Model(
        lambda: torchvision_model("vit_b_16", image_size=128),
        (4, 3, 128, 128),
        "EncoderBlock",
        "encoder.layers",
    ),
    "swin_t": Model(
        lambda: torchvision_model("swin_t"), (4, 3, 128, 128), "SwinTransformerBlock", "features"
    ),
}


@dataclass(frozen=True)
class Row:
    """One way of running a step.

    Attributes:
        model: the model.
        way: how it is run.
        own: whether it is a budget's.
        time: against that of the plain step.
        peak: of the activations, against the plain step's.
        exact: whether gradients and buffers are those of the plain step, bit for bit.
    """

    model: str
    way: str
    own: bool
    time: Ratio
    peak: float
    exact: bool


@dataclass(frozen=True)
class Failure:
    """A peer that raises.

    Attributes:
        model: the model.
        way: how it is run.
        error: what it says.
    """

    model: str
    way: str
    error: str


class Segmented(nn.Sequential):
    """A Sequential that runs in segments, each checkpointed but the last."""

    segments = 2

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as Sequential calls it
        """As ``checkpoint_sequential`` does."""
        children = nn.Sequential(*self)
        found: Tensor = checkpoint_sequential(children, self.segments, input, use_reentrant=False)
        return found


def wrapped(model: nn.Module, block: str, chosen: Callable[[int, int], bool]) -> nn.Module:
    """Torch's checkpoint around some of the blocks, as its CheckpointWrapper puts it."""
    names = block.split("|")
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    some = {id(each) for number, each in enumerate(blocks) if chosen(number, len(blocks))}
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=functools.partial(
            checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT
        ),
        check_fn=lambda module: id(module) in some,
    )
    return model


CHOICES: dict[str, Callable[[int, int], bool]] = {
    "every block": lambda number, count: True,
    "three quarters of the blocks": lambda number, count: number < 3 * count // 4,
    "the first half": lambda number, count: number < count // 2,
    "every second block": lambda number, count: number % 2 == 0,
    "the first quarter": lambda number, count: number < count // 4,
}


def peers(model: Model, base: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What people choose."""
    for name, chosen in CHOICES.items():
        yield f"checkpoint: {name}", wrapped(copy.deepcopy(base), model.block, chosen)
    thrifty = copy.deepcopy(base)
    able = [module for module in thrifty.modules() if hasattr(module, "memory_efficient")]
    for module in able:
        module.memory_efficient = True  # torchvision's own checkpoint of a DenseNet
    if able:
        yield "memory_efficient=True", thrifty
    for segments in SEGMENTS if model.chain else ():
        segmented = copy.deepcopy(base)
        chain = segmented.get_submodule(model.chain)
        assert type(chain) is nn.Sequential
        chain.__class__, chain.segments = Segmented, segments
        yield f"checkpoint_sequential: {segments}", segmented


def measure(name: str, rounds: int, clock: Callable[[], float]) -> Iterator[Row | Failure]:
    """Time all ways of one model, interleaved."""
    model = MODELS[name]
    torch.manual_seed(0)
    inputs = torch.randn(model.shape)
    base = sm.convert_model(model.make(), inputs, checkpoint=False)
    ways: dict[str, nn.Module] = {BASE: base, NOISE: copy.deepcopy(base)}
    shares: dict[str, int] = {}
    for share in SHARES:
        started = time.perf_counter()
        try:
            plan = sm.plan_checkpoints(copy.deepcopy(base), inputs, f"{share}% of activations")
        except sm.BudgetError as error:
            print(f"{name}: {error}", flush=True)
            continue
        seconds = time.perf_counter() - started
        print(f"{name}: {plan.summary()}, in {seconds:.0f} s", flush=True)
        shares[f"memory_budget {share}%"] = share
        ways[f"memory_budget {share}%"] = sm.convert_model(
            copy.deepcopy(base), inputs, checkpoint=plan
        )
    ways.update(peers(model, base))
    expected = bits(base, inputs)
    exact: dict[str, bool] = {}
    for way, each in list(ways.items()):
        try:
            exact[way] = all(map(torch.equal, expected, bits(each, inputs)))
        except Exception as error:  # of a peer; it is told on the page
            assert way not in shares
            del ways[way]
            yield Failure(name, way, f"{type(error).__name__}: {error}".splitlines()[0])
    peaks = {way: measure_activations(each, inputs, loss)[1] for way, each in ways.items()}
    steps = {way: step(each, inputs) for way, each in ways.items()}
    _, ratios = interleave(steps, BASE, rounds=rounds, warm=1, clock=clock)
    for way, ratio in ratios.items():
        peak = peaks[way] / peaks[BASE]
        own = way in shares
        if own and (not exact[way] or 100 * peak > shares[way]):
            raise SystemExit(f"{name}, {way}: exact is {exact[way]}, the peak is {peak:.3f}")
        yield Row(name, way, own, ratio, peak, exact[way])


def read(stored: Path) -> tuple[list[Row], list[Failure], list[str]]:
    """What earlier runs have found."""
    data = json.loads(stored.read_text())
    rows = [Row(**{**row, "time": Ratio(**row["time"])}) for row in data["rows"]]
    return rows, [Failure(**failure) for failure in data["failures"]], data["commands"]


def page(
    rows: Sequence[Row],
    failures: Sequence[Failure],
    commands: Sequence[str],
    clock: str,
    picture: str,
) -> str:
    """The Markdown page."""
    cells = [
        (row.model, row.way, str(row.time), f"{row.peak:.3f}", "yes" if row.exact else "**no**")
        for row in rows
    ]
    beaten = [(peer, _best_under(rows, peer)) for peer in rows if _is_peer(peer)]
    better = sum(ours is not None and ours.time.median < peer.time.median for peer, ours in beaten)
    rivals = sum(ours is not None for _, ours in beaten)
    return "\n".join(
        [
            "# Step time against peak memory",
            "",
            f"Command: {', then '.join(f'`{command}`' for command in commands)}",
            "",
            f"Versions: {version_list()}; CPU, {torch.get_num_threads()} thread.",
            "",
            "A step is forward and backward, of the model out of place; U-Net on 2 images of 128",
            f"px, the others on 4. Time is {clock}, a ratio to the mean of the plain steps just",
            f"before and after, the median of {rows[0].time.rounds} rounds ± half the distance of",
            "the quartiles. The peak is that of live tensor bytes without the gradients of",
            "parameters, a share of the plain step's. Exact: gradients and buffers are bit for",
            "bit those of the plain step. `checkpoint` is torch's CheckpointWrapper around blocks,",
            "which is also what timm's `set_grad_checkpointing` does around each.",
            "",
            f"Of {rivals} peers for which a budget was tried that needs no more memory, {better}",
            "take longer than it.",
            "",
            f"![Step time against peak memory, a panel for each model]({picture})",
            "",
            *table(("model", "way", "time", "activation peak", "exact"), cells),
            "",
            *(f"- {failure.model}, {failure.way} raises: {failure.error}" for failure in failures),
            "",
        ]
    )


def _is_peer(row: Row) -> bool:
    return not row.own and row.way != NOISE


def _best_under(rows: Sequence[Row], peer: Row) -> Row | None:
    """The fastest budget that needs no more memory than a peer."""
    fitting = [row for row in rows if row.own and row.model == peer.model]
    under = [row for row in fitting if row.peak <= peer.peak]
    return min(under, key=lambda row: row.time.median, default=None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget_front", description=__doc__)
    parser.add_argument("--only", choices=sorted(MODELS), action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--update", action="store_true", help="keep the other models")
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that is not idle")
    parser.add_argument("--output", type=Path, default=RESULTS / "budget_front.md")
    options = parser.parse_args(arguments)
    clock = time.process_time if options.cpu_time else time.perf_counter
    told = "CPU seconds" if options.cpu_time else "wall clock"
    picture = options.output.with_suffix(".svg")
    stored = options.output.with_suffix(".json")
    rows, failures, commands = read(stored) if options.update else ([], [], [])
    commands.append(command_line("budget_front", arguments))
    for name in options.only or list(MODELS):
        found = list(measure(name, options.rounds, clock))
        rows = [row for row in rows if row.model != name]
        rows += [row for row in found if isinstance(row, Row)]
        failures = [failure for failure in failures if failure.model != name]
        failures += [failure for failure in found if isinstance(failure, Failure)]
        data = {"rows": rows, "failures": failures, "commands": commands}
        stored.write_text(json.dumps(data, default=asdict, indent=1) + "\n")
        points = [
            Point(row.model, row.way, row.peak, row.time.median, row.own)
            for row in rows
            if row.way != NOISE
        ]
        picture.write_text(front_chart("Step time against peak memory", points))
        options.output.write_text(page(rows, failures, commands, told, picture.name))
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
