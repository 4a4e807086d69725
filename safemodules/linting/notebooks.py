"""Code cells of a notebook as one text, and edited text put back with the JSON untouched.

The cells share one namespace, so they are linted as one module, one after the other. What
stands in the file around an edited line stays as it is: only the JSON string of that line is
written anew.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from safemodules.linting.texts import UnreadableError

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(strict=False)
_MAGIC = re.compile(r"^(\s*)([%!?].*|.*\?\s*)$", re.DOTALL)
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Literal:
    """One JSON string of a notebook that holds code.

    Attributes:
        start: offset of its opening quote.
        end: offset behind its closing quote.
        text: what it stands for.
        cell: its cell, counted from 1.
    """

    start: int
    end: int
    text: str
    cell: int


@dataclass(frozen=True)
class Notebook:
    """A notebook.

    Attributes:
        raw: the file's text.
        literals: the strings that hold code, in order.
        code: the code of all cells; lines that are no Python are blank.
        places: cell and line in it, for each line of the code.
    """

    raw: str
    literals: tuple[Literal, ...]
    code: str
    places: tuple[tuple[int, int], ...]

    def place(self, line: int) -> tuple[int | None, int]:
        """Cell and line in it, for a line of the code."""
        return self.places[min(line, len(self.places)) - 1]

    def replaced(self, code: str) -> bytes:
        """The file with other code of as many lines."""
        old, new = self.code.split("\n"), code.split("\n")
        assert len(old) == len(new), "an edit changed the number of lines"
        pieces, position, line = [], 0, 0
        for literal, ends_cell in zip(self.literals, _last_of_cells(self.literals), strict=True):
            lines = literal.text.split("\n")
            changed = list(lines)
            for offset, text in enumerate(lines):
                index = line + offset
                if index < len(old) and old[index] != new[index] and text == old[index]:
                    changed[offset] = new[index]
            if changed != lines:
                pieces.append(self.raw[position : literal.start])
                escaped = self.raw[literal.start : literal.end].isascii()
                pieces.append(json.dumps("\n".join(changed), ensure_ascii=escaped))
                position = literal.end
            line += len(lines) - 1
            if ends_cell:
                line += 1
        return "".join([*pieces, self.raw[position:]]).encode()


def _last_of_cells(literals: tuple[Literal, ...]) -> Iterator[bool]:
    for index, literal in enumerate(literals):
        yield index + 1 == len(literals) or literals[index + 1].cell != literal.cell


def read_notebook(data: bytes) -> Notebook:
    """Take the code cells out of a notebook.

    Raises:
        UnreadableError: it is no notebook.
    """
    try:
        raw = data.decode("utf-8-sig") if not data.startswith(b"\xef\xbb\xbf") else data.decode()
        document = json.loads(raw.lstrip("\ufeff"))
        kinds = [cell.get("cell_type") for cell in document["cells"]]
        found = list(_strings(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"no notebook: {type(error).__name__}: {error}") from error
    literals = tuple(
        Literal(start, end, text, cell + 1)
        for cell, start, end, text in found
        if kinds[cell] == "code"
    )
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    cells: dict[int, list[str]] = {}
    for literal in literals:
        cells.setdefault(literal.cell, []).append(literal.text)
    for cell, texts in cells.items():
        code = _python_lines("".join(texts).split("\n"))
        lines += code
        places += [(cell, number + 1) for number in range(len(code))]
    return Notebook(raw, literals, "\n".join(lines), tuple(places) or ((1, 1),))


def _python_lines(lines: list[str]) -> list[str]:
    """The lines of a cell, those of magics left blank; all of them if the rest is no Python."""
    if lines and lines[0].lstrip().startswith("%%"):
        return [""] * len(lines)
    found = [_without_magic(line) for line in lines]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(found))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [""] * len(lines)
    return found


def _without_magic(line: str) -> str:
    match = _MAGIC.match(line)
    if match is None or (not line.lstrip().startswith(("%", "!", "?")) and "#" in line):
        return line
    return f"{match[1]}pass" if match[1] else ""


def _strings(raw: str) -> Iterator[tuple[int, int, int, str]]:
    """Every string below ``cells[i].source``: cell, offsets of its quotes, text."""
    start = _BLANK.match(raw, 1 if raw.startswith("\ufeff") else 0).end()  # type: ignore[union-attr]
    found: list[tuple[int, int, int, str]] = []
    _walk(raw, start, (), found)
    yield from found


def _walk(raw: str, index: int, path: Path, found: list[tuple[int, int, int, str]]) -> int:
    """Pass over a JSON value, and note the strings that are looked for; offset behind it."""
    if not _leads_to_source(path):
        return _behind(raw, index)
    if raw[index] == '"':
        text, end = _DECODER.raw_decode(raw, index)
        if len(path) >= 3:
            found.append((int(path[1]), index, end, text))
        return int(end)
    if raw[index] in "{[":
        return _walk_members(raw, index, path, found)
    return _behind(raw, index)


def _behind(raw: str, index: int) -> int:
    """Offset behind a JSON value."""
    end: int = _DECODER.raw_decode(raw, index)[1]
    return end


def _walk_members(raw: str, index: int, path: Path, found: list[Any]) -> int:
    closing = "}" if raw[index] == "{" else "]"
    number = 0
    index = _skip(raw, index + 1)
    while raw[index] != closing:
        key: str | int = number
        if closing == "}":
            key, index = _DECODER.raw_decode(raw, index)
            index = _skip(raw, _skip(raw, index) + 1)  # past the colon
        index = _skip(raw, _walk(raw, index, (*path, key), found))
        if raw[index] == ",":
            index = _skip(raw, index + 1)
        number += 1
    return index + 1


def _leads_to_source(path: Path) -> bool:
    pattern = ("cells", None, "source")
    return all(want is None or want == got for want, got in zip(pattern, path, strict=False))


def _skip(raw: str, index: int) -> int:
    match = _BLANK.match(raw, index)
    assert match is not None
    return match.end()
