"""``safemodules lint PATHS``: find in-place faults in source files, before anything runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import safemodules as sm
from safemodules.cli.command import Command, ExitCode, UsageError
from safemodules.cli.console import Console
from safemodules.linting.baseline import read_baseline, without_known, write_baseline
from safemodules.linting.codes import TABLE, explain
from safemodules.linting.config import Config, load_config, split_codes
from safemodules.linting.formats import FORMATS
from safemodules.linting.run import lint_paths

DETAILS = """\
Reads Python files, stubs and notebooks, and reports what overwrites tensors in the forward of
modules and in the functions that they call, checkpoints that go wrong, and loops that keep
more than they need. Nothing is imported or run. `--explain SM101` tells what a code means,
`--explain all` prints them all.

A line with `# noqa: SM101` is not reported. Options may stand in [tool.safemodules.lint] of
pyproject.toml or in [safemodules:lint] of setup.cfg: select, ignore, exclude, severity, baseline.

Exit code 0: no findings. 1: some. 2: wrong use."""


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that ``lint`` and ``fix`` share."""
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files and folders")
    parser.add_argument(
        "--select",
        metavar="CODES",
        action="append",
        default=[],
        help="report codes that begin so; commas separate several",
    )
    parser.add_argument(
        "--ignore",
        metavar="CODES",
        action="append",
        default=[],
        help="do not report codes that begin so",
    )
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="pass over files and folders of this name or path",
    )
    parser.add_argument(
        "--severity", choices=("note", "warning", "error"), help="the least that is reported"
    )
    parser.add_argument(
        "--jobs", metavar="N", type=int, help="number of processes (default: one for each core)"
    )


def read_selection(options: argparse.Namespace) -> Config:
    """The options of the command line over those of the configuration files.

    Raises:
        UsageError: there is no path, or no process.
        ConfigError: an option has a wrong value.
    """
    if not options.paths:
        raise UsageError("no PATH was given: name files or folders, for instance `.`")
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs {options.jobs}: expected 1 or more")
    return load_config(
        Path.cwd(),
        {
            "select": split_codes(options.select),
            "ignore": split_codes(options.ignore),
            "exclude": tuple(options.exclude),
            "severity": options.severity,
            "baseline": getattr(options, "baseline", None),
        },
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--format", choices=tuple(FORMATS), help="default: text")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the findings to FILE")
    parser.add_argument(
        "--baseline", metavar="FILE", help="do not report the findings that FILE lists"
    )
    parser.add_argument(
        "--write-baseline", metavar="FILE", type=Path, help="list the findings in FILE"
    )
    parser.add_argument(
        "--explain", metavar="CODE", help="tell why, before and after, of a code or of `all`"
    )


def _run(options: argparse.Namespace, console: Console) -> ExitCode:
    if options.explain is not None:
        return _explain(options.explain, console)
    config = read_selection(options)
    with console.progress() as progress:
        result = lint_paths(
            options.paths, exclude=config.exclude, jobs=options.jobs, progress=progress
        )
    findings = [found for found in result.findings if config.wants(found)]
    if options.write_baseline is not None:
        count = write_baseline(options.write_baseline, findings)
        console.print(f"{count} findings are known from now on")
        console.print_json({"written": count})
        return ExitCode.CLEAN
    if config.baseline is not None:
        path = Path(config.baseline)
        findings = without_known(findings, read_baseline(path), path)
    kind = options.format or ("json" if console.json else "text")
    text = FORMATS[kind](findings, sm.__version__)
    if options.output is not None:
        try:
            options.output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {options.output}: {error.strerror or error}") from error
    elif text:
        print(text, file=console.stdout)
    return ExitCode.FINDINGS if findings else ExitCode.CLEAN


def _explain(code: str, console: Console) -> ExitCode:
    wanted = "SM" if code.lower() == "all" else code.upper()
    rows = [row for row in TABLE if row.code.startswith(wanted)]
    if not rows:
        known = ", ".join(row.code for row in TABLE)
        raise UsageError(f"--explain {code}: there is no such code; expected all or {known}")
    console.print("\n\n".join(map(explain, rows)))
    console.print_json([vars(row) for row in rows])
    return ExitCode.CLEAN


COMMAND = Command(
    name="lint",
    summary="find in-place faults, checkpoints and loops that go wrong in source files",
    details=DETAILS,
    add_arguments=_add_arguments,
    run=_run,
)
