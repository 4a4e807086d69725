"""Which files are linted."""

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch

from safemodules.errors import SafeModulesError

SUFFIXES = (".py", ".pyi", ".ipynb")
#: Folders that are passed over unless they are named themselves.
EXCLUDED = (
    ".*",
    "__pycache__",
    "__pypackages__",
    "_build",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "venv",
)


class PathError(SafeModulesError, ValueError):
    """A path that is to be linted does not exist."""


def find_files(paths: Sequence[str], exclude: Iterable[str] = ()) -> list[str]:
    """Python files, stubs and notebooks at and below some paths, each once and in order.

    Args:
        paths: files, whatever their suffix, and folders.
        exclude: patterns of names and of paths that are passed over, as a shell matches them.

    Raises:
        PathError: a path does not exist.

    Example:
        >>> find_files([__file__]) == [__file__]
        True
    """
    patterns = tuple(exclude)
    found: dict[str, None] = {}
    for path in paths:
        if os.path.isfile(path):
            found[path] = None
        elif os.path.isdir(path):
            found.update(dict.fromkeys(_below(path, patterns)))
        else:
            raise PathError(f"there is no file or folder {path!r} (current folder: {os.getcwd()})")
    return list(found)


def _below(folder: str, patterns: tuple[str, ...]) -> Iterator[str]:
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not any(fnmatch(name, pattern) for pattern in EXCLUDED)
            and not _matches(name, os.path.join(base, name), patterns)
        )
        for name in sorted(names):
            path = os.path.join(base, name)
            if name.endswith(SUFFIXES) and not _matches(name, path, patterns):
                yield os.path.normpath(path)


def _matches(name: str, path: str, patterns: Iterable[str]) -> bool:
    normal = os.path.normpath(path).replace(os.sep, "/")
    return any(
        fnmatch(name, pattern) or fnmatch(normal, pattern) or fnmatch(normal, f"*/{pattern}")
        for pattern in patterns
    )
