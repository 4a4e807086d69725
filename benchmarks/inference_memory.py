"""Peak memory of a forward without gradients: the converted model against its original.

Example:
    All suites, with the table in ``benchmarks/results/inference_memory.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.inference_memory

Exit status: 1 if a converted model needs more than ``--limit`` of the original's peak.
"""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import safemodules as sm
from benchmarks.cases import SUITES, Call, Case, load_suite, seed_everything, select
from benchmarks.memory import StorageCounter
from benchmarks.report import RESULTS, command_line, table, version_list
from safemodules.trees import flatten_tensors


@dataclass(frozen=True)
class Row:
    """One model: peak bytes of the original, of the converted one, and fully out of place."""

    name: str
    original: int
    converted: int
    out_of_place: int

    @property
    def ratio(self) -> float:
        """The converted model's peak in that of its original."""
        return self.converted / self.original if self.original else 1.0


def peak(model: nn.Module, call: Call) -> int:
    """Peak bytes of a forward beyond parameters, buffers and inputs."""
    seed_everything(0)
    inputs = [tensor for _, tensor in flatten_tensors((call.args, call.kwargs))]
    counter = StorageCounter([*model.parameters(), *model.buffers(), *inputs])
    with torch.no_grad(), counter:
        out = model(*call.args, **call.kwargs)
    del out
    return counter.peak


def run(case: Case) -> Row:
    """Measure one model in evaluation mode."""
    from safemodules.rewriting.inference import out_of_place

    model = case.build().eval()
    call = case.call("eval")
    original = peak(model, call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sm.convert_model(model)
    converted = peak(model, call)
    with out_of_place():
        return Row(case.name, original, converted, peak(model, call))


def over(rows: Sequence[Row], limit: float) -> list[str]:
    """Who needs more than the limit."""
    found = [f"{row.name} {row.ratio:.3f}" for row in rows if row.ratio > limit]
    return [f"Over the limit: {', '.join(found) or 'none'}.", ""]


def page(rows: Sequence[Row], command: str, limit: float) -> str:
    """The Markdown page."""
    known = version_list()
    ordered = sorted(rows, key=lambda row: -row.out_of_place / max(row.original, 1))
    worst = max((row.ratio for row in rows), default=0.0)
    lines = [
        "# Peak memory of a forward without gradients",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {known}; CPU.",
        "",
        f"{len(rows)} models in evaluation mode, converted without example inputs. The largest",
        f"ratio of converted to original is {worst:.3f}; the limit is {limit}. Shown are the 25",
        "models that would need most out of place. Bytes of storages that operators return,",
        "beyond parameters, buffers and inputs.",
        "",
        *over(rows, limit),
    ]
    lines += table(
        ("model", "original MiB", "converted", "out of place"),
        [
            (
                row.name,
                f"{row.original / 2**20:.2f}",
                f"{row.ratio:.3f}",
                f"{row.out_of_place / max(row.original, 1):.3f}",
            )
            for row in ordered[:25]
        ],
    )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference_memory")
    add = parser.add_argument
    add("--suite", default=",".join(SUITES), help="suites, separated by commas")
    add("--only", metavar="GLOB", default="*", help="only the models whose name matches")
    add("--light", action="store_true", help="leave out the heavy models")
    add("--limit", type=float, default=1.01)
    add("--output", type=Path, default=RESULTS / "inference_memory.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = [case for suite in options.suite.split(",") for case in load_suite(suite)]
    cases = [c for c in select(cases, options.only) if not (options.light and c.heavy)]
    rows = []
    for number, case in enumerate((c for c in cases if "eval" in c.modes), 1):
        try:
            rows.append(run(case))
        except Exception as error:  # a model that cannot run here is no result
            print(f"{case.name}: {type(error).__name__}: {error}".splitlines()[0], flush=True)
            continue
        print(f"[{number}/{len(cases)}] {case.name} {rows[-1].ratio:.3f}", flush=True)
        gc.collect()
        command = command_line("inference_memory", arguments)
        options.output.write_text(page(rows, command, options.limit))
    return 1 if any(row.ratio > options.limit for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
