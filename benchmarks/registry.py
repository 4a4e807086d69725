"""The programs in this folder, how each is run, and which columns of its page are ratios."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["time", "memory"]
FOLDER = Path(__file__).parent

# Programs that measure nothing: they make the data of others.
NOT_MEASURING = ("choose_timm",)


@dataclass(frozen=True)
class Measure:
    """Ratios in the tables of a page; less is better in all.

    A cell is a ratio as it stands, or becomes one when it is divided by the cell of the column
    ``over``, or by that of the row whose last key is ``base`` and whose other keys are the same.

    Attributes:
        column: Header of the column.
        keys: Headers of the columns that name a row; a table without them is passed over.
        kind: Seconds or bytes.
        over: Header of the column to divide by.
        base: Last key of the row to divide by.
        own: Pattern of the last keys that are safemodules' own: others are shown, not checked.
    """

    column: str
    keys: tuple[str, ...]
    kind: Kind
    over: str | None = None
    base: str | None = None
    own: str = ""


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: Name of the module.
        measures: The ratios of its page, none where the exit status says all.
        full: Arguments of the run whose page is committed.
        quick: Arguments of a run of less than a minute, or ``None`` where there is none.
        exact: Whether its exit status depends on what is computed alone, and not on time.
    """

    name: str
    measures: tuple[Measure, ...] = ()
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None
    exact: bool = True

    @property
    def title(self) -> str:
        """The first line of its docstring; the program is not imported."""
        text = ast.get_docstring(ast.parse((FOLDER / f"{self.name}.py").read_text("utf-8"))) or ""
        return text.partition("\n")[0]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_SMALL = "squeezenet1_1"
_NONE = "(?!)"  # a pattern that nothing has

PROGRAMS: tuple[Program, ...] = (
    Program(
        "step_time",
        (
            Measure("converted", ("model",), "time"),
            Measure("edited by hand again (noise)", ("model",), "time", own=_NONE),
            Measure("peak MiB converted", ("model",), "memory", over="peak MiB edited by hand"),
        ),
        quick=("--rounds", "31", "--only", "20 small blocks", "20 tiny blocks"),
        exact=False,
    ),
    Program(
        "mended_step",
        (
            Measure("of by hand", ("network", "variant"), "time", own="inplace="),
            Measure(
                "peak MiB",
                ("network", "variant"),
                "memory",
                base="edited by hand",
                own="inplace=",
            ),
        ),
        quick=_words("--rounds 5"),
        exact=False,
    ),
    Program(
        "checkpoint_time",
        (
            Measure("time", ("", "exact"), "time", own="safemodules|CheckpointedSeq"),
            Measure(
                "peak MiB",
                ("",),
                "memory",
                base="torch's checkpoint per block",
                own="safemodules|CheckpointedSeq",
            ),
        ),
        exact=False,
    ),
    Program(
        "budget_time",
        (
            Measure("time", ("model", "way"), "time", own="memory_budget"),
            Measure("activation peak", ("model", "way"), "memory", own="memory_budget"),
        ),
        exact=False,
    ),
    Program(
        "budget_front",
        (
            Measure("time", ("model", "way"), "time", own="memory_budget"),
            Measure("activation peak", ("model", "way"), "memory", own="memory_budget"),
        ),
        exact=False,
    ),
    Program("budget_solving"),
    Program(
        "budget_families",
        (Measure("of it", ("model", "budget"), "memory"),),
        quick=_words("--only squeezenet1_1 --rounds 2"),
    ),
    Program(
        "loop",
        (Measure("time", ("way", "gradients differ by"), "time", own="AccumulatingLoop"),),
        quick=_words("--cases 3 --counts 1,4,16 --rounds 5"),
        exact=False,
    ),
    Program(
        "residual",
        (
            Measure("time", ("activation", "block"), "time", own="SafeResidual"),
            Measure(
                "peak MB", ("activation", "block"), "memory", base="in place", own="SafeResidual"
            ),
        ),
        quick=_words("--rounds 2"),
        exact=False,
    ),
    Program(
        "inference_memory",
        (Measure("converted", ("model",), "memory"),),
        quick=_words("--suite torchvision --only squeezenet*"),
    ),
    Program(
        "diagnosis",
        (Measure("of plain", ("what", "variant"), "time", own="^(diagnose|watch)"),),
        quick=_words("--only resnet18 --rounds 4"),
        exact=False,
    ),
    Program(
        "conversion_time",
        (
            # the page tells hundredths of a second: too few digits to find a regression
            Measure("warm", ("model",), "time", over="one step", own=_NONE),
            Measure("warm, with inputs", ("model",), "time", over="one step", own=_NONE),
        ),
        exact=False,
    ),
    Program("checkpoint_fuzz", full=_words("--jobs 2"), quick=_words("--programs 50")),
    Program("conversion_fuzz", full=_words("--jobs 2"), quick=_words("--programs 30")),
    Program("diagnosis_fuzz", full=_words("--jobs 2"), quick=_words("--programs 100")),
    Program("zoo", quick=_words(f"--suite torchvision --only {_SMALL}")),
    Program(
        "checkpointed_zoo",
        full=("--light",),
        quick=_words(f"--suite torchvision --only {_SMALL}"),
    ),
    Program("diagnosis_zoo", quick=_words(f"--suite torchvision --only {_SMALL}")),
    Program(
        "liveness",
        full=_words("--light --suite smp,torchvision"),
        quick=_words(f"--suite torchvision --only {_SMALL}"),
    ),
    Program("fixed_sources"),
    Program("lint"),
)


def chosen(names: Sequence[str], *, quick: bool) -> list[Program]:
    """The programs of some names, or all; for a quick run only those that have one.

    Raises:
        KeyError: There is no such program, or it has no quick run.
    """
    known = {
        program.name: program for program in PROGRAMS if program.quick is not None or not quick
    }
    unknown = [name for name in names if name not in known]
    if unknown:
        kind = "no quick run of" if quick else "no program"
        raise KeyError(f"{kind} {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(known.values())
