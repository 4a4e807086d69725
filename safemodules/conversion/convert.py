"""``convert_model``, its reversal, and questions about a converted model."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch import nn

from safemodules.conversion.plan import ConversionPlan, Progress, plan_conversion
from safemodules.conversion.record import ConversionRecord, joined
from safemodules.conversion.survey import check_is_module
from safemodules.conversion.swap import RECORD_MARK, has_swaps, is_swapped, revert_swaps
from safemodules.errors import ConversionError

ModelT = TypeVar("ModelT", bound=nn.Module)


def convert_model(
    model: ModelT,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    inplace: str = "all",
    checkpoint: Any = "loops",
    memory_budget: int | str | None = None,
    semantics: str = "preserve",
    progress: Progress | None = None,
) -> ModelT:
    """Swap the in-place operations of a model for out-of-place ones that compute the same.

    Flags such as ``nn.ReLU(inplace=True)`` are switched off on the module; ``x += y``,
    ``x.relu_()``, ``F.relu(x, inplace=True)``, ``x[i] = y`` and ``out=`` are rewritten in
    every function that the forward reaches, whose modules get a subclass of their class with
    the edited methods. The model stays the same object, with the same parameters, buffers,
    hooks, state_dict keys and random numbers.

    Args:
        model: an initialised module. Refused are: sharded models (convert first), lazy
            modules that have not run, models whose source was edited since the import.
        example_inputs: a tensor, or a tuple of positional arguments. With them the result is
            compared with the original before it is returned, bit for bit; without them only
            sites that are plainly safe are swapped, and nothing is run.
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
        memory_budget: what a step of training may allocate: bytes, ``"2 GiB"``, ``"50%"`` of
            what it needs unconverted, or ``"50% of activations"``. Results of the forward are
            computed again in the backward, at the least expense that was found; the plan tells
            which, and what it costs, see :func:`plan_checkpoints`. Loops are then not checkpointed.
        semantics: ``"preserve"`` keeps what the model computes. ``"intended"`` computes what
            out-of-place code would: for people who know that an overwrite was a mistake. The
            plan says of each such site that it changes the function.
        progress: called with a text, the steps done and the number of steps.

    Returns:
        ``model``, converted. Converting it again swaps only what was not swapped before: parts
        that were added since, or sites that example inputs decide.

    Warns:
        ConversionWarning: nothing was found, or a part of the model could not be looked into.

    Raises:
        SafeModulesError: see :func:`plan_conversion`; the model is as it was.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> class Block(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.act = torch.nn.Sequential(torch.nn.Sigmoid(), torch.nn.ReLU(inplace=True))
        ...
        ...     def forward(self, x):
        ...         return self.act(x)
        >>> net, x = Block(), torch.randn(3, requires_grad=True)
        >>> net(x).sum().backward()
        Traceback (most recent call last):
            ...
        RuntimeError: one of the variables needed for gradient computation has been modified ...
        >>> sm.convert_model(net, torch.randn(3))(x).sum().backward()
    """
    plan = plan_conversion(
        model,
        example_inputs,
        example_kwargs,
        inplace=inplace,
        checkpoint=checkpoint,
        memory_budget=memory_budget,
        semantics=semantics,
        progress=progress,
    )
    plan.apply()
    return model


def revert_model(model: ModelT) -> ModelT:
    """Undo a conversion: every module gets its class and its flag back.

    Args:
        model: a model; nothing happens to one that was not converted.

    Returns:
        ``model``.

    Raises:
        ModuleTypeError: ``model`` is not a module.
        RevertError: a class was swapped on top of ours (by ``fully_shard``); it is named and
            the model stays converted.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
        >>> sm.revert_model(sm.convert_model(net))[1].inplace
        True
    """
    check_is_module(model)
    revert_swaps(model)
    return model


def is_converted(model: nn.Module) -> bool:
    """Whether any module of a model is converted.

    Args:
        model: a module.

    Raises:
        ModuleTypeError: ``model`` is not a module.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
        >>> sm.is_converted(net), sm.is_converted(sm.convert_model(net))
        (False, True)
    """
    check_is_module(model)
    return has_swaps(model)


def conversion_plan(model: nn.Module) -> ConversionPlan:
    """The plan by which a model, or parts of it, were converted.

    Args:
        model: a converted model; it may have been copied, or loaded from a file.

    Returns:
        The plan. Sites that were reverted since are marked as kept.

    Raises:
        ModuleTypeError: ``model`` is not a module.
        ConversionError: the model was not converted.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
        >>> print(str(sm.conversion_plan(sm.convert_model(net))).splitlines()[0])
        1 in-place sites: 1 swapped for out-of-place ones, 0 kept as they are
    """
    check_is_module(model)
    records = list(_records(model, ""))
    if not records:
        known = "was converted as a part of another model: ask for the plan of that one"
        unknown = "was not converted; plan_conversion(model) plans it"
        raise ConversionError(f"{type(model).__name__} {known if has_swaps(model) else unknown}.")
    converted = {
        path for path, part in model.named_modules(remove_duplicate=False) if is_swapped(part)
    }
    return ConversionPlan(model, joined(records).among(converted))


def _records(module: nn.Module, path: str) -> Iterator[ConversionRecord]:
    """The record of a module, else those of its parts."""
    record = module.__dict__.get(RECORD_MARK)
    if record is not None:
        yield record.below(path)
        return
    for name, child in module.named_children():
        yield from _records(child, f"{path}.{name}" if path else name)
