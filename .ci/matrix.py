#!/usr/bin/env python3
"""Run the tests on every supported Python that is installed, with the oldest and newest torch.

Each pair gets an environment of its own, made in a temporary folder and removed after its run; one
with torch for an accelerator takes about 6 GB. The Pythons are those of the classifiers in
pyproject.toml, the torches the bounds of its dependencies.

Example:
    What would run, without running it::

        .ci/matrix.py --list

    One pair, some tests, with torch from another index::

        PIP_INDEX_URL=... .ci/matrix.py --python 3.12 --torch oldest -- tests/test_trees.py

Exit status: 0 if all pairs that ran have passed, 1 if one has not, 2 for wrong use or if nothing
can be run.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCHES = ("oldest", "newest")
LIBRARIES = ("torch", "torchvision")
NEEDED_BYTES = 7 * 10**9
ASK_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


@dataclass(frozen=True)
class Pair:
    """One environment.

    Attributes:
        python: Version of Python, as ``3.12``.
        interpreter: Path of that Python.
        torch: ``oldest`` or ``newest``.
        requirements: What pip is asked for.
    """

    python: str
    interpreter: str
    torch: str
    requirements: tuple[str, ...]

    @property
    def name(self) -> str:
        """The pair in words."""
        return f"Python {self.python}, {self.torch} torch"


def supported_pythons(pyproject: str) -> list[str]:
    """Versions of Python in the classifiers.

    Args:
        pyproject: Text of pyproject.toml. It is searched, not parsed: Python 3.10 has no parser.
    """
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)


def requirements(pyproject: str, torch: str) -> tuple[str, ...]:
    """What pip shall install of torch and torchvision.

    Args:
        pyproject: Text of pyproject.toml.
        torch: ``oldest`` for the lower bounds, ``newest`` for the latest below the upper ones.
    """
    found = []
    for library in LIBRARIES:
        bounds = re.search(rf'"{library}>=([\d.]+),<([\d.]+)"', pyproject)
        if bounds is None:
            raise ValueError(f"pyproject.toml holds no dependency of the form {library}>=A,<B")
        low, high = bounds.groups()
        found.append(f"{library}=={low}" if torch == "oldest" else f"{library}>={low},<{high}")
    return tuple(found)


def candidates(version: str, pyenv: Path) -> Iterator[str]:
    """Paths that may be an interpreter of a version: those on PATH, then those of pyenv."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = shutil.which(f"python{version}", path=folder or os.curdir)
        if path is not None:
            yield path
    patches = [path for path in pyenv.glob(f"versions/{version}.*/bin/python") if path.is_file()]
    yield from map(str, sorted(patches, key=_patch_number, reverse=True))


def _patch_number(path: Path) -> int:
    digits = re.match(r"\d+\.\d+\.(\d+)", path.parents[1].name)
    return int(digits[1]) if digits else -1


def is_python(path: str, version: str) -> bool:
    """Whether a path is an interpreter of a version: a shim may name one that is not installed."""
    try:
        done = subprocess.run(
            [path, "-c", ASK_VERSION], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def find_interpreters(versions: Iterable[str]) -> dict[str, str]:
    """The first working interpreter of each version that has one."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = {}
    for version in versions:
        works = (path for path in candidates(version, pyenv) if is_python(path, version))
        path = next(works, None)
        if path is not None:
            found[version] = path
    return found


def commands(pair: Pair, environment: Path, arguments: Sequence[str]) -> list[list[str]]:
    """What makes the environment of a pair and runs the tests in it."""
    python = str(environment / "bin" / "python")
    return [
        [pair.interpreter, "-m", "venv", str(environment)],
        [python, "-m", "pip", "install", "--quiet", *pair.requirements, "-e", f"{ROOT}[dev]"],
        [python, "-m", "pytest", "-n", "2", *arguments],
    ]


def run(pair: Pair, arguments: Sequence[str], folder: Path | None) -> bool:
    """Make the environment, run the tests, remove the environment; whether they passed."""
    with tempfile.TemporaryDirectory(prefix="matrix-", dir=folder) as made:
        free = shutil.disk_usage(made).free
        if free < NEEDED_BYTES:
            print(f"{made} has {free / 1e9:.1f} GB free, {NEEDED_BYTES / 1e9:.0f} are needed")
            return False
        for command in commands(pair, Path(made) / "venv", arguments):
            print(f"$ {shlex.join(command)}", flush=True)
            if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode:
                return False
    return True


def parse(argv: Sequence[str] | None, supported: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog=".ci/matrix.py", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--list", action="store_true", help="print the commands and run none")
    add("--python", action="append", choices=supported, help="one version; may be repeated")
    add("--torch", action="append", choices=TORCHES, help="one of the torches; may be repeated")
    add("--folder", type=Path, help="where the environments are made (default: the temporary one)")
    add("pytest", nargs="*", metavar="ARGUMENT", help="arguments of pytest, after `--`")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    options = parse(argv, supported_pythons(pyproject))
    wanted = options.python or supported_pythons(pyproject)
    interpreters = find_interpreters(wanted)
    pairs = [
        Pair(version, interpreters[version], torch, requirements(pyproject, torch))
        for version in wanted
        if version in interpreters
        for torch in options.torch or TORCHES
    ]
    missing = [version for version in wanted if version not in interpreters]
    results: dict[str, str] = {}
    for pair in pairs:
        print(f"\n==> {pair.name}", flush=True)
        if options.list:
            for command in commands(pair, Path("VENV"), options.pytest):
                print(shlex.join(command))
        else:
            results[pair.name] = "passed" if run(pair, options.pytest, options.folder) else "FAILED"
    print()
    for name, result in results.items():
        print(f"{name}: {result}")
    for version in missing:
        print(f"Python {version}: not installed, left out")
    if not pairs or (options.python and missing):
        return 2
    return int("FAILED" in results.values())


if __name__ == "__main__":
    sys.exit(main())
