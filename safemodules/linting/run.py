"""Linting a tree of files, in several processes where that pays."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from safemodules.linting.analysis import FileResult, analyse_file
from safemodules.linting.files import find_files
from safemodules.linting.findings import Finding, Severity
from safemodules.linting.prefilter import TORCH
from safemodules.linting.reaching import Tree, module_name

_ENOUGH = 400_000  # bytes from which further processes pay
_CHUNK = 400_000  # bytes of one task

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LintResult:
    """What linting has found.

    Attributes:
        findings: in the order of files and lines.
        files: number of files that were read.
        lines: number of their lines.
        reached: functions that a forward reaches, by file and qualified name.
    """

    findings: tuple[Finding, ...]
    files: int
    lines: int
    reached: frozenset[tuple[str, str]] = frozenset()


def lint_paths(
    paths: Sequence[str],
    *,
    exclude: Sequence[str] = (),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> LintResult:
    """Find in-place faults, checkpoints and loops in source files; nothing is imported or run.

    Args:
        paths: files and folders.
        exclude: patterns of files and folders to pass over.
        jobs: number of processes; by default one for each core.
        progress: called as ``progress(what, done, total)``, in bytes.

    Returns:
        The findings; in-place ones only in functions that the forward of a module reaches.

    Raises:
        PathError: a path does not exist.

    Example:
        >>> lint_paths([__file__]).findings
        ()
    """
    files = find_files(paths, exclude)
    sizes = {path: _size(path) for path in files}
    workers = _Workers(os.cpu_count() or 1 if jobs is None else jobs, sum(sizes.values()))
    names = {path: module_name(path) for path in files}
    results: dict[str, FileResult] = {}
    with workers:
        for result in _tracked(workers.run(_first_look, files, sizes), sizes, progress):
            results[result.path] = result
        while True:
            summaries = (r.summary for r in results.values() if r.summary is not None)
            tree = Tree(summaries, names)
            reached = tree.run()
            missing = [p for p in sorted(tree.missing) if results[p].summary is None]
            missing = [p for p in missing if not results[p].findings]
            if not missing:
                break
            for result in workers.run(_look, missing, sizes):
                results[result.path] = result
    findings = [
        found
        for path in files
        for found in results[path].findings
        if not found.needs_reach or (path, found.function) in reached
    ]
    lines = sum(result.lines for result in results.values())
    return LintResult(tuple(findings), len(files), lines, frozenset(reached))


def lint_file(path: str, data: bytes) -> tuple[Finding, ...]:
    """Lint one file alone, from its bytes.

    Args:
        path: how findings name it; the suffix tells a notebook.
        data: its bytes.
    """
    result = analyse_file(path, data)
    if result.summary is None:
        return result.findings
    tree = Tree([result.summary], {path: module_name(path)})
    reached = tree.run()
    return tuple(
        found
        for found in result.findings
        if not found.needs_reach or (path, found.function) in reached
    )


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _tracked(
    results: Iterator[FileResult], sizes: dict[str, int], progress: Progress | None
) -> Iterator[FileResult]:
    done, total = 0, sum(sizes.values())
    for result in results:
        yield result
        done += sizes[result.path]
        if progress is not None:
            progress("linting", done, total)


# -- work of one process --------------------------------------------------------------------


def _first_look(paths: Sequence[str]) -> list[FileResult]:
    """Lint files that may hold modules; the others only if something leads to them."""
    return [_read_and(path, lambda data: TORCH.search(data) is not None) for path in paths]


def _look(paths: Sequence[str]) -> list[FileResult]:
    """Lint files whatever they hold."""
    return [_read_and(path, lambda data: True) for path in paths]


def _read_and(path: str, is_wanted: Callable[[bytes], bool]) -> FileResult:
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except OSError as error:
        message = f"is not read: {error.strerror or error}"
        return FileResult(path, (Finding(path, 1, 1, 1, 1, "SM001", Severity.WARNING, message),))
    if not is_wanted(data):
        return FileResult(path, lines=data.count(b"\n"))
    return analyse_file(path, data)


class _Workers:
    """A pool of processes, or this one where the work is little."""

    def __init__(self, jobs: int, size: int) -> None:
        self.pool: ProcessPoolExecutor | None = None
        if jobs > 1 and size > _ENOUGH:
            # a fork of a process with threads may lock up; and it need not import torch again
            forks = hasattr(os, "fork") and threading.active_count() == 1
            context = multiprocessing.get_context("fork" if forks else "spawn")
            self.pool = ProcessPoolExecutor(jobs, mp_context=context)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def run(
        self,
        work: Callable[[Sequence[str]], list[FileResult]],
        files: Sequence[str],
        sizes: dict[str, int],
    ) -> Iterator[FileResult]:
        """Do some work on files, large chunks first."""
        chunks = list(_chunks(files, sizes))
        mapped = map(work, chunks) if self.pool is None else self.pool.map(work, chunks)
        for results in mapped:
            yield from results


def _chunks(files: Sequence[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for path in files:
        chunk.append(path)
        size += sizes[path]
        if size > _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
