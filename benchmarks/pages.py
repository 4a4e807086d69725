"""Ratios out of the Markdown pages that the programs write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.registry import Kind, Measure

_NUMBER = re.compile(r"\**(\d+(?:\.\d+)?)\**(?: ±(\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class PageRatio:
    """A ratio.

    Attributes:
        name: Heading, row and column, separated by slashes.
        kind: Seconds or bytes.
        value: The ratio; less is better.
        spread: Half the distance between the quartiles, 0 where the page tells none.
        own: Whether it is of safemodules, and not of what it is compared with.
    """

    name: str
    kind: Kind
    value: float
    spread: float = 0.0
    own: bool = True


@dataclass(frozen=True)
class PageTable:
    """A table: the second-level heading above it, its header and its rows."""

    heading: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(text: str) -> list[PageTable]:
    """Every table of a page.

    Example:
        >>> tables("## A\\n\\n| way | time |\\n| --- | --- |\\n| ours | 1.02 ±0.01 |\\n")
        [PageTable(heading='A', header=('way', 'time'), rows=(('ours', '1.02 ±0.01'),))]
    """
    found = []
    heading = ""
    block: list[tuple[str, ...]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append(tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]))
            continue
        if len(block) > 2:
            found.append(PageTable(heading, block[0], tuple(block[2:])))
        block = []
        if line.startswith("## "):
            heading = line[3:].strip()
    return found


def number(cell: str) -> tuple[float, float] | None:
    """Value and spread in a cell, or ``None`` where it holds something else, a unit included.

    Example:
        >>> number("0.995 ±0.022"), number("913.6 ms")
        ((0.995, 0.022), None)
    """
    found = _NUMBER.fullmatch(cell)
    return None if found is None else (float(found[1]), float(found[2] or 0))


def ratios(text: str, measures: Sequence[Measure]) -> list[PageRatio]:
    """The ratios of a page. Rows that are the base of a ratio are left out."""
    return [
        ratio
        for table in tables(text)
        for measure in measures
        if {measure.column, *measure.keys} <= set(table.header)
        for ratio in _of_table(table, measure)
    ]


def _of_table(table: PageTable, measure: Measure) -> Iterator[PageRatio]:
    # `exact` and the like only tell tables apart; names are made of text columns before it
    place = {name: index for index, name in enumerate(table.header)}
    naming = [key for key in measure.keys if place[key] < place[measure.column]]
    column = place[measure.column]
    label = re.sub(r" Mi?B\b", "", measure.column)

    def names(row: tuple[str, ...]) -> list[str]:
        return [row[place[key]] for key in naming]

    bases = {tuple(names(row)): number(row[column]) for row in table.rows}
    for row in table.rows:
        own, cell = names(row), number(row[column])
        if cell is None:
            continue
        value, spread = cell
        if measure.over is not None:
            divisor = number(row[place[measure.over]])
        elif measure.base is not None:
            divisor = bases.get((*own[:-1], measure.base))
        else:
            divisor = (1.0, 0.0)
        if divisor is None or not divisor[0]:
            continue
        if own[-1] == measure.base or row[column] == "1":
            continue
        words = [word for word in (table.heading, *own) if word]
        name = " / ".join((*words, label))
        value, spread = (round(part / divisor[0], 4) for part in (value, spread))
        own_row = re.search(measure.own, own[-1]) is not None
        yield PageRatio(name, measure.kind, value, spread, own_row)


def command_of(text: str) -> str:
    """The first command that a page names, without where it wrote to; empty if it names none."""
    found = re.search(r"`(python -m benchmarks\.[^`]*)`", text)
    return re.sub(r" --output \S+", "", found[1]) if found else ""


def versions_of(text: str) -> dict[str, str]:
    """The versions that a page names.

    Example:
        >>> versions_of("Versions: python 3.11.7, torch 2.14.1; CPU.")
        {'python': '3.11.7', 'torch': '2.14.1'}
    """
    return dict(re.findall(r"\b(python|torch|torchvision|safemodules) (\d+(?:\.\d+)+)", text))
