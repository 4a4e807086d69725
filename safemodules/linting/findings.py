"""What the linter reports: findings, with the edits that mend them."""

from dataclasses import dataclass, field
from enum import Enum

from safemodules.rewriting.edits import Edit


class Severity(str, Enum):
    """How sure it is that something goes wrong."""

    ERROR = "error"  # wrong whenever it runs with gradients
    WARNING = "warning"  # wrong or not: the source alone does not tell
    NOTE = "note"  # proven harmless, or proven to be the same out of place

    def __str__(self) -> str:
        return self.value


class Verdict(str, Enum):
    """What the alias analysis has proven of an in-place site from source alone."""

    HARMLESS = "harmless"  # overwrites values that nobody has read
    NEUTRAL = "neutral"  # nobody else holds the tensor
    CLASH = "clash"  # overwrites what backward needs
    STATE = "state"  # updates what the module keeps
    UNKNOWN = "unknown"
    NONE = ""  # no in-place site

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Fix:
    """How a finding is mended.

    Attributes:
        edits: what to change, in offsets of the file's text in UTF-8.
        safe: the function is provably unchanged.
    """

    edits: tuple[Edit, ...]
    safe: bool


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        path: the file as it was named, or found below a folder that was.
        line: counted from 1; in a notebook, within the cell.
        column: counted from 1, in characters.
        end_line: line behind the last character.
        end_column: column behind the last character.
        code: a row of the table of codes.
        severity: how sure it is that something goes wrong.
        message: what stands there, and what to do.
        source: the text of the line, without surrounding blanks.
        verdict: what is proven of an in-place site.
        function: qualified name of the function around it.
        cell: index of a notebook's cell, counted from 1; ``None`` elsewhere.
        fix: how it is mended, if it can be.
        needs_reach: it counts only if a forward reaches the function.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    severity: Severity
    message: str
    source: str = ""
    verdict: Verdict = Verdict.NONE
    function: str = ""
    cell: int | None = None
    fix: Fix | None = field(default=None, compare=False)
    needs_reach: bool = field(default=False, compare=False)

    @property
    def place(self) -> str:
        """Where it is, as editors read it."""
        cell = "" if self.cell is None else f":cell {self.cell}"
        return f"{self.path}{cell}:{self.line}:{self.column}"

    @property
    def order(self) -> tuple[str, int, int, int, str]:
        """Sort key: by file and position."""
        return self.path, self.cell or 0, self.line, self.column, self.code
