"""Sizes and tables as text."""

from collections.abc import Sequence

__all__ = ["columns", "size_text"]


def size_text(count: int, digits: int = 2) -> str:
    """Bytes in words.

    Example:
        >>> size_text(999), size_text(3 * 2**20), size_text(3 * 2**20, digits=1)
        ('999 B', '3.00 MiB', '3.0 MiB')
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:.{digits}f} {unit}"
    return f"{count} B"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of aligned columns.

    Example:
        >>> columns([("a", "bb"), ("ccc", "d")])
        ['  a    bb', '  ccc  d']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
