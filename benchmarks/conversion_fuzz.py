"""Convert random programs, and compare each with its original.

The programs and the checks are those of ``tests/test_generated_programs.py``: outputs, what is
left in the caller's input, buffers, and gradients, bit for bit, in train and in eval mode, with
and without a graph; where the original's backward raises, finite differences of its forward. All
this with example inputs and without, on these inputs and on others; then the conversion is
reverted, and the original must be back.

Example:
    20,000 programs, with the counts in ``benchmarks/results/conversion_fuzz.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.conversion_fuzz --jobs 2

    The counts are stored after every 50; ``--update`` adds to those of earlier runs, for which
    ``--first`` should be a seed that none of them has taken.

Exit status: 1 if any program computes something else after its conversion.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import safemodules as sm
from benchmarks.report import RESULTS, command_line, version_list

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from program_strategy import programs
from test_generated_programs import EXAMPLE, Original, build, check_conversion

CHUNK = 50


def judge(text: str, kinds: Counter[str]) -> None:
    """Convert one program in every way; raises where it computes something else."""
    for net in build(text):
        original = Original(net, text)
        try:
            original.run(EXAMPLE, True, True)
        except RuntimeError:
            kinds["refused by torch itself"] += 1
            return
        trains = original.run(EXAMPLE, True, True).gradients is not None
        check_conversion(original, None)
        try:
            check_conversion(original, EXAMPLE)
        except sm.MismatchError:
            kinds["refused: what would mend them computes something else"] += 1
            return
        except sm.ConversionError:
            kinds["refused: a clash that cannot be mended"] += 1
            return
        kinds["train as they are" if trains else "raise in backward, and train converted"] += 1


def run_chunk(number: int) -> tuple[Counter[str], int, list[str]]:
    """Programs of one seed: counts, the number of programs, and failures in words."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kinds: Counter[str] = Counter()
    failures: list[str] = []
    count = 0

    @seed(number)
    @settings(
        max_examples=CHUNK,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(text=programs(wild=number % 2 == 1))
    def check(text: str) -> None:
        nonlocal count
        count += 1
        try:
            judge(text, kinds)
        except Exception:
            failures.append(f"seed {number}: {traceback.format_exc()}\n{text}")

    check()
    return kinds, count, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversion_fuzz")
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first chunk")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--update", action="store_true", help="add to the counts of the page")
    parser.add_argument("--output", type=Path, default=RESULTS / "conversion_fuzz.md")
    options = parser.parse_args(arguments)
    kinds: Counter[str] = Counter()
    done, failures, commands = 0, [], []
    stored = options.output.with_suffix(".json")
    if options.update and stored.exists():
        earlier = json.loads(stored.read_text())
        kinds.update(earlier["kinds"])
        done, failures, commands = earlier["programs"], earlier["wrong"], earlier["commands"]
    commands.append(command_line("conversion_fuzz", arguments))
    chunks = range(options.first, options.first + -(-options.programs // CHUNK))
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=8) as pool:
        for found, count, wrong in pool.imap_unordered(run_chunk, chunks):
            kinds.update(found)
            done += count
            failures += wrong
            for text in wrong:
                print(text, flush=True)
            print(f"{done} programs, {len(failures)} wrong", flush=True)
            data = {"commands": commands, "programs": done, "kinds": kinds, "wrong": failures}
            stored.write_text(json.dumps(data, indent=1) + "\n")
            options.output.write_text(page(done, kinds, failures, commands))
    return 1 if failures else 0


def page(done: int, kinds: Counter[str], failures: Sequence[str], commands: Sequence[str]) -> str:
    """The Markdown page."""
    pairs = version_list()
    wrong = [text.splitlines()[0] for text in failures]
    lines = [
        "# Random programs after their conversion",
        "",
        f"Command: {', then '.join(f'`{command}`' for command in commands)}",
        "",
        f"Versions: {pairs}; CPU.",
        "",
        f"{done} programs: {len(failures)} compute something else"
        f"{': ' + ', '.join(wrong) if wrong else ''}.",
        "Half of them have aliases, views and writes to their input. What they do:",
        "",
        *(f"- {count} {kind}" for kind, count in kinds.most_common()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
