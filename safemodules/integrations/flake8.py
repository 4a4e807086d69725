"""The linter as a plugin of flake8, which reports the codes ``SM...`` among its own.

flake8 looks at one file at a time: functions that only other files call are not looked into.
Everything else is as under ``safemodules lint``; ``# noqa`` and selection are flake8's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import safemodules as sm
from safemodules.linting.run import lint_file


class Plugin:
    r"""What the entry point ``SM`` of ``flake8.extension`` names.

    Args:
        tree: the file as flake8 has parsed it; the linter parses the text itself.
        filename: name of the file.
        lines: its lines with their ends.

    Example:
        >>> lines = ["from torch import nn\n", "relu = nn.ReLU(inplace=True)\n"]
        >>> [text for _, _, text, _ in Plugin(ast.parse(""), "net.py", lines).run()]
        ['SM106 `nn.ReLU` overwrites what it is given']
    """

    name = "safemodules"
    version = sm.__version__

    def __init__(self, tree: ast.AST, filename: str, lines: Sequence[str]) -> None:
        self.filename = filename
        self.lines = lines

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        """Line, column counted from 0, code with message, and the plugin, for each finding."""
        for found in lint_file(self.filename, "".join(self.lines).encode()):
            yield found.line, found.column - 1, f"{found.code} {found.message}", type(self)
