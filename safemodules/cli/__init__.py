"""Command line: ``safemodules COMMAND …``.

A command is one file that holds a :class:`~safemodules.cli.command.Command`, and one row
in the table of :mod:`safemodules.cli.application`.
"""

from safemodules.cli.application import main

__all__ = ["main"]
