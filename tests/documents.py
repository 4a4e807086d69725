"""Fenced blocks of Markdown pages, with the marker that may stand above each.

A marker is a comment, which a reader of the built page does not see:

- ``<!-- continues -->``: the block goes on where the one before it on the page has ended.
- ``<!-- raises: TEXT -->``: it raises an error whose message contains TEXT.
- ``<!-- prints -->``: not code, but all that the block before it prints; ``...`` stands for
  anything.
- ``<!-- prints about -->``: the same, but other numbers will do: times, and what follows of them.
- ``<!-- file: NAME -->``: it is a file, which the blocks below it on the page find.
- ``<!-- needs: MODULE -->``: it is run where MODULE is installed.
- ``<!-- not run: REASON -->``: it is not run, only compiled if it is Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(
    r"^(?:<!-- (?P<marker>[^\n]*?) -->\n+)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARKERS = ("continues", "raises", "prints", "prints about", "file", "needs", "not run")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: the file that it stands in.
        line: the line that its text begins at.
        language: what stands behind the fence.
        text: its text.
        marker: the marker above it, such as ``"raises"``; empty if there is none.
        value: what stands behind the marker's colon.
    """

    page: Path
    line: int
    language: str
    text: str
    marker: str
    value: str

    @property
    def source(self) -> str:
        """Its text at the lines where it stands on the page."""
        return "\n" * (self.line - 1) + self.text


@dataclass
class Program:
    """Blocks of a page that are run together, in one namespace.

    Attributes:
        files: the files that blocks above them have written.
        blocks: its blocks in their order.
    """

    files: tuple[Block, ...]
    blocks: list[Block] = field(default_factory=list)

    @property
    def line(self) -> int:
        """The line that it begins at."""
        return self.blocks[0].line


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page; those of directives are none."""
    content = page.read_text(encoding="utf-8") if page.exists() else ""
    found = []
    for match in _BLOCK.finditer(content):
        marker, _, value = (match["marker"] or "").partition(": ")
        line = content.count("\n", 0, match.start("text")) + 1
        if marker and marker not in MARKERS:
            raise ValueError(f"{page}:{line}: no such marker: {marker}")
        found.append(Block(page, line, match["language"], match["text"], marker, value))
    return found


def programs_of(page: Path) -> list[Program]:
    """The blocks of a page that belong together; plain text belongs to none."""
    programs: list[Program] = []
    files: list[Block] = []
    for block in blocks_of(page):
        if block.marker == "file":
            files.append(block)
        elif block.marker in ("continues", "prints", "prints about"):
            programs[-1].blocks.append(block)
        elif block.language != "text":
            programs.append(Program(tuple(files), [block]))
    return programs
