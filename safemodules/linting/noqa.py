"""``# noqa`` comments: which findings a line silences."""

import re

from safemodules.linting.findings import Finding
from safemodules.mutation.source import SourceFile

_NOQA = re.compile(rb"#\s*noqa\b(?::\s*(?P<codes>[A-Z]+[0-9]*(?:[,\s]+[A-Z]+[0-9]*)*))?", re.I)


def is_silenced(found: Finding, file: SourceFile) -> bool:
    """Whether a comment on the first or the last line of a finding silences it.

    ``# noqa`` silences every code, ``# noqa: SM101, SM2`` those that begin so.
    """
    if b"noqa" not in file.data and b"NOQA" not in file.data:
        return False
    for line in {found.line, found.end_line}:
        text = file.data[file.line_starts[line - 1] : file.line_starts[line]]
        match = _NOQA.search(text)
        if match is not None and _names(match["codes"], found.code):
            return True
    return False


def _names(codes: bytes | None, code: str) -> bool:
    if codes is None:
        return True
    return any(code.startswith(each.upper()) for each in re.split(r"[,\s]+", codes.decode()))
