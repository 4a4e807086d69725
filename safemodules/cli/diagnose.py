"""``safemodules diagnose TARGET``: which lines overwrite what backward needs."""

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

DETAILS = """\
Runs forward once on random inputs and prints every tensor that backward would find overwritten:
the line that saved it, the line that overwrote it, and what to do. Then come all in-place sites
that ran. Nothing is changed, and no backward is run. --html writes one self-contained page with
the module tree and source excerpts.

Exit code 0: no clash, no warning, and forward ran to its end. 1: there is one, or forward
raised. 2: wrong use."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help=TARGET_FORMS)
    add_input_argument(parser, required=True)
    parser.add_argument("--dtype", help="dtype of the inputs that name none")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page to FILE")


def _run(options: argparse.Namespace, console: Console) -> ExitCode:
    specs = [parse_input(text) for text in options.input]
    dtype = parse_dtype(options.dtype) if options.dtype else torch.get_default_dtype()
    torch.manual_seed(0)
    model = load_target(options.target)
    diagnosis = sm.diagnose(model, make_inputs(specs, dtype))
    if options.html is not None:
        write_page(options.html, diagnosis.to_html(f"Diagnosis of {options.target}"))
    console.print(str(diagnosis))
    console.print_json(json.loads(diagnosis.to_json()))
    found = diagnosis.clashes or diagnosis.warnings or diagnosis.error
    return ExitCode.FINDINGS if found else ExitCode.CLEAN


COMMAND = Command(
    name="diagnose",
    summary="name the lines of TARGET that overwrite what backward needs",
    details=DETAILS,
    add_arguments=_add_arguments,
    run=_run,
)
