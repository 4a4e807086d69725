"""Fix copies of torchvision's and timm's sources, and compare their models bit for bit.

The sources are copied to a temporary folder three times: as they are, mended by
``safemodules fix``, and mended by ``safemodules fix --unsafe-fixes``. Each copy is imported in a
process of its own, in which every light model of the zoo runs forward and backward in train and
eval mode; outputs, gradients, buffers, inputs and random numbers are compared by digests.

Example:
    Both libraries, with the table in ``benchmarks/results/fixed_sources.md``::

        OMP_NUM_THREADS=1 python -m benchmarks.fixed_sources

Exit status: 1 if a model of the safely mended sources differs from the original.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.report import RESULTS, command_line, table, version_list
from safemodules.linting.fixer import fix_bytes, write_file
from safemodules.linting.run import lint_paths

LIBRARIES = ("torchvision", "timm")
ORIGINAL, SAFE, UNSAFE = "original", "fix", "fix --unsafe-fixes"
VARIANTS = (ORIGINAL, SAFE, UNSAFE)
ROOT = Path(__file__).parents[1]
Digests = dict[str, str]


def copy_sources(library: str, folder: Path) -> None:
    """Copy the sources of a library; everything else is linked."""
    spec = importlib.util.find_spec(library)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).parent
    for base, folders, names in os.walk(source):
        folders[:] = [name for name in folders if name != "__pycache__"]
        target = folder / library / Path(base).relative_to(source)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name.endswith(".py"):
                shutil.copy(Path(base, name), target / name)
            else:
                (target / name).symlink_to(Path(base, name))
    for extra in source.parent.glob(f"{library}.libs"):
        (folder / extra.name).symlink_to(extra)


def mend(folder: Path, *, unsafe: bool) -> Counter[str]:
    """Mend every file below a folder; how often each code."""
    result = lint_paths([str(folder)], jobs=1)
    counts: Counter[str] = Counter()
    for path in dict.fromkeys(found.path for found in result.findings if found.fix is not None):
        data = Path(path).read_bytes()
        fixed = fix_bytes(
            path, data, is_wanted=lambda found: True, reached=result.reached, unsafe=unsafe
        )
        counts.update(found.code for found in fixed.mended)
        if fixed.after != data:
            write_file(path, fixed.after)
    return counts


# -- in the process of one variant ----------------------------------------------------------


def serve(libraries: Sequence[str], names: Sequence[str] | None, seconds: float) -> None:
    """Print one JSON line for each model: its name and the digests of its runs."""
    from benchmarks.cases import load_suite

    warnings.simplefilter("ignore")
    for library in libraries:
        module = importlib.import_module(library)
        assert module.__file__ is not None and "fixed-sources" in module.__file__, module.__file__
        for case in load_suite(library):
            if names is not None and case.name not in names:
                continue
            if names is None and (case.seconds or 0.0) > seconds:
                continue
            print(json.dumps([case.name, digests_of(case.name, seconds)]), flush=True)


def digests_of(name: str, seconds: float) -> Digests:
    """Digest of everything that a model does in each mode; empty if it takes too long."""
    from benchmarks.cases import load_case
    from benchmarks.runs import run

    case = load_case(name)
    found: Digests = {}
    try:
        model = case.build()
        for mode in case.modes:
            record = run(model, case, mode, backward=mode in case.gradients)
            if record.seconds > seconds:
                return {}
            text = json.dumps(record.entries, sort_keys=True)
            found[mode] = hashlib.sha256(text.encode()).hexdigest()
    except Exception as error:  # a model that cannot run is compared by what it raises
        found["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return found


def run_variant(
    folder: Path, libraries: Sequence[str], names: Sequence[str] | None, seconds: float
) -> dict[str, Digests]:
    """Run the models of one variant in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fixed_sources", "--serve"]
    command += ["--libraries", *libraries, "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    if names is not None:
        environment["FIXED_SOURCES_NAMES"] = json.dumps(list(names))
    found: dict[str, Digests] = {}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, digests = json.loads(line)
            if digests:
                found[name] = digests
            print(f"{folder.name}: {name}", file=sys.stderr, flush=True)
    if process.returncode:
        raise RuntimeError(f"the models of {folder} ended with exit code {process.returncode}")
    return found


# -- the page -------------------------------------------------------------------------------


def compare(original: dict[str, Digests], other: dict[str, Digests]) -> dict[str, str]:
    """What differs, by name of the model; nothing where all is equal."""
    return {
        name: other.get(name, {}).get("error") or ", ".join(
            mode for mode in digests if other.get(name, {}).get(mode) != digests[mode]
        )
        for name, digests in original.items()
        if other.get(name) != digests
    }  # fmt: skip


def page(
    command: str,
    counts: dict[str, Counter[str]],
    results: dict[str, dict[str, Digests]],
) -> str:
    """The table in Markdown."""
    original = results[ORIGINAL]
    rows = []
    for variant in VARIANTS[1:]:
        differing = compare(original, results[variant])
        for library in LIBRARIES:
            names = [name for name in original if name.startswith(f"{library}/")]
            if not names:
                continue
            different = [name for name in names if name in differing]
            codes = counts[f"{variant} {library}"]
            edits = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
            equal = f"{len(names) - len(different)} of {len(names)}"
            rows.append([f"`{variant}`", library, edits or "none", equal])
    differing = compare(original, results[UNSAFE])
    lines = [
        "# Models of mended sources",
        "",
        "Copies of the libraries' sources, mended and imported in place of the originals.",
        "Equal: outputs, gradients, buffers, inputs afterwards and random numbers, bit",
        "for bit on the CPU, in train and in eval mode.",
        "",
        *table(["Sources", "Library", "Findings mended", "Models equal"], rows),
        "",
        "`--unsafe-fixes` mends what is not proven; these models then differ:",
        "",
        *(table(["Model", "Modes, or what it raises"], [[f"`{n}`", w] for n, w in
                sorted(differing.items())]) if differing else ["none"]),
        "",
        f"`{command}` with {version_list()}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds of a light run")
    parser.add_argument("--output", type=Path, default=RESULTS / "fixed_sources.md")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if options.serve:
        names = os.environ.get("FIXED_SOURCES_NAMES")
        serve(options.libraries, None if names is None else json.loads(names), options.seconds)
        return 0
    counts: dict[str, Counter[str]] = {}
    results: dict[str, dict[str, Digests]] = {}
    with tempfile.TemporaryDirectory(prefix="fixed-sources-") as base:
        for number, variant in enumerate(VARIANTS):
            folder = Path(base) / str(number)
            for library in options.libraries:
                copy_sources(library, folder)
                if variant != ORIGINAL:
                    mended = mend(folder / library, unsafe=variant == UNSAFE)
                    counts[f"{variant} {library}"] = mended
            names = list(results[ORIGINAL]) if results else None
            limit = options.seconds if names is None else float("inf")
            results[variant] = run_variant(folder, options.libraries, names, limit)
    command = command_line("fixed_sources", argv)
    for library in LIBRARIES:
        for variant in VARIANTS[1:]:
            counts.setdefault(f"{variant} {library}", Counter())
    text = page(command, counts, results)
    options.output.write_text(text, encoding="utf-8")
    print(text)
    return 1 if compare(results[ORIGINAL], results[SAFE]) else 0


if __name__ == "__main__":
    sys.exit(main())
