"""What a conversion will do, before it does anything."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from safemodules.checkpointing.forgetting import Forgetting
from safemodules.conversion.budgets import given_plan, meet_budget
from safemodules.conversion.chosen import chosen_modules, wants_loops
from safemodules.conversion.decisions import (
    decide_with_inputs,
    decide_without_inputs,
    decided_before,
    verdicts_from_source,
)
from safemodules.conversion.loops import decide_regions
from safemodules.conversion.planned_regions import PlannedRegion, planned_module, planned_region
from safemodules.conversion.record import (
    ConversionRecord,
    PlannedSite,
    planned_sites,
)
from safemodules.conversion.region_decisions import (
    RegionDecision,
    decide_regions_without_inputs,
)
from safemodules.conversion.regions import RegionSite
from safemodules.conversion.rewriter import make_rewriting
from safemodules.conversion.survey import AnySite, Survey, survey_model
from safemodules.conversion.swap import RECORD_MARK, apply_swaps, check_unchanged, is_chosen
from safemodules.conversion.trial import Outcome, Trial
from safemodules.errors import ConversionError, OptionError
from safemodules.memory.budgets import Budget
from safemodules.memory.plans import CheckpointPlan
from safemodules.mutation.reach import Skipped
from safemodules.rewriting.checkpoints import FORGETTING_MARK
from safemodules.rewriting.classes import ConversionWarning, Rewriting
from safemodules.verification import Equivalence, as_arguments

Progress = Callable[[str, int, int], None]

_FOUND_BY_RUNNING = {
    "unsafe": "which sites overwrite what backward needs",
    "intended": "what it would change",
}


@dataclass(eq=False)
class ConversionPlan:
    """What :func:`convert_model` does to a model; nothing is touched before :meth:`apply`.

    Attributes:
        model: the model.
        record: the plan as plain data.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
        >>> plan = sm.plan_conversion(net)
        >>> [(site.site.op, site.decision) for site in plan.sites]
        [('relu_', 'swap')]
        >>> plan.apply() is net
        True
    """

    model: nn.Module
    record: ConversionRecord
    _changes: "_Changes | None" = field(default=None, repr=False)

    @property
    def sites(self) -> tuple[PlannedSite, ...]:
        """Every site with its decision and the reason."""
        return self.record.sites

    @property
    def regions(self) -> tuple[PlannedRegion, ...]:
        """Every loop body and call of torch's checkpoint, with its decision and the reason."""
        return self.record.regions

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Parts of the model that are left as they are, with the reason."""
        return self.record.skipped

    @property
    def memory(self) -> CheckpointPlan | None:
        """What the step forgets to fit the memory budget; ``None`` without a budget."""
        return self.record.memory

    @property
    def equivalence(self) -> Equivalence | None:
        """What was compared on the example inputs; ``None`` without inputs."""
        return self.record.equivalence

    def apply(self) -> nn.Module:
        """Convert the model; all or nothing.

        Returns:
            The model, the same object.

        Warns:
            ConversionWarning: nothing was found, or a part of the model could not be looked into.

        Raises:
            ConversionError: this is the plan of a conversion that was made already, the model has
                changed since it was planned, or a module refuses the change.
        """
        if self._changes is None:
            raise ConversionError("this plan tells of a conversion that was made already")
        changes = self._changes
        check_unchanged(changes.survey)
        warning = self.record.warning()
        if warning is not None:  # before anything is done, for those who turn it into an error
            warnings.warn(warning, ConversionWarning, stacklevel=3)
        done = RECORD_MARK in self.model.__dict__
        if not done or not changes.done:
            changes.apply(self.record)
        return self.model

    def diff(self) -> str:
        """The edited functions as a unified diff of their files; flags are not in it."""
        return self.record.diff

    def to_json(self) -> str:
        """The plan as JSON: sites, what is skipped, what was compared, and the diff."""
        return self.record.to_json()

    def __str__(self) -> str:
        return self.record.table()

    def _repr_html_(self) -> str:
        return self.record.to_html()


@dataclass(frozen=True, eq=False)
class _Changes:
    """What :meth:`ConversionPlan.apply` applies."""

    survey: Survey
    swapped: tuple[AnySite, ...]
    regions: tuple[RegionSite, ...]
    chosen: tuple[nn.Module, ...]
    forgetting: Forgetting | None
    rewriting: Rewriting | None

    @property
    def done(self) -> bool:
        """Whether an earlier conversion has made all of them."""
        edits = all(each.done for each in (*self.swapped, *self.regions))
        forgets = self.survey.model.__dict__.get(FORGETTING_MARK) == self.forgetting
        return edits and forgets and all(map(is_chosen, self.chosen))

    def apply(self, record: ConversionRecord) -> None:
        """Make them."""
        apply_swaps(
            self.survey,
            self.swapped,
            self.rewriting,
            record,
            self.regions,
            self.chosen,
            self.forgetting,
        )


def plan_conversion(
    model: nn.Module,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    inplace: str = "all",
    checkpoint: Any = "loops",
    memory_budget: int | str | None = None,
    semantics: str = "preserve",
    progress: Progress | None = None,
) -> ConversionPlan:
    """Plan the conversion of a model, and leave it as it is.

    Args:
        model: an initialised module; see :func:`convert_model` for what cannot be converted.
        example_inputs: a tensor, or a tuple of positional arguments, that the forward accepts.
            With them the converted model is compared with the original, in train and in eval
            mode: outputs, gradients, buffers, random numbers and inputs, bit for bit.
            Without them nothing is run, and only sites are swapped whose old tensor nobody can
            read afterwards, as far as the source tells.
        example_kwargs: keyword arguments of the forward.
        inplace: ``"all"`` swaps every site that leaves the function as it is; ``"unsafe"``
            only those that overwrite what backward needs, which is the smallest change that
            makes the model train.
        checkpoint: ``"loops"`` checkpoints modules that run in a loop of a forward, since a loop
            keeps every iteration's activations alive; with example inputs only where that
            saves at least 5% of what the step keeps, without them not where what a loop reads may
            be overwritten before backward. A dotted name, a class of modules or a
            predicate ``(name, module) -> bool`` chooses modules that are checkpointed whenever
            they are called; a plain ``nn.Sequential`` becomes a :class:`CheckpointedSeq`. A
            list joins such choices; ``False`` leaves all alone. Calls of torch's own
            checkpoint become exact and non-reentrant in any case.
        memory_budget: what a step of training may allocate beyond what was there before it:
            bytes, ``"2 GiB"``, ``"50%"`` of what it needs unconverted, or ``"50% of
            activations"``, which leaves the gradients of parameters out. Results of the forward
            are then chosen that are computed again when backward asks for them, one by one, so
            that the step fits at the least expense; no Python code of the model runs again. Loops
            are then not checkpointed.
        semantics: ``"preserve"`` keeps what the model computes. ``"intended"`` computes what
            out-of-place code would: for people who know that an overwrite was a mistake. The
            plan says of each such site that it changes the function.
        progress: called with a text, the steps done and the number of steps.

    Returns:
        The plan.

    Raises:
        ModuleTypeError: ``model`` is not a module.
        OptionError: an option has another value than those above.
        SourceError: the text of a function on the forward path is not that of what runs.
        ExampleInputError: the forward does not accept the example inputs.
        NonFiniteReferenceError: an output of the original is NaN.
        MismatchError: the converted model does not compute the same; the sites are named.
        BudgetError: the step cannot be brought to the budget; the least that was found is named.

    Example:
        >>> import torch, torchvision
        >>> import safemodules as sm
        >>> plan = sm.plan_conversion(torchvision.models.resnet18(), torch.randn(2, 3, 32, 32))
        >>> sorted({site.decision for site in plan.sites}), plan.equivalence.equivalent
        (['swap'], True)
    """
    _check_options(inplace=inplace, semantics=semantics)
    without_inputs = example_inputs is None and example_kwargs is None
    _check_budget(memory_budget, given_plan(checkpoint), without_inputs)
    for name, value in (("inplace", inplace), ("semantics", semantics)):
        if without_inputs and value in _FOUND_BY_RUNNING:
            raise OptionError(
                f"{name}={value!r} needs example_inputs: {_FOUND_BY_RUNNING[value]} is found by "
                "running the model. Pass a tensor, or a tuple of positional arguments."
            )
    report = progress or (lambda text, done, total: None)
    budget = given_plan(checkpoint) or memory_budget
    total = 2 if without_inputs else 4 if budget is None else 5
    report("reading the source", 0, total)
    survey = survey_model(model)
    if isinstance(budget, CheckpointPlan):
        loops, chosen = False, {}
    else:
        # A budget finds the cheapest way itself; whole iterations are seldom it.
        loops = budget is None and wants_loops(checkpoint)
        chosen = dict(chosen_modules(model, checkpoint))
    if without_inputs:
        source = verdicts_from_source(survey)
        by_source = decide_without_inputs(survey, source.sites)
        decisions = {**by_source, **decided_before(survey)}
        report("making the edits", 1, total)
        regions = decide_regions_without_inputs(survey.regions, source.overwritten, loops=loops)
        return _plan(survey, Outcome(decisions, (), None), regions, chosen)
    args = () if example_inputs is None else as_arguments(example_inputs)
    report("running the original", 1, total)
    trial = Trial(survey, args, dict(example_kwargs or {}))
    unsafe = inplace == "unsafe"
    planned = decide_with_inputs(survey, trial.clashing, only_clashes=unsafe)
    report("comparing the converted model", 2, total)
    outcome = trial.confirm({**planned, **decided_before(survey)})
    if semantics == "intended":
        outcome = trial.intend(outcome)
    regions, outcome = decide_regions(trial, outcome, chosen, loops=loops)
    memory = None
    if budget is not None:
        report("meeting the memory budget", 3, total)
        kept = [region for region, one in regions.items() if one.verdict == "checkpoint"]
        memory, outcome = meet_budget(trial, outcome, kept, chosen, budget)
    report("making the edits", total - 1, total)
    return _plan(survey, outcome, regions, chosen, memory)


def _plan(
    survey: Survey,
    outcome: Outcome,
    regions: Mapping[RegionSite, RegionDecision],
    chosen: Mapping[str, nn.Module],
    memory: CheckpointPlan | None = None,
) -> ConversionPlan:
    decisions, copies = outcome.decisions, outcome.copies
    swapped = tuple(site for site, decision in decisions.items() if decision.verdict == "swap")
    kept = tuple(r for r, decision in regions.items() if decision.verdict == "checkpoint")
    modules = tuple(chosen.values())
    forgetting = None if memory is None else memory.forgetting
    changes = _Changes(survey, swapped, kept, modules, forgetting, None)
    if copies or not changes.done:
        rewriting = make_rewriting(
            survey, swapped, copies, kept, modules, forgets=memory is not None
        )
        changes = replace(changes, rewriting=rewriting)
    edited = changes.rewriting.files.values() if changes.rewriting is not None else ()
    record = ConversionRecord(
        planned_sites(decisions),
        tuple(survey.skipped),
        outcome.equivalence,
        "".join(file.diff() for file in edited),
        tuple(map(str, copies)),
        (
            *(planned_region(region, decision) for region, decision in regions.items()),
            *(planned_module(path, module) for path, module in chosen.items()),
        ),
        memory,
    )
    return ConversionPlan(survey.model, record, changes)


def _check_budget(
    memory_budget: int | str | None, given: CheckpointPlan | None, without_inputs: bool
) -> None:
    if memory_budget is not None:
        Budget.parse(memory_budget)
        if given is not None:
            raise OptionError(
                "memory_budget was given together with a plan in checkpoint=. A plan is made for a "
                "budget: pass one of the two."
            )
    if without_inputs and (memory_budget is not None or given is not None):
        raise OptionError(
            "a memory budget needs example_inputs: what a step allocates is found by running it. "
            "Pass a tensor, or a tuple of positional arguments."
        )


def _check_options(**options: Any) -> None:
    """Refuse option values that this version does not have."""
    allowed = {
        "inplace": ("all", "unsafe"),
        "semantics": ("preserve", "intended"),
    }
    for name, value in options.items():
        if not any(type(value) is type(each) and value == each for each in allowed[name]):
            expected = " or ".join(repr(each) for each in allowed[name])
            raise OptionError(f"{name}={value!r} is not available; expected {expected}.")
