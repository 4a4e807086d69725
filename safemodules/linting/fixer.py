"""Mending files: edits applied, checked and written, each file whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from safemodules.linting.analysis import analyse_file, parse, read_text
from safemodules.linting.findings import Finding
from safemodules.linting.texts import UnreadableError
from safemodules.rewriting.edits import Edit, render, unified_diff

_ROUNDS = 10


@dataclass(frozen=True)
class FixedFile:
    """What became of one file.

    Attributes:
        path: the file.
        before: its bytes.
        after: its bytes with the edits; the same where nothing was mended.
        mended: the findings that were mended.
    """

    path: str
    before: bytes
    after: bytes
    mended: tuple[Finding, ...] = ()

    @property
    def diff(self) -> str:
        """The difference, as ``diff -u`` prints it."""
        old, new = (read_text(self.path, data).code for data in (self.before, self.after))
        return unified_diff(self.path, old, new)


def fix_bytes(
    path: str,
    data: bytes,
    *,
    is_wanted: Callable[[Finding], bool],
    reached: Collection[tuple[str, str]],
    unsafe: bool = False,
) -> FixedFile:
    """Mend the findings of one file, without writing it.

    Args:
        path: the file.
        data: its bytes.
        is_wanted: which findings are to be mended.
        reached: functions that a forward reaches, by file and qualified name.
        unsafe: also mend where the function may change.

    Returns:
        The file with and without the edits. The result has as many lines and parses.
    """
    current, mended = data, list[Finding]()
    for _ in range(_ROUNDS):  # a site may show only when the one around it is mended
        wanted = [
            found
            for found in analyse_file(path, current).findings
            if found.fix is not None
            and (found.fix.safe or unsafe)
            and is_wanted(found)
            and (not found.needs_reach or (path, found.function) in reached)
        ]
        chosen = _without_conflicts(wanted)
        after = _applied(path, current, chosen)
        if after is None or after == current:
            break
        current = after
        mended += chosen
    return FixedFile(path, data, current, tuple(mended))


def _without_conflicts(findings: Iterable[Finding]) -> list[Finding]:
    """Findings whose edits do not overlap those of earlier ones."""
    taken: set[Edit] = set()
    chosen = []
    for found in findings:
        assert found.fix is not None
        new = [edit for edit in found.fix.edits if edit not in taken]
        if not any(_overlap(edit, other) for edit in new for other in taken):
            taken.update(new)
            chosen.append(found)
    return chosen


def _overlap(first: Edit, second: Edit) -> bool:
    if first.start == first.end or second.start == second.end:
        return first.start == second.start and first.end == second.end
    return first.start < second.end and second.start < first.end


def _applied(path: str, data: bytes, findings: Iterable[Finding]) -> bytes | None:
    """The file with edits, ``None`` if the result is no Python any more."""
    text = read_text(path, data)
    edits = [edit for found in findings if found.fix is not None for edit in found.fix.edits]
    code = render(text.code.encode(), edits)
    try:
        parse(path, code)
        return text.replaced(code)
    except (UnreadableError, UnicodeEncodeError):
        return None


def write_file(path: str, data: bytes) -> None:
    """Replace a file as a whole; whoever reads it sees the old or the new one, never a part.

    Its permissions stay; of a link, the file that it leads to is replaced.

    Raises:
        OSError: it cannot be written; it is unchanged then.
    """
    target = os.path.realpath(path)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".safemodules-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
