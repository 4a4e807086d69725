"""``safemodules profile TARGET``: what a step of training allocates, and what a budget costs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import safemodules as sm
from safemodules.cli.command import Command, ExitCode
from safemodules.cli.console import Console
from safemodules.cli.inputs import add_input_argument, make_inputs, parse_dtype, parse_input
from safemodules.cli.pages import write_page
from safemodules.cli.targets import TARGET_FORMS, load_target
from safemodules.memory.page import document, plan_fragment, profile_fragment

DETAILS = """\
Runs one forward and backward that keeps nothing, and prints for every module what it keeps for
backward in an ordinary step: bytes, share, peak inside, time and floating-point operations. With
--budget it also plans which results are computed again so that the step fits, and what that costs
in time. Nothing is changed. --fake computes nothing: the model may be larger than the machine,
and times are estimated. --html writes one self-contained page with the memory over the step.

Exit code 0: done. 1: the model could not be run. 2: wrong use, or a budget that cannot be met."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help=TARGET_FORMS)
    add_input_argument(parser, required=True)
    parser.add_argument("--dtype", help="dtype of the inputs that name none")
    parser.add_argument(
        "--budget", help="also plan for it: '2 GiB', '50%%' of the peak, '50%% of activations'"
    )
    parser.add_argument("--depth", type=int, default=2, help="how deep the table goes; default 2")
    parser.add_argument("--fake", action="store_true", help="compute nothing; estimate times")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page to FILE")


def _run(options: argparse.Namespace, console: Console) -> ExitCode:
    specs = [parse_input(text) for text in options.input]
    dtype = parse_dtype(options.dtype) if options.dtype else torch.get_default_dtype()
    torch.manual_seed(0)
    model, inputs = load_target(options.target), make_inputs(specs, dtype)
    profile = sm.profile_memory(model, inputs, fake=options.fake)
    plan = None
    if options.budget is not None:
        with console.progress() as progress:
            plan = sm.plan_checkpoints(
                model, inputs, options.budget, fake=options.fake, progress=progress
            )
    if options.html is not None:
        parts = [profile_fragment(profile)] + ([] if plan is None else [plan_fragment(plan)])
        write_page(options.html, document(f"Memory of a step of {options.target}", parts))
    console.print(f"{profile.summary()}\n{profile.table(options.depth)}")
    if plan is not None:
        console.print(f"\n{plan}")
    console.print_json(
        {
            "profile": json.loads(profile.to_json()),
            "plan": None if plan is None else json.loads(plan.to_json()),
        }
    )
    return ExitCode.CLEAN


COMMAND = Command(
    name="profile",
    summary="show what a training step of TARGET allocates, and what a memory budget costs",
    details=DETAILS,
    add_arguments=_add_arguments,
    run=_run,
)
