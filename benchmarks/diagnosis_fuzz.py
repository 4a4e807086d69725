"""Compare `diagnose` and `watch` with plain PyTorch on random programs.

The programs and the oracle are those of ``tests/diagnosis_programs.py``.

Example:
    20,000 programs, with the counts in ``benchmarks/results/diagnosis_fuzz.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.diagnosis_fuzz --jobs 2

Exit status: 1 if any program is judged otherwise than by PyTorch.
"""

from __future__ import annotations

import random
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.report import command_line, version_list
from benchmarks.seeds import Row, judge_seeds, seeds_parser

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from diagnosis_programs import disagreement, make_program, truth


def judge(seed: int) -> Row:
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
    options = seeds_parser("diagnosis_fuzz", 20_000).parse_args(arguments)
    found = judge_seeds(judge, options, every=1000)
    wrong = found.wrong
    command = command_line("diagnosis_fuzz", arguments)
    pairs = version_list()
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
        *(f"- {count} {kind}" for kind, count in found.kinds.most_common()),
        "",
        f"Pairs of lines (saved at, overwritten at) in them: {found.number}. `diagnose` must "
        "report",
        "exactly these (those of custom Functions as *possible*, with others that they kept but",
        "did not ask for), `watch` must put one of them first in its one note.",
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[6:]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
