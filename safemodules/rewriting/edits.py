"""Edits: byte spans of a source file and what stands there instead.

An edit's replacement is a template: literal text, and spans of the original that are kept
(with the edits inside them). The number of lines never changes, so a line number means the
same in the original and in the edited text.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """A span of the original text that stays, with whatever is edited inside it."""

    start: int
    end: int


@dataclass(frozen=True)
class Breaks:
    """Only the line breaks of a span of the original; for use inside brackets."""

    start: int
    end: int


Part = str | Kept | Breaks


@dataclass(frozen=True)
class Edit:
    """One replacement in a source file.

    Attributes:
        start: offset of the first byte that is replaced.
        end: offset behind the last byte that is replaced.
        template: what stands there instead.
        rank: order among insertions at one offset; of two edits of one span, the one of lower
            rank goes around the other.
    """

    start: int
    end: int
    template: tuple[Part, ...]
    rank: int = 0

    @property
    def order(self) -> tuple[int, bool, int, int]:
        """Sort key: by offset; insertions first, then an edit before those inside it."""
        return self.start, self.start < self.end, -self.end, self.rank


def render(data: bytes, edits: Iterable[Edit]) -> str:
    """Apply edits to the bytes of a source file.

    Args:
        data: the file, encoded as UTF-8.
        edits: edits in any order; one may lie inside a span that another keeps. What lies
            in a span that is not kept is left out with it. An insertion at the edge of
            another edit stands outside of it.

    Returns:
        The edited text, with as many lines as the original.

    Example:
        >>> edit = Edit(0, 6, ("x = f(x, (", Kept(5, 6), "))"))
        >>> render(b"x += 1", [edit])
        'x = f(x, (1))'
    """
    ordered = sorted(set(edits), key=lambda edit: edit.order)
    text = _render_span(data, 0, len(data), ordered)
    assert text.count("\n") == data.count(b"\n"), "an edit changed the number of lines"
    return text


def _render_span(data: bytes, start: int, end: int, edits: Sequence[Edit]) -> str:
    pieces: list[str] = []
    position = start
    index = 0
    while index < len(edits):
        edit = edits[index]
        inside = [other for other in edits[index + 1 :] if other.start < edit.end]
        assert position <= edit.start and edit.end <= end, "edits overlap"
        assert all(_place(other) != _place(edit) for other in inside), "edits overlap"
        pieces.append(data[position : edit.start].decode())
        pieces.append(_render_edit(data, edit, inside))
        position = edit.end
        index += 1 + len(inside)
    pieces.append(data[position:end].decode())
    return "".join(pieces)


def _render_edit(data: bytes, edit: Edit, inside: Sequence[Edit]) -> str:
    assert all(other.end <= edit.end for other in inside), "edits overlap"
    pieces: list[str] = []
    for part in edit.template:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, Breaks):
            pieces.append("\n" * data.count(b"\n", part.start, part.end))
        else:
            within = [other for other in inside if _touches(other, part)]
            pieces.append(_render_span(data, part.start, part.end, within))
    text = "".join(pieces)
    missing = data.count(b"\n", edit.start, edit.end) - text.count("\n")
    if missing > 0:  # a template ends in a bracket, before which line breaks are free
        text = text[:-1] + "\n" * missing + text[-1]
    return text


def _place(edit: Edit) -> tuple[int, int, int]:
    return edit.start, edit.end, edit.rank


def _touches(edit: Edit, kept: Kept) -> bool:
    """Whether an edit changes a span, or inserts something in it or at its edges."""
    if edit.start == edit.end:
        return kept.start <= edit.start <= kept.end
    return edit.start < kept.end and kept.start < edit.end


def unified_diff(filename: str, before: str, after: str) -> str:
    """Difference of two texts of one file, as ``diff -u`` prints it."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{filename.lstrip('/')}",
        f"b/{filename.lstrip('/')}",
    )
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
