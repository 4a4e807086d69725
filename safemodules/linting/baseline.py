"""A baseline: the findings that a code base has already, so that only new ones are reported.

A finding is known by its code, its function and the text of its line, not by the line's number,
so that edits elsewhere in the file do not bring it up again.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from safemodules.linting.config import ConfigError
from safemodules.linting.findings import Finding

_VERSION = 1
Known = Counter[tuple[str, str]]


def write_baseline(path: Path, findings: Iterable[Finding]) -> int:
    """Write findings as known ones.

    Returns:
        How many.
    """
    known = Counter((_relative(found.path, path), fingerprint(found)) for found in findings)
    files: dict[str, dict[str, int]] = {}
    for (file, print_), count in sorted(known.items()):
        files.setdefault(file, {})[print_] = count
    document = {"version": _VERSION, "findings": files}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return known.total()


def read_baseline(path: Path) -> Known:
    """Read known findings.

    Raises:
        ConfigError: the file cannot be read, or is no baseline.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']}, expected {_VERSION}")
        return Counter(
            {
                (file, print_): int(count)
                for file, prints in document["findings"].items()
                for print_, count in prints.items()
            }
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"baseline {path}: {error}; write one with `safemodules lint --write-baseline {path}`"
        ) from error


def without_known(findings: Iterable[Finding], known: Known, path: Path) -> list[Finding]:
    """Findings that are not in a baseline, or more often than there."""
    left = Counter(known)
    new = []
    for found in findings:
        key = _relative(found.path, path), fingerprint(found)
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(found)
    return new


def fingerprint(found: Finding) -> str:
    """What a finding is known by in its file."""
    parts = found.code, found.function, " ".join(found.source.split())
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=10).hexdigest()


def _relative(file: str, baseline: Path) -> str:
    """Path of a file from the baseline's folder, alike on every system."""
    folder = os.path.dirname(os.path.abspath(baseline))
    return os.path.relpath(os.path.abspath(file), folder).replace(os.sep, "/")
