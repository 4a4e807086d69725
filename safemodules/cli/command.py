"""What a command is, and the exit codes all of them share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from safemodules.cli.console import Console
from safemodules.errors import SafeModulesError


class ExitCode(IntEnum):
    """Exit codes of every command."""

    CLEAN = 0
    FINDINGS = 1
    WRONG_USE = 2


class UsageError(SafeModulesError, ValueError):
    """The command line asks for something that cannot be done; ends with exit code 2."""


@dataclass(frozen=True)
class Command:
    """One row of the table of commands.

    Args:
        name: Word typed after ``safemodules``.
        summary: One line for ``safemodules --help``.
        details: What the command prints and what its exit codes mean.
        add_arguments: Declares the command's own arguments; ``--json`` and ``--quiet``
            are common to all.
        run: Does the work and returns the exit code.
    """

    name: str
    summary: str
    details: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], ExitCode]
