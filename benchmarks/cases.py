"""A case: how to build one model with random weights, and what to feed it."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

Mode = Literal["train", "eval"]
MODES: tuple[Mode, Mode] = ("train", "eval")
SUITES = ("torchvision", "timm", "smp", "transformers")
DATA = Path(__file__).parent / "data"

MODEL_SEED = 0
INPUT_SEED = 1
RUN_SEED = 2
LOSS_SEED = 3

# A pass is the original and the converted model, each in train and in eval mode.
HEAVY_PASS_SECONDS = 3.0


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a model."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


Inputs = Callable[[Mode, torch.Generator], Call]


@dataclass(frozen=True)
class Case:
    """One model of the zoo.

    Attributes:
        name: Unique name, ``suite/model``.
        factory: Builds the model; its random weights come from the global generators.
        inputs: Makes the arguments of a call from a mode and a seeded generator.
        modes: The modes in which the model can be run.
        gradients: The modes in which it can be differentiated.
        input_grads: Whether the gradients of the float inputs are compared too.
        note: What is special about the case, for the table.
    """

    name: str
    factory: Callable[[], nn.Module]
    inputs: Inputs
    modes: tuple[Mode, ...] = MODES
    gradients: tuple[Mode, ...] = MODES
    input_grads: bool = True
    note: str = ""

    @property
    def suite(self) -> str:
        """The part of the name before the slash."""
        return self.name.split("/", 1)[0]

    @property
    def seconds(self) -> float | None:
        """CPU seconds of one pass on one core, if the case has been measured."""
        return measured_seconds().get(self.name)

    @property
    def heavy(self) -> bool:
        """Whether one pass takes too long for a test suite."""
        return (self.seconds or 0.0) > HEAVY_PASS_SECONDS

    def build(self) -> nn.Module:
        """Build the model from the fixed seed, with no parameter left constant."""
        seed_everything(MODEL_SEED)
        with cheap_truncated_normal():
            model = self.factory()
        disperse_constant_parameters(model)
        return model

    def call(self, mode: Mode) -> Call:
        """Make the seeded arguments for a mode; every call makes new tensors."""
        generator = torch.Generator().manual_seed(INPUT_SEED)
        return self.inputs(mode, generator)


def seed_everything(seed: int) -> None:
    """Seed every generator that a model may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(seed)


@contextmanager
def cheap_truncated_normal() -> Iterator[None]:
    """Let truncated normal initialisation, torch's and timm's, draw uniformly instead.

    Both take the inverse error function of a uniform draw, which takes 30 s for the
    198 M weights of ``convnext_large``. Any random weights will do here.
    """
    original = Tensor.erfinv_
    Tensor.erfinv_ = lambda self: self  # type: ignore[method-assign, assignment, return-value]
    try:
        yield
    finally:
        Tensor.erfinv_ = original  # type: ignore[method-assign]


def disperse_constant_parameters(model: nn.Module) -> None:
    """Add seeded noise to every float parameter whose elements are all equal.

    A branch that ends in a scale of zero, as zoos initialise residual branches, multiplies
    whatever it computes by zero, and a difference inside it could not be seen.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            flat = parameter.reshape(-1)
            # The first few decide for nearly all; the rest is read only if they are equal.
            constant = len(flat) > 0 and all(
                bool((part == flat[0]).all()) for part in (flat[:8], flat)
            )
            if parameter.is_floating_point() and constant:
                noise = torch.randn_like(parameter)
                # One negative bias before a final ReLU would leave nothing to differentiate.
                parameter.add_(noise if len(flat) > 1 else noise.abs(), alpha=0.1)


@cache
def measured_seconds() -> dict[str, float]:
    """CPU seconds of one pass by case name, from the committed table."""
    path = DATA / "seconds.json"
    table: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return table


def load_suite(suite: str) -> list[Case]:
    """All cases of one suite; imports the libraries it needs."""
    if suite not in SUITES:
        raise ValueError(f"no suite {suite!r}; there are {', '.join(SUITES)}")
    module = importlib.import_module(f"benchmarks.models_{suite}")
    cases: list[Case] = module.cases()
    return cases


def load_case(name: str) -> Case:
    """The case of that name."""
    for case in load_suite(name.split("/", 1)[0]):
        if case.name == name:
            return case
    raise KeyError(name)


def select(cases: Iterable[Case], pattern: str) -> list[Case]:
    """The cases whose name, or whose name after the suite, matches a glob."""
    return [
        case
        for case in cases
        if fnmatchcase(case.name, pattern) or fnmatchcase(case.name.split("/", 1)[1], pattern)
    ]


def images(*shape: int) -> Inputs:
    """Inputs of one normally distributed tensor of a shape such as ``(N, C, H, W)``."""

    def inputs(mode: Mode, generator: torch.Generator) -> Call:
        return Call((torch.randn(shape, generator=generator),))

    return inputs


def tokens(vocabulary: int, *shape: int, generator: torch.Generator) -> Tensor:
    """Integer tokens of a shape such as ``(N, L)``, without the special ones below 3."""
    return torch.randint(3, vocabulary, shape, generator=generator)
