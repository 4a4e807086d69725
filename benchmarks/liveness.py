"""How many sites are decided from source alone, and how many of them wrongly.

The truth is the converted model itself: with every site swapped it runs in train and in eval
mode, and each operation is watched for a read of a tensor that a site would have overwritten.

Example:
    All suites, with the table in ``benchmarks/results/liveness.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.liveness

Exit status: 1 if a site that is called neutral is read, or one that is called load-bearing runs
and is not read.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.cases import SUITES, Case, load_suite, select
from benchmarks.report import RESULTS, command_line, read_commands, table, version_list
from safemodules.conversion.decisions import verdicts_from_source
from safemodules.conversion.stale_reads import StaleReads
from safemodules.conversion.survey import AnySite, Survey, survey_model
from safemodules.conversion.trial import converted
from safemodules.mutation.liveness.verdicts import Effect
from safemodules.state import preserved, seed_everything
from safemodules.trees import CallArguments, clone_inputs


@dataclass
class Row:
    """One model.

    Attributes:
        name: Name of the case.
        effects: Sites by verdict.
        unknown_ran: Unknown sites that ran.
        ran: Sites that ran on the example inputs.
        wrong: Sites whose verdict the run refutes, in words.
        unknown: Why sites are unknown, with their number.
        seconds: Seconds of the analysis.
        error: What ended the model, empty if nothing.
    """

    name: str
    effects: Counter[str] = field(default_factory=Counter)
    unknown_ran: int = 0
    ran: int = 0
    wrong: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    error: str = ""


def truth(
    survey: Survey, sites: Sequence[AnySite], case: Case
) -> tuple[dict[AnySite, str], set[AnySite]]:
    """Who reads what a swapped site would have overwritten, and which sites ran.

    A site that is read stays in place, and the rest is watched again until nothing is read.
    """
    found: dict[AnySite, str] = {}
    ran: set[AnySite] = set()
    while True:
        watch = watched(survey, [site for site in sites if site not in found], case)
        ran |= watch.ran
        if not watch.found:
            return found, ran
        found.update(watch.found)


def watched(survey: Survey, sites: Sequence[AnySite], case: Case) -> StaleReads:
    """A run with some sites swapped, in each mode."""
    watch = StaleReads(sites)
    with converted(survey, sites):
        for mode in case.modes:
            call = case.call(mode)
            with preserved(survey.model):
                survey.model.train(mode == "train")
                seed_everything(0)
                given = CallArguments(call.args, call.kwargs)
                handed, _ = clone_inputs(given, requires_grad=False)
                watch.run(survey.model, handed)
    return watch


def run(case: Case) -> Row:
    """Judge the verdicts on one model."""
    row = Row(case.name)
    survey = survey_model(case.build())
    started = time.perf_counter()
    verdicts = verdicts_from_source(survey).sites
    row.seconds = time.perf_counter() - started
    found, ran = truth(survey, list(verdicts), case)
    row.ran = len(ran)
    row.unknown_ran = sum(verdicts[site].effect is Effect.UNKNOWN for site in ran)
    for site, verdict in verdicts.items():
        row.effects[verdict.effect.value] += 1
        if verdict.effect is Effect.UNKNOWN:
            row.unknown[verdict.reason.split("site-packages/")[-1]] += 1
        read = found.get(site)
        if verdict.effect is Effect.NEUTRAL and read is not None:
            if site not in watched(survey, [site], case).found:
                continue  # a read is told of all sites of a statement; it is of another one
            row.wrong.append(f"{site.site} is called neutral, but {read}")
        if verdict.effect in (Effect.UNREACHED, Effect.NO_TENSOR) and site in ran:
            row.wrong.append(f"{site.site} is called {verdict.effect.value}, but runs")
        if verdict.effect is Effect.LOAD_BEARING and site in ran and read is None:
            row.wrong.append(f"{site.site} is called load-bearing ({verdict.reason}), not read")
    return row


def read(path: Path) -> list[Row]:
    """The rows that an earlier run has stored, empty if there was none."""
    stored = path.with_suffix(".json")
    rows = json.loads(stored.read_text())["rows"] if stored.exists() else []
    counted = ("effects", "unknown")
    return [Row(**{k: Counter(v) if k in counted else v for k, v in row.items()}) for row in rows]


def write(rows: Sequence[Row], path: Path, commands: Sequence[str]) -> None:
    """Write the page, and the rows beside it as JSON."""
    path.write_text(page(rows, commands))
    lines = ",\n".join(json.dumps(vars(row)) for row in rows)
    data = f'{{"commands": {json.dumps(commands)}, "rows": [\n{lines}\n]}}\n'
    path.with_suffix(".json").write_text(data)


def page(rows: Sequence[Row], commands: Sequence[str]) -> str:
    """The Markdown page."""
    known = version_list()
    lines = [
        "# Sites decided from source alone",
        "",
        f"Command: {', then '.join(f'`{command}`' for command in commands)}",
        "",
        f"Versions: {known}.",
        "",
        "Sites that cannot be rewritten are left out. *unknown* are those that a conversion",
        "without inputs leaves in place for want of a verdict; *unknown, ran*: those of them that",
        "overwrite a tensor on the example inputs. *unreached* do not run as the attributes of the",
        "modules are; *no tensor*: they change numbers, or lists of such. *wrong*: a verdict that",
        "a run with all sites swapped refutes. *s*: seconds of the longest analysis.",
        "",
    ]
    lines += table(
        ("suite", "models", "sites", *(e.value for e in Effect), "unknown of sites", "unknown, ran",
         "ran", "wrong", "s"),
        list(_suites(rows)),
    )  # fmt: skip
    wrong = [f"- {row.name}: {text}" for row in rows for text in row.wrong]
    lines += ["", "## Wrong", "", *(wrong or ["None."])]
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons.update(row.unknown)
    lines += ["", "## Why sites are unknown", ""]
    lines += table(("sites", "reason"), [(str(n), why) for why, n in reasons.most_common(25)])
    errors = [f"- {row.name}: {row.error}" for row in rows if row.error]
    if errors:
        lines += ["", "## Not analysed", "", *errors]
    return "\n".join(lines) + "\n"


def _suites(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    suites = list(dict.fromkeys(row.name.split("/")[0] for row in rows))
    for suite in [*suites, "all"]:
        mine = [row for row in rows if suite == "all" or row.name.startswith(f"{suite}/")]
        effects: Counter[str] = Counter()
        for row in mine:
            effects.update(row.effects)
        sites = sum(effects.values())
        yield (
            suite,
            str(len(mine)),
            str(sites),
            *(str(effects[effect.value]) for effect in Effect),
            f"{100 * effects[Effect.UNKNOWN.value] / max(sites, 1):.2f}%",
            str(sum(row.unknown_ran for row in mine)),
            str(sum(row.ran for row in mine)),
            str(sum(len(row.wrong) for row in mine)),
            f"{max((row.seconds for row in mine), default=0):.2f}",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.liveness")
    add = parser.add_argument
    add("--suite", default=",".join(SUITES), help="suites, separated by commas")
    add("--only", metavar="GLOB", default="*", help="only the models whose name matches")
    add("--light", action="store_true", help="leave out the heavy models")
    add("--update", action="store_true", help="keep the other rows of the page")
    add("--missing", action="store_true", help="with --update: only models that it lacks")
    add("--output", type=Path, default=RESULTS / "liveness.md")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = [case for suite in options.suite.split(",") for case in load_suite(suite)]
    cases = [c for c in select(cases, options.only) if not (options.light and c.heavy)]
    rows = {row.name: row for row in read(options.output)} if options.update else {}
    commands = read_commands(options.output) if options.update else []
    commands.append(command_line("liveness", arguments))
    if options.missing:
        cases = [case for case in cases if case.name not in rows]
    for number, case in enumerate(cases, 1):
        try:
            row = run(case)
        except Exception as error:  # one model must not end the others
            row = Row(case.name, error=f"{type(error).__name__}: {error}".splitlines()[0])
        rows[case.name] = row
        print(f"[{number}/{len(cases)}] {row.name} {dict(row.effects)} {row.error}", flush=True)
        for text in row.wrong:
            print(f"  {text}", flush=True)
        gc.collect()
        ordered = sorted(rows.values(), key=lambda row: SUITES.index(row.name.split("/")[0]))
        write(ordered, options.output, commands)
    return 1 if any(row.wrong for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
