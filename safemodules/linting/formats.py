"""Findings as text, JSON, SARIF and annotations of GitHub."""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from safemodules.linting.baseline import fingerprint
from safemodules.linting.codes import CODES, TABLE
from safemodules.linting.findings import Finding

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(findings: Sequence[Finding], version: str) -> str:
    """One line for each finding, and a summary."""
    lines = [f"{found.place}: {found.code} {found.severity}: {found.message}" for found in findings]
    return "\n".join([*lines, summary(findings)])


def summary(findings: Sequence[Finding]) -> str:
    """How many there are, and how many can be mended."""
    if not findings:
        return "no findings"
    counts = Counter(str(found.severity) for found in findings)
    parts = [f"{counts[level]} {level}{'s' if counts[level] != 1 else ''}" for level in
             ("error", "warning", "note") if counts[level]]  # fmt: skip
    safe = sum(found.fix is not None and found.fix.safe for found in findings)
    fixable = sum(found.fix is not None for found in findings)
    text = f"{len(findings)} finding{'s' if len(findings) != 1 else ''}: {', '.join(parts)}"
    if fixable:
        text += f"; `safemodules fix` mends {safe} of them"
        if fixable > safe:
            text += f", {fixable} with --unsafe-fixes"
    return text


def as_json(findings: Sequence[Finding], version: str) -> str:
    """One JSON document."""
    return json.dumps({"version": version, "findings": [to_dict(f) for f in findings]}, indent=2)


def to_dict(found: Finding) -> dict[str, Any]:
    """A finding as JSON has it."""
    return {
        "path": found.path,
        "cell": found.cell,
        "line": found.line,
        "column": found.column,
        "end_line": found.end_line,
        "end_column": found.end_column,
        "code": found.code,
        "name": CODES[found.code].name,
        "severity": str(found.severity),
        "verdict": str(found.verdict) or None,
        "message": found.message,
        "source": found.source,
        "function": found.function or None,
        "fix": None if found.fix is None else ("safe" if found.fix.safe else "unsafe"),
    }


def as_github(findings: Sequence[Finding], version: str) -> str:
    """Workflow commands that annotate a pull request."""
    kinds = {"error": "error", "warning": "warning", "note": "notice"}
    lines = []
    for found in findings:
        cell = "" if found.cell is None else f"cell {found.cell}, line {found.line}: "
        place = f"file={_property(found.path)},line={found.line},endLine={found.end_line}"
        place += f",col={found.column},title={_property(f'{found.code} {CODES[found.code].name}')}"
        lines.append(f"::{kinds[str(found.severity)]} {place}::{_data(cell + found.message)}")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_sarif(findings: Sequence[Finding], version: str) -> str:
    """A log in the Static Analysis Results Interchange Format, version 2.1.0."""
    indices = {row.code: index for index, row in enumerate(TABLE)}
    rules = [
        {
            "id": row.code,
            "name": row.name.title().replace(" ", ""),
            "shortDescription": {"text": row.name},
            "fullDescription": {"text": row.why},
            "help": {"text": f"Before:\n{row.before}\n\nAfter:\n{row.after}"},
        }
        for row in TABLE
    ]
    results = [_sarif_result(found, indices) for found in findings]
    driver = {"name": "safemodules", "version": version, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=2)


def _sarif_result(found: Finding, indices: Mapping[str, int]) -> dict[str, Any]:
    cell = "" if found.cell is None else f" (cell {found.cell})"
    region = {
        "startLine": found.line,
        "startColumn": found.column,
        "endLine": found.end_line,
        "endColumn": found.end_column,
    }
    uri = os.path.relpath(found.path) if os.path.isabs(found.path) else found.path
    location = {"artifactLocation": {"uri": uri.replace(os.sep, "/")}, "region": region}
    return {
        "ruleId": found.code,
        "ruleIndex": indices[found.code],
        "level": str(found.severity),
        "message": {"text": found.message + cell},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"safemodules/v1": fingerprint(found)},
    }


#: Output formats by the name that ``--format`` takes.
FORMATS: Mapping[str, Callable[[Sequence[Finding], str], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}
