"""Which results a step forgets to fit a budget, and what that costs."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from safemodules.checkpointing.forgetting import Forgetting
from safemodules.errors import BudgetError
from safemodules.memory.budgets import Budget
from safemodules.memory.choosing import Chosen, choose
from safemodules.memory.page import plan_fragment
from safemodules.memory.programme import is_solvable
from safemodules.memory.simulation import Simulation
from safemodules.memory.tape import Tape
from safemodules.memory.text import columns, size_text

__all__ = ["CheckpointPlan", "ForgottenResult", "plan_step"]


@dataclass(frozen=True)
class ForgottenResult:
    """A result that is not kept for backward, but computed again.

    Attributes:
        module: dotted path of the module that computes it.
        operator: the operator, such as ``"aten.relu.default"``.
        size: its bytes.
        seconds: what computing it again takes.
    """

    module: str
    operator: str
    size: int
    seconds: float


@dataclass(frozen=True)
class CheckpointPlan:
    """What a step of training forgets to fit a memory budget.

    Bytes are what the step allocates beyond what was there before it: activations, temporaries,
    and the gradients of parameters unless the budget leaves them out.

    Attributes:
        budget: bytes that the step may allocate.
        peak: bytes that it allocates at its peak, never more than the budget.
        peak_before: bytes at the peak of a step that forgets nothing.
        step_seconds: what the operators of such a step take.
        seconds: what is added to it.
        bound: no choice adds less than this, see NOTE [ Integer Programme ].
        forgotten: what is forgotten.
        forgetting: the same, as the forward is told.
        live: bytes alive at each event of the step, see NOTE [ Clock ].
        live_before: the same of a step that forgets nothing.
        forward_events: how many of the events are the forward's.
        counts_gradients: whether gradients of parameters count.
        is_estimated: whether seconds were estimated rather than measured.
    """

    budget: int
    peak: int
    peak_before: int
    step_seconds: float
    seconds: float
    bound: float
    forgotten: tuple[ForgottenResult, ...]
    forgetting: Forgetting
    live: tuple[int, ...] = field(repr=False)
    live_before: tuple[int, ...] = field(repr=False)
    forward_events: int
    counts_gradients: bool
    is_estimated: bool

    @property
    def overhead(self) -> float:
        """Time of a step over that of a step that forgets nothing, such as 1.05."""
        return 1 + self.seconds / self.step_seconds if self.step_seconds else 1.0

    def by_module(self) -> dict[str, list[ForgottenResult]]:
        """What is forgotten, by module, in the order of the forward."""
        found: dict[str, list[ForgottenResult]] = defaultdict(list)
        for result in self.forgotten:
            found[result.module].append(result)
        return dict(found)

    def summary(self) -> str:
        """One line: the peak before and after, and the price."""
        what = "" if self.counts_gradients else " without gradients of parameters"
        share = f" ({self.peak / self.peak_before:.0%})" if self.peak_before else ""
        price = "estimated" if self.is_estimated else "predicted"
        return (
            f"peak of a step{what}: {size_text(self.peak_before)} -> {size_text(self.peak)}"
            f"{share}, budget {size_text(self.budget)}; {price} time {self.overhead:.3f} of the "
            f"step's (no plan can do with less than "
            f"{1 + self.bound / (self.step_seconds or 1):.3f})"
        )

    def to_json(self) -> str:
        """The plan as a JSON object."""
        data: dict[str, Any] = asdict(self)
        data["overhead"] = self.overhead
        return json.dumps(data, indent=2)

    def __str__(self) -> str:
        return "\n".join((self.summary(), *self._rows()))

    def _rows(self) -> Iterator[str]:
        if not self.forgotten:
            yield "nothing is forgotten"
            return
        rows = [("module", "bytes", "computed again", "operators")]
        for module, results in self.by_module().items():
            rows.append(
                (
                    module or "(the model itself)",
                    size_text(sum(result.size for result in results)),
                    f"{1000 * sum(result.seconds for result in results):.2f} ms",
                    ", ".join(dict.fromkeys(result.operator for result in results)),
                )
            )
        yield from columns(rows)

    def _repr_html_(self) -> str:
        return plan_fragment(self)


def plan_step(tape: Tape, budget: int | str, *, whole: Tape | None = None) -> CheckpointPlan:
    """Choose what a recorded step forgets.

    Args:
        tape: the step.
        budget: see :meth:`Budget.parse`.
        whole: the step whose peak a share is a share of; by default the same.

    Raises:
        OptionError: the budget cannot be read.
        BudgetError: no choice fits, or none that was found; the smallest peak that was found is
            named, and whether there can be a smaller one.
    """
    parsed = Budget.parse(budget)
    simulation = Simulation(tape, gradients=parsed.gradients)
    plain = before = simulation.run(())
    if whole is not None:
        before = Simulation(whole, gradients=parsed.gradients).run(())
    limit = parsed.of(before.peak)
    chosen = choose(simulation, limit)
    choice = chosen.choice
    if choice is None:
        raise _cannot(chosen, before.peak, limit, parsed)
    results = tuple(
        ForgottenResult(
            operator.module,
            operator.name,
            sum(tape.memories[one].size for one in operator.results),
            operator.replay_seconds,
        )
        for operator in (tape.operators[place] for place in sorted(choice.forgotten))
    )
    return CheckpointPlan(
        limit,
        choice.simulated.peak,
        before.peak,
        tape.seconds,
        choice.simulated.seconds + (tape.forgetting_seconds if results else 0.0),
        chosen.bound + (tape.forgetting_seconds if plain.peak > limit else 0.0),
        results,
        tape.forgetting(choice.forgotten),
        choice.simulated.live,
        before.live,
        tape.forward_events,
        parsed.gradients,
        tape.is_estimated,
    )


def _cannot(chosen: Chosen, needed: int, limit: int, budget: Budget) -> BudgetError:
    assert chosen.lowest is not None
    least, bound = chosen.lowest.choice.simulated.peak, chosen.lowest.bound
    what = "" if budget.gradients else " without gradients of parameters"
    how = "cannot be brought" if math.isinf(chosen.bound) else "was not brought"
    below = f", and none is below {bound / needed:.1%}" if bound else ""
    hint = "" if is_solvable() else " With scipy installed (the extra 'plan'), more is tried."
    return BudgetError(
        f"a step of this model {how} to {size_text(limit)}{what}: it needs {size_text(needed)} as "
        f"it is, and the least that was found is {size_text(least)} ({least} bytes, "
        f"{least / needed:.1%}{below}). Give it that, smaller inputs, or run fewer of them at "
        f"once.{hint}"
    )
