"""Where findings of one file are put together."""

import ast
from dataclasses import dataclass, field

from safemodules.linting.findings import Finding, Fix, Severity, Verdict
from safemodules.linting.outline import FunctionOutline
from safemodules.mutation.source import SourceFile


@dataclass(eq=False)
class Report:
    """The findings of one file.

    Attributes:
        path: the file as findings name it.
        file: its text.
        findings: what was found so far.
    """

    path: str
    file: SourceFile
    findings: list[Finding] = field(default_factory=list)

    def add(
        self,
        node: ast.AST,
        code: str,
        severity: Severity,
        message: str,
        *,
        function: FunctionOutline | None = None,
        verdict: Verdict = Verdict.NONE,
        fix: Fix | None = None,
        needs_reach: bool = False,
    ) -> None:
        """Note a finding at a node."""
        start, end = self._span(node)
        (line, column), (end_line, end_column) = self._place(start), self._place(end)
        self.findings.append(
            Finding(
                self.path,
                line,
                column,
                end_line,
                end_column,
                code,
                severity,
                message,
                self.file.line(line),
                verdict,
                "" if function is None else function.qualname,
                None,
                fix,
                needs_reach,
            )
        )

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """What is shown of a node: of a call of a method, from the method's name on."""
        start, end = self.file.start(node), self.file.end(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.lineno != node.func.end_lineno or isinstance(node.func.value, ast.Call):
                start = self.file.end(node.func) - len(node.func.attr.encode())
        return start, end

    def _place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from 1, the column in characters."""
        starts = self.file.line_starts
        low, high = 0, len(starts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if starts[middle] <= offset else (low, middle - 1)
        text = self.file.data[starts[low] : offset]
        return low + 1, len(text.decode(errors="replace")) + 1
