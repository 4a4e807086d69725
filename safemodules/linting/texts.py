"""Text of a file that is linted, and how edited text gets back into it byte for byte.

A file keeps its encoding, its byte order mark and its line breaks.
"""

import codecs
import io
import re
import tokenize
from dataclasses import dataclass
from typing import Protocol

from safemodules.errors import SafeModulesError

_LINE_END = re.compile(rb"\r\n|\r|\n")


class UnreadableError(SafeModulesError, ValueError):
    """A file cannot be read as text."""


class Text(Protocol):
    """The Python code of a file."""

    @property
    def code(self) -> str:
        """The code, all of it as one text."""

    def place(self, line: int) -> tuple[int | None, int]:
        """Cell (counted from 1) and line in it, for a line of the code."""

    def replaced(self, code: str) -> bytes:
        """The file with other code."""


@dataclass(frozen=True)
class PlainText:
    """A Python file.

    Attributes:
        code: its text, without a byte order mark.
        encoding: its encoding.
        mark: its byte order mark, if it has one.
    """

    code: str
    encoding: str
    mark: bytes = b""

    def place(self, line: int) -> tuple[int | None, int]:
        """Lines are those of the file."""
        return None, line

    def replaced(self, code: str) -> bytes:
        """The file with other code."""
        return self.mark + code.encode(self.encoding)


def read_python(data: bytes) -> PlainText:
    r"""Decode a Python file as Python does.

    Raises:
        UnreadableError: the encoding is unknown, or the bytes are not of it.

    Example:
        >>> read_python(b"# coding: latin-1" + bytes([10, 0xE9])).code
        '# coding: latin-1\né'
    """
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    data = data[len(mark) :]
    encoding = "utf-8"
    if b"coding" in data[:400]:
        head = b"\n".join(_LINE_END.split(data, 2)[:2])
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(mark + head).readline)
        except SyntaxError as error:
            raise UnreadableError(str(error)) from error
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
    try:
        return PlainText(data.decode(encoding), encoding, mark)
    except (UnicodeDecodeError, LookupError) as error:
        raise UnreadableError(f"not {encoding}: {error}") from error
