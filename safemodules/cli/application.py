"""The table of commands, the parser built from it, and ``main``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import safemodules as sm
from safemodules.cli import convert, demo, diagnose, fix, lint, profile
from safemodules.cli.command import Command, ExitCode, UsageError
from safemodules.cli.console import Console
from safemodules.errors import SafeModulesError

#: Every command, in the order of ``safemodules --help``.
COMMANDS: tuple[Command, ...] = (
    demo.COMMAND,
    diagnose.COMMAND,
    convert.COMMAND,
    profile.COMMAND,
    lint.COMMAND,
    fix.COMMAND,
)

_EPILOG = "exit codes: 0 clean, 1 findings, 2 wrong use"


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that ``main`` alone prints errors and returns codes."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().rstrip()}")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="safemodules",
        description="Mend PyTorch models that break on in-place operations, and prove it.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"safemodules {sm.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary}\n\n{command.details}",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.add_argument("--json", action="store_true", help="print one JSON document")
        subparser.add_argument("--quiet", action="store_true", help="draw no progress bar")
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name. Default: those of this process.

    Returns:
        0 clean, 1 findings, 2 wrong use.

    Example:
        >>> from safemodules.cli import main
        >>> main(["convert", "torchvision:alexnet"])  # doctest: +SKIP
        1
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    console = Console(sys.stdout, sys.stderr, json="--json" in arguments)
    try:
        options = build_parser().parse_args(arguments)
        console = Console(sys.stdout, sys.stderr, json=options.json, quiet=options.quiet)
        return int(options.run(options, console))
    except SystemExit as stop:  # --help and --version
        return stop.code if isinstance(stop.code, int) else int(ExitCode.CLEAN)
    except SafeModulesError as error:
        console.print_error(str(error), type(error).__name__)
        # Ours that are one of these say that what was given is wrong; any other is a finding.
        given_wrong = isinstance(error, (ValueError, TypeError))
        return int(ExitCode.WRONG_USE if given_wrong else ExitCode.FINDINGS)
    except BrokenPipeError:
        # The reader left (`| head`). Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.FINDINGS)
