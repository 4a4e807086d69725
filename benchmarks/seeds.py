"""Judge the programs of many seeds, in several processes."""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import RESULTS

# Seed, what the program does, a number to be added up, and what is wrong, if anything.
Row = tuple[int, str, int, str | None]


@dataclass
class Judged:
    """What was found.

    Attributes:
        kinds: How many programs do what.
        number: The sum of the rows' numbers.
        wrong: Seeds of programs that are judged wrongly.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    number: int = 0
    wrong: list[int] = field(default_factory=list)


def seeds_parser(program: str, count: int) -> argparse.ArgumentParser:
    """The command line of a benchmark over seeds.

    Args:
        program: Name of the module, and of its page.
        count: How many programs there are by default.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("--programs", type=int, default=count)
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / f"{program}.md")
    return parser


def judge_seeds(judge: Callable[[int], Row], options: argparse.Namespace, every: int) -> Judged:
    """Judge each seed, and show what is wrong as soon as it is known.

    Args:
        judge: Judges the program of one seed; importable by other processes.
        options: Those of :func:`seeds_parser`.
        every: After how many programs progress is shown.
    """
    found = Judged()
    seeds = range(options.first, options.first + options.programs)
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1000) as pool:
        for done, row in enumerate(pool.imap(judge, seeds, chunksize=25), 1):
            seed, kind, number, wrong = row
            found.kinds[kind] += 1
            found.number += number
            if wrong is not None:
                found.wrong.append(seed)
                print(f"seed {seed}, {kind}: {wrong}\n", flush=True)
            if done % every == 0:
                print(f"{done} programs, {len(found.wrong)} wrong", flush=True)
    return found
