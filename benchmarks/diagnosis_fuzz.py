"""Compare `diagnose` and `watch` with plain PyTorch on random programs.

The programs and the oracle are those of ``tests/diagnosis_programs.py``.

Example:
    20,000 programs, with the counts in ``benchmarks/results/diagnosis_fuzz.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.diagnosis_fuzz --jobs 2

Exit status: 1 if any program is judged otherwise than by PyTorch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shlex
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.report import RESULTS, versions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from diagnosis_programs import disagreement, make_program, truth


def judge(seed: int) -> tuple[int, str, int, str | None]:
    """Seed, what the program does, number of clashes, and the disagreement, if any."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    choices = random.Random(seed)
    program = make_program(choices.choice, choices.randrange(2, 12))
    try:
        expected = truth(program)
        found = disagreement(program, expected)
    except Exception:  # a crash is a disagreement
        return seed, "crash", 0, traceback.format_exc()
    kind = "runs"
    if expected.forward_error is not None:
        kind = "forward raises"
    elif expected.backward_error is not None:
        kind = "backward raises" if expected.clashes else "another error in backward"
    text = None if found is None else f"{found}\n{program.text()}"
    return seed, kind, len(expected.clashes), text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis_fuzz")
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "diagnosis_fuzz.md")
    options = parser.parse_args(arguments)
    kinds: Counter[str] = Counter()
    clashes, wrong = 0, []
    seeds = range(options.first, options.first + options.programs)
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=2000) as pool:
        for done, row in enumerate(pool.imap(judge, seeds, chunksize=50), 1):
            seed, kind, number, found = row
            kinds[kind] += 1
            clashes += number
            if found is not None:
                wrong.append(seed)
                print(f"seed {seed}: {found}\n", flush=True)
            if done % 1000 == 0:
                print(f"{done} programs, {len(wrong)} wrong", flush=True)
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    command = shlex.join(["python", "-m", "benchmarks.diagnosis_fuzz", *words])
    pairs = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# diagnose and watch against plain PyTorch, on random programs",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {pairs}; CPU.",
        "",
        f"{options.programs} programs from seed {options.first}: {len(wrong)} judged otherwise",
        f"than by PyTorch{': ' + ', '.join(map(str, wrong)) if wrong else ''}. What they do:",
        "",
        *(f"- {count} {kind}" for kind, count in kinds.most_common()),
        "",
        f"Pairs of lines (saved at, overwritten at) in them: {clashes}. `diagnose` must report",
        "exactly these (those of custom Functions as *possible*, with others that they kept but",
        "did not ask for), `watch` must put one of them first in its one note.",
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[6:]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
