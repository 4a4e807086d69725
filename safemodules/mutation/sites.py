"""A site: one place where a tensor is overwritten."""

import os
from dataclasses import dataclass
from enum import Enum


class SiteKind(str, Enum):
    """What a site looks like in the source, or on a module."""

    MODULE_FLAG = "module flag"
    FUNCTION_FLAG = "function flag"
    FUNCTION = "function"
    AUGMENTED = "augmented assignment"
    METHOD = "method"
    ITEM = "item assignment"
    OUT = "out argument"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Site:
    """One place where a tensor is overwritten.

    Attributes:
        filename: the file that holds it; for a module flag, the file of the module's class.
        lineno: its line, counted from 1; 0 where a module flag has no source.
        source: the line's text, without surrounding blanks.
        module: dotted path of the first module that runs it; empty for the model itself.
        op: what is done, in torch's words: ``"add_"``, ``"relu_"``, ``"iadd"``, ``"setitem"``.
        kind: a :class:`SiteKind`.

    Example:
        >>> site = Site("net.py", 12, "x += r", "block.0", "iadd", SiteKind.AUGMENTED)
        >>> print(site)
        net.py:12 `x += r` (augmented assignment in block.0)
    """

    filename: str
    lineno: int
    source: str
    module: str
    op: str
    kind: SiteKind

    def __str__(self) -> str:
        where = self.module or "the model itself"
        return f"{self.filename}:{self.lineno} `{self.source}` ({self.kind} in {where})"


def joined_path(path: str, name: str) -> str:
    """The dotted path of something in a module that itself has a path; either may be empty.

    Example:
        >>> joined_path("net", "block.0"), joined_path("", "block"), joined_path("net", "")
        ('net.block.0', 'block', 'net')
    """
    return f"{path}.{name}" if path and name else path or name


def location(filename: str, lineno: int) -> str:
    """A line as it is shown to people: relative to the working directory if it lies below.

    Example:
        >>> location("net.py", 12)
        'net.py:12'
    """
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    short = filename if relative.startswith("..") else relative
    return f"{short}:{lineno}"
