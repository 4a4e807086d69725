"""Train every model of the zoo for a few steps, plain and checkpointed, and compare all bits.

Every plain ``nn.Sequential`` of the second model is made a ``CheckpointedSeq``, in place; with
``--convert`` the model is converted as well.

Example:
    The light models of torchvision, table in ``benchmarks/results/checkpointed_zoo.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.checkpointed_zoo --suite torchvision --light

Exit status: 0 if parameters, buffers, optimizer state and random numbers are equal in all.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.cases import RUN_SEED, SUITES, Case, load_suite, seed_everything, select
from benchmarks.digests import digest_leaf, leaves
from benchmarks.report import RESULTS, command_line, table, version_list
from benchmarks.runs import first_line, rng_digest, weighted_sum
from safemodules import CheckpointedSeq, convert_model
from safemodules.errors import ModuleTypeError, OptionError, SafeModulesError

STEPS = 3


@dataclass(frozen=True)
class Result:
    """One model.

    Attributes:
        case: its name.
        status: equal, differs, refused, crashed, or "not repeatable": the plain model differs
            from itself.
        sequences: how many sequences were checkpointed.
        regions: how many regions they have, and so the least number of recomputations.
        tensors: how many tensors were compared.
        seconds: CPU seconds of the plain steps and of the checkpointed ones.
        detail: what went wrong.
    """

    case: str
    status: str
    sequences: int = 0
    regions: int = 0
    tensors: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)
    detail: str = ""


def checkpoint_sequences(model: nn.Module) -> list[CheckpointedSeq]:
    """Make every plain sequence of a model a checkpointed one; returns them."""
    found = []
    for module in list(model.modules()):
        if isinstance(module, nn.Sequential) and len(module):
            try:
                found.append(CheckpointedSeq.wrap(module, checkpoint_last=True))
            except (ModuleTypeError, OptionError):  # it has a forward of its own
                continue
    return found


def train(case: Case, model: nn.Module) -> tuple[dict[str, str], float]:
    """Train for some steps; returns digests of everything that they leave, and CPU seconds."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    call = case.call("train")
    entries: dict[str, str] = {}
    seed_everything(RUN_SEED)
    started = time.process_time()
    for number in range(STEPS):
        total = weighted_sum(model(*call.args, **call.kwargs))
        if total is None:
            raise ValueError("no output has a graph")
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        entries[f"loss {number}"] = digest_leaf(total.detach())
    seconds = time.process_time() - started
    entries |= {f"state {key}": digest_leaf(value) for key, value in model.state_dict().items()}
    for path, value in leaves(optimizer.state_dict()["state"]):
        entries[f"optimizer {path}"] = digest_leaf(value)
    entries["random numbers"] = rng_digest()
    return entries, seconds


def compare(case: Case, *, convert: bool = False) -> Result:
    """Train one model plain and checkpointed."""
    expected, plain = train(case, case.build())
    gc.collect()
    model = case.build()
    if convert:
        call = case.call("train")
        convert_model(model, call.args, call.kwargs)
    wrapped = checkpoint_sequences(model)
    regions = sum(span.is_checkpointed for seq in wrapped for span in seq.segment_spans())
    found, checkpointed = train(case, model)
    different = _different(expected, found)
    status = "differs" if different else "equal"
    if different:
        gc.collect()
        again, _ = train(case, case.build())
        if set(different) <= set(_different(expected, again)):
            status = "not repeatable"
    return Result(
        case.name,
        status,
        len(wrapped),
        regions,
        len(expected),
        (plain, checkpointed),
        f"{len(different)} of {len(expected)}: {', '.join(different[:3])}" if different else "",
    )


def _different(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    return [key for key in {**a, **b} if a.get(key) != b.get(key)]


def run(case: Case, *, convert: bool) -> Result:
    """Compare one model; an error becomes a result."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compare(case, convert=convert)
    except SafeModulesError as error:
        return Result(case.name, "refused", detail=f"{type(error).__name__}: {first_line(error)}")
    except Exception as error:
        return Result(case.name, "crashed", detail=f"{type(error).__name__}: {first_line(error)}")


def summary(results: Sequence[Result]) -> str:
    """How many models ended how."""
    counts = Counter(result.status for result in results)
    text = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    regions = sum(result.regions for result in results)
    return f"{len(results)} models: {text}; {regions} checkpointed regions"


def page(results: Sequence[Result], command: str) -> str:
    """The Markdown page."""
    pairs = version_list()
    lines = [
        "# Zoo: training with checkpointed sequences against training without",
        "",
        f"Last command: `{command}`",
        "",
        f"Versions: {pairs}; CPU, one thread.",
        "",
        f"**{summary(results)}**",
        "",
        f"Each model is trained for {STEPS} steps of AdamW from the same seeds, plain and with",
        "every plain `nn.Sequential` in it, nested ones too, made a `CheckpointedSeq` in place (a",
        "region for each child, the last one included). *equal*: losses, parameters, buffers,",
        "optimizer state and random numbers are equal bit for bit. *not repeatable*: the plain",
        "model differs from itself in the same tensors.",
    ]
    for suite in dict.fromkeys(result.case.split("/", 1)[0] for result in results):
        own = [result for result in results if result.case.startswith(f"{suite}/")]
        lines += ["", f"## {suite}", "", summary(own), ""]
        header = ["model", "result", "sequences", "regions", "tensors", "plain s", "s", "remark"]
        lines += table(header, [_row(result) for result in own])
    return "\n".join(lines) + "\n"


def _row(result: Result) -> list[str]:
    return [
        result.case.split("/", 1)[1],
        result.status if result.status == "equal" else f"**{result.status}**",
        *map(str, (result.sequences, result.regions, result.tensors)),
        *(f"{seconds:.1f}" for seconds in result.seconds),
        result.detail.replace("|", "\\|")[:160],
    ]


def write(results: Sequence[Result], path: Path, command: str) -> None:
    """Write the page, and the same for scripts beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(results, command))
    path.with_suffix(".json").write_text(json.dumps(list(map(asdict, results)), indent=1) + "\n")


def read(path: Path) -> list[Result]:
    """The results that an earlier run has written."""
    stored = path.with_suffix(".json")
    rows = json.loads(stored.read_text()) if stored.exists() else []
    return [Result(**{**row, "seconds": tuple(row["seconds"])}) for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpointed_zoo")
    parser.add_argument("--suite", default="torchvision", help="suites, separated by commas")
    parser.add_argument("--only", metavar="GLOB", default="*", help="the models whose name matches")
    parser.add_argument("--light", action="store_true", help="leave out the heavy models")
    parser.add_argument("--convert", action="store_true", help="convert the model as well")
    parser.add_argument("--update", action="store_true", help="keep other rows, run missing ones")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no model after these")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    suites = options.suite.split(",")
    if unknown := set(suites) - set(SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    name = "checkpointed_zoo_converted.md" if options.convert else "checkpointed_zoo.md"
    path = options.output or RESULTS / name
    command = command_line("checkpointed_zoo", arguments)
    torch.set_num_threads(1)
    results = {r.case: r for r in (read(path) if options.update else []) if r.status == "equal"}
    cases = select((case for suite in suites for case in load_suite(suite)), options.only)
    cases = [
        case
        for case in cases
        if "train" in case.gradients
        and case.name not in results
        and not (options.light and case.heavy)
    ]
    cases.sort(key=lambda case: case.seconds or 0.0)
    started = time.monotonic()
    for number, case in enumerate(cases, 1):
        if time.monotonic() - started > 60 * options.minutes:
            print(f"stopped after {number - 1} of {len(cases)} models")
            break
        result = results[case.name] = run(case, convert=options.convert)
        write(sorted(results.values(), key=lambda r: r.case), path, command)
        print(
            f"[{number:3}/{len(cases)} {time.monotonic() - started:5.0f} s] {case.name:45} "
            f"{result.status:8} {result.regions:4} regions  {result.detail[:120]}",
            flush=True,
        )
    print(f"{summary(list(results.values()))}\n{path}")
    fine = ("equal", "not repeatable")
    return 0 if all(result.status in fine for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
