"""Sizes and tables as text."""

from collections.abc import Sequence

__all__ = ["columns", "size"]


def size(count: int) -> str:
    """Bytes in words.

    Example:
        >>> size(999), size(3 * 2**20)
        ('999 B', '3.00 MiB')
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:.2f} {unit}"
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
