"""Compare the ratios of a run with those of a committed one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.pages import PageRatio
from benchmarks.summary import Run

#: Bytes are counted, not measured; what is allowed are sizes that the libraries choose.
MEMORY_TOLERANCE = 0.01


@dataclass(frozen=True)
class Regression:
    """What has become worse, in words."""

    program: str
    text: str

    def __str__(self) -> str:
        return f"{self.program}: {self.text}"


def allowed(before: PageRatio, after: PageRatio, tolerance: float) -> float:
    """The largest good ratio.

    A time may exceed the committed one by the tolerance and by both spreads, bytes by
    ``MEMORY_TOLERANCE``.
    """
    if before.kind == "memory":
        return before.value * (1 + MEMORY_TOLERANCE)
    return before.value * (1 + tolerance) + before.spread + after.spread


def regressions(
    before: Sequence[Run], after: Sequence[Run], tolerance: float
) -> Iterator[Regression]:
    """What is worse after than before, in the programs that both have run.

    Args:
        before: The committed runs.
        after: The new ones.
        tolerance: By which part a time may exceed the committed one.
    """
    known = {run.program: run for run in before}
    for run in after:
        if run.program not in known:
            continue
        committed = known[run.program]
        if run.status and (run.exact or run.status not in (0, 1)):
            yield Regression(run.program, f"exit status {run.status}: `{run.command}`")
        found = {ratio.name: ratio for ratio in run.ratios}
        for ratio in committed.ratios:
            if not ratio.own:
                continue
            new = found.get(ratio.name)
            if new is None:
                yield Regression(run.program, f"{ratio.name}: no such ratio any more")
            elif new.value > (limit := allowed(ratio, new, tolerance)):
                yield Regression(
                    run.program,
                    f"{ratio.name}: {ratio.value:.3f} before, {new.value:.3f} now, "
                    f"at most {limit:.3f} is allowed",
                )
