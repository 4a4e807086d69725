"""``safemodules fix PATHS``: mend what ``safemodules lint`` finds, in the files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from safemodules.cli.command import Command, ExitCode, UsageError
from safemodules.cli.console import Console
from safemodules.cli.lint import add_selection, read_selection
from safemodules.linting.config import Config
from safemodules.linting.fixer import FixedFile, fix_bytes, write_file
from safemodules.linting.formats import to_dict
from safemodules.linting.run import LintResult, lint_paths

DETAILS = """\
Writes plain code: `x += y` becomes `x = x + y`, `x.relu_()` becomes `x = x.relu()`,
`nn.ReLU(inplace=True)` becomes `nn.ReLU()`. Formatting, comments and the number of lines stay.
A finding is mended only where the function is provably unchanged: nobody else holds the tensor,
and the operands cannot change its dtype; attributes of modules are taken to be what the classes of
the file assign to them. --unsafe-fixes mends the others too; look at them with --diff first, and
compare the models with safemodules.verify.

Exit code 0: everything that can be mended is. 1: with --diff, something would be. 2: wrong use."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--diff", action="store_true", help="print the edits, write nothing")
    parser.add_argument(
        "--unsafe-fixes", action="store_true", help="also mend where the function may change"
    )


def _run(options: argparse.Namespace, console: Console) -> ExitCode:
    config = read_selection(options)
    with console.progress() as progress:
        result = lint_paths(
            options.paths, exclude=config.exclude, jobs=options.jobs, progress=progress
        )
    fixed = _fixed_files(result, config, unsafe=options.unsafe_fixes)
    for file in fixed:
        if options.diff:
            console.print(file.diff.rstrip("\n"))
        else:
            _write(file)
    mended = [found for file in fixed for found in file.mended]
    verb = "would be mended" if options.diff else "mended"
    console.print(f"{len(mended)} findings in {len(fixed)} files {verb}")
    console.print_json(
        {
            "diff": options.diff,
            "files": [
                {"path": file.path, "diff": file.diff, "mended": [to_dict(f) for f in file.mended]}
                for file in fixed
            ],
        }
    )
    return ExitCode.FINDINGS if options.diff and fixed else ExitCode.CLEAN


def _fixed_files(result: LintResult, config: Config, *, unsafe: bool) -> list[FixedFile]:
    paths = dict.fromkeys(
        found.path
        for found in result.findings
        if config.wants(found) and found.fix is not None and (found.fix.safe or unsafe)
    )
    fixed = []
    for path in paths:
        data = Path(path).read_bytes()
        file = fix_bytes(path, data, is_wanted=config.wants, reached=result.reached, unsafe=unsafe)
        if file.after != data:
            fixed.append(file)
    return fixed


def _write(file: FixedFile) -> None:
    try:
        if Path(file.path).read_bytes() != file.before:
            raise UsageError(f"{file.path} was changed meanwhile, and is left as it is; run again")
        write_file(file.path, file.after)
    except OSError as error:
        where = os.path.abspath(file.path)
        raise UsageError(f"{where} cannot be written: {error.strerror or error}") from error


COMMAND = Command(
    name="fix",
    summary="mend in the files what lint finds, where the function stays the same",
    details=DETAILS,
    add_arguments=_add_arguments,
    run=_run,
)
