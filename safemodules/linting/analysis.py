"""All findings of one file, and the summary that tells which of them a forward reaches."""

import ast
import bisect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from safemodules.linting.checkpoints import report_checkpoints
from safemodules.linting.contexts import SourceContext
from safemodules.linting.findings import Finding, Severity
from safemodules.linting.flags import report_flags
from safemodules.linting.inplace import InPlace, may_write
from safemodules.linting.loops import report_loops
from safemodules.linting.noqa import is_silenced
from safemodules.linting.notebooks import read_notebook
from safemodules.linting.outline import FunctionOutline, Outline
from safemodules.linting.prefilter import BACKWARD, CHECKPOINTS, FLAGS, LOOPS, WRITES
from safemodules.linting.reporting import Report
from safemodules.linting.summaries import Summary, summarise
from safemodules.linting.texts import Text, UnreadableError, read_python
from safemodules.mutation.finder import find
from safemodules.mutation.fresh_modules import Freshnesses
from safemodules.mutation.freshness import analyse_text
from safemodules.mutation.source import SourceFile


@dataclass(frozen=True)
class FileResult:
    """What one file has.

    Attributes:
        path: the file.
        findings: all of them, those in functions that no forward reaches included.
        summary: ``None`` where the file was not parsed.
        lines: how many lines it has.
    """

    path: str
    findings: tuple[Finding, ...] = ()
    summary: Summary | None = None
    lines: int = 0


def read_text(path: str, data: bytes) -> Text:
    """The code of a file, by its suffix.

    Raises:
        UnreadableError: it is not text, or no notebook.
    """
    return read_notebook(data) if path.endswith(".ipynb") else read_python(data)


def parse(path: str, code: str) -> SourceFile:
    """Parse code without warnings about it.

    Raises:
        UnreadableError: it is no Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SourceFile.parse(path, code)
    except SyntaxError as error:
        raise UnreadableError(f"line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


def analyse_file(path: str, data: bytes) -> FileResult:
    """Lint one file.

    Args:
        path: how findings name it; the suffix tells a notebook.
        data: its bytes.
    """
    lines = data.count(b"\n")
    try:
        text = read_text(path, data)
        file = parse(path, text.code)
    except UnreadableError as error:
        found = Finding(path, 1, 1, 1, 1, "SM001", Severity.WARNING, f"is not read: {error}")
        return FileResult(path, (found,), None, lines)
    report = Report(path, file)
    try:
        outline = Outline.of(file)
        _Analysis(outline, report).run()
        summary = summarise(path, outline)
    except RecursionError:
        found = Finding(
            path, 1, 1, 1, 1, "SM001", Severity.WARNING, "is not read: it is nested too deeply"
        )
        return FileResult(path, (found,), None, lines)
    findings = (found for found in _distinct(report.findings) if not is_silenced(found, file))
    return FileResult(path, tuple(_placed(found, text) for found in findings), summary, lines)


def _distinct(findings: list[Finding]) -> list[Finding]:
    """Each finding once; nested definitions are seen more than once."""
    known: dict[tuple[int, int, str], Finding] = {}
    for found in findings:
        known.setdefault((found.line, found.column, found.code), found)
    return sorted(known.values(), key=lambda found: found.order)


def _placed(found: Finding, text: Text) -> Finding:
    cell, line = text.place(found.line)
    if cell is None:
        return found
    end_line = text.place(found.end_line)[1]
    return replace(found, cell=cell, line=line, end_line=max(line, end_line))


@dataclass(eq=False)
class _Analysis:
    """The rules over one file."""

    outline: Outline
    report: Report
    fresh: dict[str, Freshnesses] = field(default_factory=dict)

    def run(self) -> None:
        places = _Places(self.outline)
        data = self.outline.file.data
        if FLAGS.search(data):
            report_flags(self.outline, places.nodes(FLAGS), self.report, self.fresh_in)
        names = self.outline.flagged | self.outline.in_place_names
        for function in places.ordered if names else places.functions(WRITES):
            if not _is_special(function) and may_write(function, names):
                InPlace(self.outline, function, self.report).run()
        if CHECKPOINTS.search(data):
            for node, owner in places.nodes(CHECKPOINTS):
                report_checkpoints(self.outline, node, owner, self.report)
        if BACKWARD.search(data):
            for node, owner in places.nodes(BACKWARD):
                report_loops(self.outline, node, owner, self.report)
        for function in places.functions(LOOPS):
            if function.self_name is not None:
                report_loops(self.outline, function.node, function, self.report)

    def fresh_in(self, function: FunctionOutline) -> Freshnesses:
        """What is fresh in a function, analysed once."""
        known = self.fresh.get(function.qualname)
        if known is None:
            context = SourceContext.of(self.outline, function)
            sites = find(function.node, context, references=False).sites
            known = analyse_text(function.node, context, sites)
            self.fresh[function.qualname] = known
        return known


def _is_special(function: FunctionOutline) -> bool:
    """Whether a function is called by Python alone, so that no forward mentions it."""
    name = function.node.name
    return name.startswith("__") and name.endswith("__") and name != "__call__"


class _Places:
    """Functions and statements of the module by line."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.ordered = sorted(outline.functions, key=lambda function: function.first_line)
        self.firsts = [function.first_line for function in self.ordered]

    def _lines(self, pattern: re.Pattern[bytes]) -> set[int]:
        starts = self.outline.file.line_starts
        matches = pattern.finditer(self.outline.file.data)
        return {bisect.bisect_right(starts, match.start()) for match in matches}

    def functions(self, pattern: re.Pattern[bytes]) -> list[FunctionOutline]:
        """Functions in whose text a pattern occurs."""
        return self._functions(self._lines(pattern))

    def _functions(self, lines: set[int]) -> list[FunctionOutline]:
        found: dict[int, FunctionOutline] = {}
        for line in lines:
            index = bisect.bisect_right(self.firsts, line) - 1
            while index >= 0:
                function = self.ordered[index]
                if line <= (function.node.end_lineno or 0):
                    found[id(function)] = function
                    if "<locals>" not in function.qualname:
                        break
                elif "<locals>" not in function.qualname:
                    break
                index -= 1
        return [function for function in self.ordered if id(function) in found]

    def nodes(self, pattern: re.Pattern[bytes]) -> Iterator[tuple[ast.AST, FunctionOutline | None]]:
        """Functions and statements of the module in whose text a pattern occurs."""
        lines = self._lines(pattern)
        for function in self._functions(lines):
            yield function.node, function
        for statement in self.outline.statements:
            last = statement.end_lineno or statement.lineno
            if any(line in lines for line in range(statement.lineno, last + 1)):
                yield statement, None
