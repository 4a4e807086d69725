"""List and run the programs of this folder, gather what they find, and compare it.

Example:
    What there is, and what a quick run would execute::

        python -m benchmarks --list
        python -m benchmarks --list --quick

    A run of less than 5 minutes on 2 cores, and its comparison with the committed one::

        python -m benchmarks --quick
        python -m benchmarks --quick --check benchmarks/results/summary_quick.json

    The committed pages on one page, without running anything::

        python -m benchmarks --collect

Full runs take hours and write the programs' own pages as well; quick ones leave those alone.
With ``--check`` nothing is written unless ``--output`` says where.

Exit status: 0; 1 if a program has crashed, an exact one has found a fault, or ``--check`` has
found a regression; 2 for wrong use.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import pages, summary
from benchmarks.registry import FOLDER, PROGRAMS, Program, chosen
from benchmarks.regressions import Regression, regressions
from benchmarks.summary import Run

RESULTS = FOLDER / "results"
CRASHED = 70
TITLES = {True: "Quick run of the benchmarks", False: "Benchmarks"}


def command(program: Program, *, quick: bool) -> list[str]:
    """The command of a program, to be shown."""
    arguments = program.quick if quick else program.full
    return ["python", "-m", f"benchmarks.{program.name}", *(arguments or ())]


def run_program(program: Program, *, quick: bool, timeout: float | None) -> Run:
    """Run a program in a process of its own, and read the page that it writes."""
    shown = command(program, quick=quick)
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        page = (Path(folder) if quick else RESULTS) / f"{program.name}.md"
        earlier = page.stat().st_mtime_ns if page.exists() else None
        output = ["--output", str(page)] if quick else []
        started = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, *shown[1:], *output],
                cwd=FOLDER.parent,
                env={"OMP_NUM_THREADS": "1", **os.environ},
                stdin=subprocess.DEVNULL,
                timeout=timeout,
                check=False,
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = 124
        seconds = time.perf_counter() - started
        written = page.exists() and page.stat().st_mtime_ns != earlier
        text = page.read_text("utf-8") if written else ""
    return Run(
        program=program.name,
        title=program.title,
        command=shlex.join(shown),
        exact=program.exact,
        # A program that ends without its page has found nothing, good or bad: it has crashed.
        status=status if text or status not in (0, 1) else CRASHED,
        seconds=round(seconds, 1),
        machine=summary.machine(),
        versions=pages.versions_of(text),
        ratios=tuple(pages.ratios(text, program.measures)),
    )


def collect(programs: Sequence[Program]) -> list[Run]:
    """The runs whose pages are in the results already."""
    runs = []
    for program in programs:
        path = RESULTS / f"{program.name}.md"
        if path.exists():
            text = path.read_text("utf-8")
            runs.append(
                Run(
                    program=program.name,
                    title=program.title,
                    command=pages.command_of(text),
                    exact=program.exact,
                    status=None,
                    seconds=0.0,
                    machine="",
                    versions=pages.versions_of(text),
                    ratios=tuple(pages.ratios(text, program.measures)),
                )
            )
    return runs


def failed(run: Run) -> bool:
    """Whether a run's exit status is a verdict on the code, and a bad one."""
    return bool(run.status) and (run.exact or run.status != 1)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("programs", nargs="*", metavar="PROGRAM", help="which to run (default: all)")
    add("--list", action="store_true", help="show the programs and their commands, run none")
    add("--quick", action="store_true", help="less than 5 minutes on 2 cores")
    add("--collect", action="store_true", help="read the committed pages and run nothing")
    add("--check", type=Path, metavar="JSON", help="compare with a committed summary")
    add("--found", type=Path, metavar="JSON", help="with --check: compare this one, run nothing")
    add("--tolerance", type=float, default=0.1, help="part by which a time may grow (0.1)")
    add("--timeout", type=float, help="seconds for one program (600 for a quick run)")
    add("--update", action="store_true", help="keep what the output holds of other programs")
    add("--note", default="", help="a remark for the page")
    add("--output", type=Path, help="the JSON; page and charts are written beside it")
    options = parser.parse_args(arguments)
    if options.found and not options.check:
        parser.error("--found needs --check")
    if options.collect and options.quick:
        parser.error("--collect reads pages of full runs; leave --quick out")
    try:
        options.chosen = chosen(options.programs, quick=options.quick)
    except KeyError as error:
        parser.error(str(error.args[0]))
    return options


def gather(options: argparse.Namespace) -> list[Run]:
    """The runs that the options ask for."""
    if options.found:
        return summary.read(options.found)
    if options.collect:
        return collect(options.chosen)
    timeout = options.timeout or (600.0 if options.quick else None)
    runs = []
    for number, program in enumerate(options.chosen, 1):
        shown = shlex.join(command(program, quick=options.quick))
        print(f"[{number}/{len(options.chosen)}] {shown}", flush=True)
        runs.append(run_program(program, quick=options.quick, timeout=timeout))
        print(f"    exit status {runs[-1].status} after {runs[-1].seconds:.0f} s", flush=True)
    return runs


def store(runs: Sequence[Run], options: argparse.Namespace) -> None:
    """Write what was found, if it shall be written."""
    path = options.output
    if path is None:
        if options.check:
            return
        path = RESULTS / ("summary_quick.json" if options.quick else "summary.json")
    note = options.note
    if options.update and path.exists():
        note = note or summary.read_note(path)
        own = {run.program: run for run in [*summary.read(path), *runs]}
        runs = [own[program.name] for program in PROGRAMS if program.name in own]
    summary.write(runs, path, TITLES[options.quick], note)
    print(f"wrote {path.name}, {path.with_suffix('.md').name} and the charts beside them")


def compare(runs: Sequence[Run], options: argparse.Namespace) -> list[Regression]:
    """What is worse than in the committed summary; says what it does not hold."""
    committed = summary.read(options.check)
    known = {run.program for run in committed}
    unknown = [run.program for run in runs if run.program not in known]
    if unknown:
        print(f"not in {options.check.name}, so not compared: {', '.join(unknown)}")
    return list(regressions(committed, runs, options.tolerance))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = parse(arguments)
    if options.list:
        for program in options.chosen:
            print(f"{program.name}: {program.title}")
            print(f"    {shlex.join(command(program, quick=options.quick))}")
        return 0
    runs = gather(options)
    store(runs, options)
    faults = [f"{run.program}: exit status {run.status}" for run in runs if failed(run)]
    if options.check:
        faults = list(dict.fromkeys([*faults, *map(str, compare(runs, options))]))
        print(f"{len(faults)} regressions" if faults else "no regression")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
