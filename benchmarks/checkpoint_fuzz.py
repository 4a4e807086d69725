"""Compare random programs with exact checkpoints with the same programs without.

The programs and the oracle are those of ``tests/checkpoint_programs.py``.

Example:
    The counts in ``benchmarks/results/checkpoint_fuzz.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.checkpoint_fuzz --jobs 2

Exit status: 1 if any program differs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shlex
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from benchmarks.report import RESULTS, versions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from checkpoint_programs import judge, random_program


def _torchs(fn: object, *args: object, **kwargs: object) -> object:
    return torch_checkpoint(fn, *args, use_reentrant=False, **kwargs)  # type: ignore[arg-type]


def judge_seed(seed: int) -> tuple[int, str, str | None, bool]:
    """Seed, what the program does, how it differs, and whether torch's own checkpoint differs."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    text = random_program(seed)
    try:
        kind, difference = judge(text)
    except Exception:  # a crash is a difference
        kind, difference = "crash", traceback.format_exc()
    peer = judge(text, _torchs)[1]
    return seed, kind, None if difference is None else f"{difference}\n{text}", peer is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_fuzz")
    parser.add_argument("--programs", type=int, default=5_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "checkpoint_fuzz.md")
    options = parser.parse_args(arguments)
    kinds: Counter[str] = Counter()
    wrong, peers = [], 0
    seeds = range(options.first, options.first + options.programs)
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1000) as pool:
        for done, row in enumerate(pool.imap(judge_seed, seeds, chunksize=25), 1):
            seed, kind, difference, peer = row
            kinds[kind] += 1
            peers += peer
            if difference is not None:
                wrong.append(seed)
                print(f"seed {seed}, {kind}: {difference}\n", flush=True)
            if done % 250 == 0:
                print(f"{done} programs, {len(wrong)} differ", flush=True)
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    pairs = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# Random programs with exact checkpoints, against the same without",
        "",
        f"`{shlex.join(['python', '-m', 'benchmarks.checkpoint_fuzz', *words])}`; {pairs}.",
        "",
        "Two training steps each: outputs, gradients, buffers, attributes, containers and the",
        "stream of random numbers, bit for bit. A program that plainly raises has to raise in the",
        "same place. *refused* are programs that run without checkpoints, and for which a",
        "`CheckpointError` says what cannot be repeated.",
        "",
        "| what the program does | programs |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in kinds.most_common()),
        f"| **differs with `sm.checkpoint`** | **{len(wrong)}** |",
        f"| differs with torch's non-reentrant checkpoint | {peers} |",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    options.output.write_text(text, encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
