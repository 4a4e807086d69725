"""Where a command's output goes: text or one JSON document on stdout, the rest on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from safemodules.cli.progress import ProgressBar, ProgressCallback


@dataclass(frozen=True)
class Console:
    """Output of one run of the command line.

    Args:
        stdout: Takes the result.
        stderr: Takes errors and the progress bar.
        json: Print one JSON document instead of text.
        quiet: Draw no progress bar.
    """

    stdout: TextIO
    stderr: TextIO
    json: bool = False
    quiet: bool = False

    def print(self, text: str = "") -> None:
        """Print a piece of the result; nothing where JSON was asked for."""
        if not self.json:
            print(text, file=self.stdout)

    def print_json(self, document: object) -> None:
        """Print ``document`` where JSON was asked for; nothing otherwise."""
        if self.json:
            print(json.dumps(document, indent=2, sort_keys=True), file=self.stdout)

    def print_error(self, message: str, kind: str) -> None:
        """Print an error to stderr, and as ``{"error": …}`` where JSON was asked for."""
        print(f"safemodules: error: {message}", file=self.stderr)
        self.print_json({"error": {"type": kind, "message": message}})

    @contextmanager
    def progress(self) -> Iterator[ProgressCallback | None]:
        """Yield a callback that draws a progress bar, or None where none is wanted."""
        if self.json or self.quiet or not self.stderr.isatty():
            yield None
            return
        bar = ProgressBar(self.stderr)
        try:
            yield bar
        finally:
            bar.clear()
