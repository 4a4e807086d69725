"""Interleaved timing: each run is divided by the mean of the base runs just before and after it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """Ratios of one variant to the base.

    Attributes:
        median: The median ratio.
        spread: Half the distance between the quartiles of the single ratios.
        rounds: Number of rounds.
    """

    median: float
    spread: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ±{self.spread:.3f}"


def timed(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call."""
    started = clock()
    function()
    return clock() - started


def interleave(
    variants: dict[str, Callable[[], object]],
    base: str,
    *,
    rounds: int = 41,
    warm: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, dict[str, Ratio]]:
    """Time the variants in rounds ``base, B, base, C, base, ...``, every second one backwards.

    A machine that is slow for a while is slow for a run and for its two neighbours, so the
    ratio does not see it.

    Args:
        variants: What to run, by name.
        base: Name of the variant that the others are divided by.
        rounds: Number of rounds that count.
        warm: Number of rounds before them.
        clock: Seconds; ``time.process_time`` leaves out what other processes take.

    Returns:
        The median seconds of the base, and the ratio of every other variant.
    """
    names = [name for name in variants if name != base]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    bases: list[float] = []
    for number in range(-warm, rounds):
        before = timed(variants[base], clock)
        for name in names if number % 2 == 0 else names[::-1]:
            own, after = timed(variants[name], clock), timed(variants[base], clock)
            if number >= 0:
                ratios[name].append(2 * own / (before + after))
                bases.append(after)
            before = after
    return statistics.median(bases), {name: summarise(values) for name, values in ratios.items()}


def summarise(values: Sequence[float]) -> Ratio:
    """Median and spread of the ratios."""
    low, _, high = statistics.quantiles(values, n=4)
    return Ratio(statistics.median(values), (high - low) / 2, len(values))
