"""Make the step of a converted model fit a memory budget."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from safemodules.conversion.regions import RegionSite
from safemodules.conversion.trial import Outcome, Trial
from safemodules.errors import BudgetWarning, ConversionError, OptionError
from safemodules.memory.plans import CheckpointPlan, plan_step
from safemodules.memory.recording import LossFn, costing, record_step
from safemodules.state import preserved
from safemodules.verification.observation import set_mode

__all__ = ["given_plan", "meet_budget"]


def given_plan(checkpoint: Any) -> CheckpointPlan | None:
    """The plan that a value of ``checkpoint=`` is, if it is one.

    Raises:
        OptionError: a plan stands among other choices.
    """
    if isinstance(checkpoint, CheckpointPlan):
        return checkpoint
    if isinstance(checkpoint, (list, tuple)) and any(map(given_plan, checkpoint)):
        raise OptionError(
            "checkpoint= was given a plan among other choices. A plan tells of the whole step: "
            "pass it alone."
        )
    return None


def meet_budget(
    trial: Trial,
    outcome: Outcome,
    regions: Sequence[RegionSite],
    modules: Mapping[str, nn.Module],
    budget: "int | str | CheckpointPlan",
    loss_fn: LossFn | None = None,
) -> tuple[CheckpointPlan, Outcome]:
    """Choose what the step forgets, and compare the model that forgets it.

    Args:
        trial: the original's behaviour on example inputs.
        outcome: what is done with the in-place sites.
        regions: regions that are checkpointed.
        modules: modules that are.
        budget: the budget, or a plan that was made before.
        loss_fn: see :func:`record_step`.

    Returns:
        The plan, and the outcome with the comparison.

    Raises:
        BudgetError: the budget is smaller than what the step can be brought to.
        ConversionError: the model would not compute the same.
    """
    chosen = tuple(modules.values())
    if isinstance(budget, CheckpointPlan):
        plan = budget
    else:
        own = [region for region in regions if region.is_rerouted]
        whole = None
        if len(own) < len(regions) or chosen:
            with _training(trial, outcome, own, ()) as model:
                whole = record_step(model, trial.call, loss_fn)
        with _training(trial, outcome, regions, chosen) as model:
            tape = record_step(model, trial.call, loss_fn)
            tape = costing(model, trial.call, tape, loss_fn)
        plan = plan_step(tape, budget, whole=whole)
    plain = trial.observe_plain(outcome)
    with warnings.catch_warnings():  # the other mode's forward may be another
        warnings.simplefilter("ignore", BudgetWarning)
        equivalence, equivalent = trial.compare_checkpointed(
            outcome, plain, regions, chosen, plan.forgetting
        )
    if not equivalent:
        raise ConversionError(
            f"with the results of {len(plan.forgotten)} operators computed again, the model does "
            f"not compute what it computes without: {equivalence}\nGive no memory_budget. The "
            f"model is unchanged."
        )
    return plan, Outcome(outcome.decisions, outcome.copies, equivalence)


@contextmanager
def _training(
    trial: Trial, outcome: Outcome, regions: Sequence[RegionSite], chosen: Sequence[nn.Module]
) -> Iterator[nn.Module]:
    """The converted model, in the mode that it is trained in; afterwards it is as it was."""
    model = trial.survey.model
    with trial.with_regions(outcome, regions, chosen), preserved(model):
        set_mode(model, trial.modes[0])
        yield model
