"""Convert every model of the zoo and compare it with its original, bit for bit.

Example:
    All suites, one child process at a time, with the table written to
    ``benchmarks/results/zoo.md``::

        python -m benchmarks.zoo

    The ResNets of torchvision, converted without example inputs::

        python -m benchmarks.zoo --suite torchvision --only 'resnet*' --no-inputs

Exit status: 0 if no model differs or crashes (a refusal is no failure), 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cases import DATA, SUITES, Case, load_suite, measured_seconds, select
from benchmarks.compare import GOOD, Outcome
from benchmarks.converters import CONVERTERS
from benchmarks.report import RESULTS, command_line, read, read_commands, summary, write
from benchmarks.workers import Options, run_cases


def torchvision_cases(*, heavy: bool | None = None) -> list[Case]:
    """The cases of torchvision: all, the heavy ones, or (``heavy=False``) the light ones."""
    return [c for c in load_suite("torchvision") if heavy is None or c.heavy == heavy]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--suite", default=",".join(SUITES), help="suites, separated by commas")
    add("--only", metavar="GLOB", default="*", help="only the models whose name matches")
    add("--light", action="store_true", help="leave out the heavy models")
    add("--self", dest="alone", action="store_true", help="no conversion: is it repeatable?")
    add("--no-inputs", action="store_true", help="convert without example inputs")
    add("--converter", choices=CONVERTERS, default="safemodules", help="'flags' is a control")
    add("--jobs", type=int, default=1, metavar="N", help="child processes at a time")
    add("--timeout", type=float, default=Options.timeout, help="seconds for one model")
    add("--memory", type=float, default=Options.memory, help="resident MiB of a child")
    add("--recycle", type=int, default=Options.recycle, help="models that one child runs")
    add("--output", type=Path, help="page to write (default benchmarks/results/zoo.md)")
    add("--list", action="store_true", help="print the names and stop")
    add("--update", action="store_true", help="keep the other rows of the page")
    add("--missing", action="store_true", help="with --update: only models that it lacks")
    add("--write-seconds", action="store_true", help="store the measured times in the table")
    options = parser.parse_args(arguments)
    unknown = set(options.suite.split(",")) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = parse(arguments)
    suites = options.suite.split(",")
    chosen = select((case for suite in suites for case in load_suite(suite)), options.only)
    chosen = [case for case in chosen if not (options.light and case.heavy)]
    if options.list:
        print("\n".join(f"{case.name}{' (heavy)' if case.heavy else ''}" for case in chosen))
        return 0
    settings = Options(
        converter=None if options.alone else options.converter,
        with_inputs=not options.no_inputs,
        timeout=options.timeout,
        memory=options.memory,
        recycle=options.recycle,
    )
    path = options.output or default_output(options)
    before = read(path) if options.update else []
    commands = read_commands(path) if options.update else []
    commands.append(command_line("zoo", arguments))
    if options.missing:
        known = {outcome.case for outcome in before if outcome.status in GOOD}
        chosen = [case for case in chosen if case.name not in known]
    everything = [case.name for suite in SUITES for case in load_suite(suite)]

    def store(measured: Sequence[Outcome]) -> list[Outcome]:
        """Write the page; done after every model, since a long run may be cut short."""
        rows = {outcome.case: outcome for outcome in [*before, *measured]}
        outcomes = sorted(rows.values(), key=lambda row: SUITES.index(row.case.split("/")[0]))
        missing = [name for name in everything if name not in rows]
        write(outcomes, path, commands, title(options), missing)
        return outcomes

    measured = collect([case.name for case in chosen], settings, options.jobs, store)
    outcomes = store(measured)
    if options.write_seconds:
        write_seconds(measured)
    print(f"{summary(outcomes)}\n{path}")
    return 0 if outcomes and all(outcome.status in GOOD for outcome in outcomes) else 1


def default_output(options: argparse.Namespace) -> Path:
    """A page for each kind of run, so that none overwrites another."""
    if options.alone:
        return RESULTS / "zoo_self.md"
    name = "zoo" if options.converter == "safemodules" else f"zoo_{options.converter}"
    return RESULTS / f"{name}{'_no_inputs' if options.no_inputs else ''}.md"


def title(options: argparse.Namespace) -> str:
    """The heading of the page."""
    if options.alone:
        return "Zoo: each original against itself"
    how = "without example inputs" if options.no_inputs else "with example inputs"
    return f"Zoo: each model converted by {options.converter}, {how}, against its original"


def collect(
    names: Sequence[str],
    options: Options,
    jobs: int,
    store: Callable[[Sequence[Outcome]], object],
) -> list[Outcome]:
    """Run all cases with a line of progress each; returns them in the order of the names."""
    outcomes: dict[str, Outcome] = {}
    started = last = time.monotonic()
    for outcome in run_cases(names, options, jobs):
        outcomes[outcome.case] = outcome
        store(list(outcomes.values()))
        now = time.monotonic()
        first = outcome.detail or (outcome.differences[0] if outcome.differences else "")
        print(
            f"[{len(outcomes):3}/{len(names)} {now - started:5.0f} s] {outcome.case:55} "
            f"{outcome.status:10} {now - last:6.1f} s {outcome.peak_mib:6.0f} MiB "
            f"{outcome.informative:4.0%}  {first[:120]}",
            flush=True,
        )
        last = now
    return [outcomes[name] for name in names]


def write_seconds(outcomes: Sequence[Outcome]) -> None:
    """Store the time of each good case, from which it is known to be heavy or light."""
    table = dict(measured_seconds())
    table |= {o.case: round(o.pass_seconds, 2) for o in outcomes if o.status in GOOD}
    text = json.dumps(dict(sorted(table.items())), indent=0)
    (DATA / "seconds.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
