"""Write a page to a file that the command line names."""

from __future__ import annotations

from pathlib import Path

from safemodules.cli.command import UsageError

__all__ = ["write_page"]


def write_page(path: Path, text: str) -> None:
    """Write a page.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path}: {error.strerror or error}") from error
