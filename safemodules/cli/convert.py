"""``safemodules convert TARGET``: what a conversion would change, and that it holds."""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn

import safemodules as sm
from safemodules.cli.command import Command, ExitCode, UsageError
from safemodules.cli.console import Console
from safemodules.cli.inputs import add_input_argument, make_inputs, parse_dtype, parse_input
from safemodules.cli.targets import TARGET_FORMS, load_target

DETAILS = """\
Prints every in-place site that forward reaches: module, file and line, what would become of
it, and why; and which loop bodies and modules would be checkpointed. No file is changed. With
--input the model is also converted, run, and compared with the original: outputs, gradients,
buffers and random state, bit for bit. --json prints the plan with its diff.

Exit code 0: no in-place site was found. 1: there are some, swapped or kept, or the conversion
was refused. 2: wrong use."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help=TARGET_FORMS)
    add_input_argument(parser, required=False)
    parser.add_argument(
        "--dtype",
        help="dtype of the inputs that name none, and of the model's floating-point tensors",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        action="append",
        help="'loops' (the default), 'none', or the dotted name of a module that is checkpointed "
        "whenever it is called; may be given several times",
    )
    parser.add_argument(
        "--budget",
        help="make a training step fit: '2 GiB', '50%%' of the peak, '50%% of activations'; "
        "needs --input",
    )
    parser.add_argument("--diff", action="store_true", help="print the edits as a unified diff")


def _run(options: argparse.Namespace, console: Console) -> ExitCode:
    specs = [parse_input(text) for text in options.input]
    dtype = parse_dtype(options.dtype) if options.dtype is not None else None
    torch.manual_seed(0)
    model = load_target(options.target)
    if dtype is not None:
        model = _cast(model, dtype)
    inputs = make_inputs(specs, dtype or torch.get_default_dtype()) if specs else None

    with console.progress() as progress:
        plan = sm.plan_conversion(
            model,
            inputs,
            checkpoint=_choices(options.checkpoint),
            memory_budget=options.budget,
            progress=progress,
        )
        if inputs is not None and plan.sites:
            plan.apply()  # a module may refuse the change: that is a finding too
    console.print(str(plan))
    if options.diff and plan.diff():
        console.print(f"\n{plan.diff().rstrip()}")
    console.print_json(json.loads(plan.to_json()))
    return ExitCode.FINDINGS if plan.sites else ExitCode.CLEAN


def _choices(names: list[str] | None) -> bool | tuple[str, ...]:
    if names is None:
        return ("loops",)
    if "none" not in names:
        return tuple(names)
    if len(names) > 1:
        raise UsageError("--checkpoint none excludes every other --checkpoint")
    return False


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    if not (dtype.is_floating_point or dtype.is_complex):
        return model  # an integer dtype is meant for the inputs alone
    try:
        return model.to(dtype)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"the model cannot be cast to {dtype}: {error}") from error


COMMAND = Command(
    name="convert",
    summary="show what a conversion of TARGET changes, and compare it on example inputs",
    details=DETAILS,
    add_arguments=_add_arguments,
    run=_run,
)
