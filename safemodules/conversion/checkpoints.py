"""``plan_checkpoints``: what to forget so that a step fits a memory budget."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from safemodules.conversion.budgets import meet_budget
from safemodules.conversion.decisions import (
    decide_with_inputs,
    decide_without_inputs,
    decided_before,
    verdicts_from_source,
)
from safemodules.conversion.loops import decide_regions
from safemodules.conversion.plan import Progress
from safemodules.conversion.survey import survey_model
from safemodules.conversion.trial import Trial, converted
from safemodules.memory.budgets import Budget
from safemodules.memory.plans import CheckpointPlan, plan_step
from safemodules.memory.recording import LossFn, record_step
from safemodules.trees import CallArguments
from safemodules.verification import as_arguments

__all__ = ["plan_checkpoints"]


def plan_checkpoints(
    model: nn.Module,
    example_inputs: Any,
    budget: int | str,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: LossFn | None = None,
    fake: bool = False,
    progress: Progress | None = None,
) -> CheckpointPlan:
    """Choose which results of a forward are computed again, so that a training step fits.

    The model is run as :func:`convert_model` runs it, to decide about its in-place sites, and once
    more, converted, with nothing kept for backward. From what was recorded follow the bytes alive
    at every moment of a step, whichever results are forgotten; an integer programme (with scipy,
    the extra ``plan``; without, a search) finds the ones that cost least to compute again. The
    model is left as it was: ``convert_model(model, inputs, checkpoint=plan)`` makes it so.

    Args:
        model: the model, in the mode that it is trained in.
        example_inputs: a tensor, or a tuple of positional arguments, as large as in training.
        budget: what the step may allocate beyond what was there before it: bytes, ``"2 GiB"``,
            ``"50%"`` of the step's peak, or ``"50% of activations"``, which leaves the gradients
            of parameters out.
        example_kwargs: keyword arguments of the forward.
        loss_fn: computes a scalar loss of the output; by default the sum of all outputs.
        fake: compute nothing, which plans for a model larger than this machine. The in-place
            sites are then converted as the source tells, and times are estimated from sizes.
        progress: called with a text, the steps done and the number of steps.

    Returns:
        The plan, which tells what is forgotten, the peak, and the time that is added.

    Raises:
        OptionError: the budget cannot be read.
        BudgetError: the step cannot be brought to it; the least that was found is named.
        SafeModulesError: see :func:`plan_conversion`.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> net = torch.nn.Sequential(*[torch.nn.Tanh() for _ in range(12)], torch.nn.Linear(64, 1))
        >>> x = torch.randn(256, 64, requires_grad=True)
        >>> plan = sm.plan_checkpoints(net, x, "60%")
        >>> plan.peak <= plan.budget, plan.budget == int(0.6 * plan.peak_before)
        (True, True)
        >>> net = sm.convert_model(net, x, checkpoint=plan)
    """
    call = CallArguments(as_arguments(example_inputs), dict(example_kwargs or {}))
    Budget.parse(budget)
    report = progress or (lambda text, done, total: None)
    report("reading the source", 0, 4)
    survey = survey_model(model)
    if fake:
        report("running a step on fake tensors", 1, 4)
        decisions = decide_without_inputs(survey, verdicts_from_source(survey).sites)
        swapped = [site for site, one in decisions.items() if one.verdict == "swap"]
        with converted(survey, [site for site in swapped if not site.done]):
            tape = record_step(model, call, loss_fn, fake=True)
        report("choosing what to forget", 3, 4)
        return plan_step(tape, budget)
    report("running the original", 1, 4)
    trial = Trial(survey, call.inputs, call.kwargs)
    planned = decide_with_inputs(survey, trial.clashing, only_clashes=False)
    report("comparing the converted model", 2, 4)
    outcome = trial.confirm({**planned, **decided_before(survey)})
    regions, outcome = decide_regions(trial, outcome, {}, loops=False)
    kept = [region for region, one in regions.items() if one.verdict == "checkpoint"]
    report("choosing what to forget", 3, 4)
    return meet_budget(trial, outcome, kept, {}, budget, loss_fn)[0]
