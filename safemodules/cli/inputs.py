"""SHAPE and DTYPE: how example inputs are named on the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from safemodules.cli.command import UsageError

#: Shown in ``--help`` and in errors.
SHAPE_FORMS = "sizes joined by 'x' or ',' with an optional dtype, as in 2x3x64x64 or 1,16:int64"


def add_input_argument(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare ``--input``, which may be given several times."""
    parser.add_argument(
        "--input",
        metavar="SHAPE",
        action="append",
        required=required,
        default=None if required else [],
        help=f"shape of an example input, one for each argument of forward: {SHAPE_FORMS}",
    )


@dataclass(frozen=True)
class InputSpec:
    """Shape of one example input, and its dtype where it has one of its own."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


def parse_input(text: str) -> InputSpec:
    """Read ``2x3x64x64``, ``1,3,64,64`` or ``1x16:int64``.

    Raises:
        UsageError: If ``text`` is none of these.

    Example:
        >>> parse_input("2x3x8x8").shape
        (2, 3, 8, 8)
        >>> parse_input("1,16:int64").dtype
        torch.int64
    """
    shape, colon, dtype = text.partition(":")
    if not re.fullmatch(r"\d+([x,]\d+)*", shape):
        raise UsageError(f"input {text!r} is not a shape; expected {SHAPE_FORMS}")
    sizes = tuple(int(size) for size in re.split("[x,]", shape))
    return InputSpec(sizes, parse_dtype(dtype) if colon else None)


def parse_dtype(text: str) -> torch.dtype:
    """Return the ``torch.dtype`` called ``text``.

    Raises:
        UsageError: If torch has no such dtype.

    Example:
        >>> parse_dtype("torch.float64")
        torch.float64
    """
    dtype = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"{text!r} is not a dtype; expected a name of torch such as float32, "
            "float64, bfloat16 or int64"
        )
    return dtype


def make_inputs(
    specs: Sequence[InputSpec], dtype: torch.dtype, *, seed: int = 0
) -> tuple[torch.Tensor, ...]:
    """Return one tensor for each spec, the same ones for the same ``seed``.

    Args:
        specs: Shapes, in the order of forward's arguments.
        dtype: For the inputs whose spec names none.
        seed: Of a generator of its own; the global one is not touched.

    Returns:
        Normal values for floating and complex dtypes, 0 or 1 for the others: an index that
        every embedding with two rows or more accepts.
    """
    generator = torch.Generator().manual_seed(seed)
    return tuple(_make_input(spec.shape, spec.dtype or dtype, generator) for spec in specs)


def _make_input(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        drawn = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=drawn).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)
