"""Compare random programs with exact checkpoints with the same programs without.

The programs and the oracle are those of ``tests/checkpoint_programs.py``.

Example:
    The counts in ``benchmarks/results/checkpoint_fuzz.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.checkpoint_fuzz --jobs 2

Exit status: 1 if any program differs.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from benchmarks.report import command_line, version_list
from benchmarks.seeds import Row, judge_seeds, seeds_parser

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from checkpoint_programs import judge, random_program


def _torchs(fn: object, *args: object, **kwargs: object) -> object:
    return torch_checkpoint(fn, *args, use_reentrant=False, **kwargs)  # type: ignore[arg-type]


def judge_seed(seed: int) -> Row:
    """Seed, what the program does, whether torch's own checkpoint differs, and how ours does."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    text = random_program(seed)
    try:
        kind, difference = judge(text)
    except Exception:  # a crash is a difference
        kind, difference = "crash", traceback.format_exc()
    peer = judge(text, _torchs)[1]
    return seed, kind, peer is not None, None if difference is None else f"{difference}\n{text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = seeds_parser("checkpoint_fuzz", 5_000).parse_args(arguments)
    found = judge_seeds(judge_seed, options, every=250)
    pairs = version_list()
    lines = [
        "# Random programs with exact checkpoints, against the same without",
        "",
        f"`{command_line('checkpoint_fuzz', arguments)}`; {pairs}.",
        "",
        "Two training steps each: outputs, gradients, buffers, attributes, containers and the",
        "stream of random numbers, bit for bit. A program that plainly raises has to raise in the",
        "same place. *refused* are programs that run without checkpoints, and for which a",
        "`CheckpointError` says what cannot be repeated.",
        "",
        "| what the program does | programs |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in found.kinds.most_common()),
        f"| **differs with `sm.checkpoint`** | **{len(found.wrong)}** |",
        f"| differs with torch's non-reentrant checkpoint | {found.number} |",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    options.output.write_text(text, encoding="utf-8")
    return bool(found.wrong)


if __name__ == "__main__":
    sys.exit(main())
