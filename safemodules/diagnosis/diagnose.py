"""``diagnose``: run a model once and say what backward would find."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.checkpointing.plainly import run_plain
from safemodules.diagnosis.errors import explain_failure
from safemodules.diagnosis.findings import Diagnosis
from safemodules.diagnosis.report import (
    Namer,
    buffer_names,
    clashes_of,
    module_entries,
    site_reports,
    warn_silent,
)
from safemodules.mutation.graph import find_silent
from safemodules.mutation.internals import is_compiled_in_place, is_optimized
from safemodules.mutation.operations import storage_of
from safemodules.mutation.recorder import Recorder
from safemodules.state import preserved
from safemodules.trees import CallArguments, clone_inputs, flatten_tensors
from safemodules.verification import as_arguments


def diagnose(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[[Any], Tensor] | None = None,
) -> Diagnosis:
    """Find in-place operations that backward would fail on, without a backward.

    The forward (and ``loss_fn``) runs once, in the model's present mode, on copies of the
    inputs. Then each tensor that the graph has saved is asked whether it is still what was
    saved. Parameters, gradients, buffers, random numbers, hooks and inputs are left as
    they were.

    Args:
        model: an initialised module.
        example_inputs: a tensor, or a tuple of positional arguments.
        example_kwargs: keyword arguments of the forward.
        loss_fn: makes the loss of the outputs; all outputs are followed without it.

    Returns:
        The clashes, every site that ran, and warnings.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> class Net(torch.nn.Module):
        ...     def forward(self, x):
        ...         h = torch.sigmoid(x)
        ...         h += x
        ...         return h
        >>> [clash] = sm.diagnose(Net(), torch.randn(2)).clashes
        >>> clash.saved_at.source, clash.mutated_at.source
        ('h = torch.sigmoid(x)', 'h += x')
    """
    call = CallArguments(as_arguments(example_inputs), dict(example_kwargs or {}))
    differentiable = _inputs_need_grad(model, call)
    found = _diagnosed(model, call, loss_fn, differentiable)
    if differentiable and found.error is not None and not _is_in_place(found):
        # a forward may take no inputs but leaves: whether it runs on these themselves
        plain = _diagnosed(model, call, loss_fn, False)
        return plain if plain.error is None else found
    return found


def _is_in_place(found: Diagnosis) -> bool:
    """Whether the forward was ended by an overwrite, so that gradients of the inputs show it."""
    words = ("inplace", "in-place")
    return bool(found.clashes) or any(word in (found.error or "") for word in words)


def _diagnosed(
    model: nn.Module,
    call: CallArguments,
    loss_fn: Callable[[Any], Tensor] | None,
    differentiable: bool,
) -> Diagnosis:
    """Diagnose with or without gradients of the inputs; parameters are copied only if need be."""
    try:
        return _run(model, call, loss_fn, differentiable, copy_parameters=False)
    except _ParameterWritten:
        return _run(model, call, loss_fn, differentiable, copy_parameters=True)


class _ParameterWritten(BaseException):
    """A parameter is about to be overwritten; parameters are copied only where that is so."""


def _run(
    model: nn.Module,
    call: CallArguments,
    loss_fn: Callable[[Any], Tensor] | None,
    differentiable: bool,
    *,
    copy_parameters: bool,
) -> Diagnosis:
    namer = Namer(model)
    failure: Exception | None = None
    recorder = Recorder(before_write=None if copy_parameters else _guard(model))
    roots: list[Tensor] = []
    modes = torch.inference_mode(False), torch.enable_grad()
    with preserved(model, copy_parameters=copy_parameters), modes[0], modes[1]:
        handed, _ = clone_inputs(call, requires_grad=differentiable)
        try:
            with recorder, run_plain():
                out = model(*handed.inputs, **handed.kwargs)
                out = out if loss_fn is None else loss_fn(out)
            roots = [tensor for _, tensor in flatten_tensors(out) if tensor.requires_grad]
        except Exception as exception:
            failure = exception
        clashes = clashes_of(roots, recorder, namer, buffer_names([model]))
        clashes += explain_failure(recorder, namer, failure)
        reports = site_reports(recorder, clashes, namer)
        warnings = warn_silent(find_silent(roots, recorder), namer)
    error = None if failure is None else f"{type(failure).__name__}: {failure}"
    return Diagnosis(clashes, reports, warnings, error, module_entries(model))


def _inputs_need_grad(model: nn.Module, call: CallArguments) -> bool:
    """Whether to ask for gradients of the inputs too, which shows more.

    Compiled code would be compiled again for inputs of another kind, so it gets its own kind.
    """
    compiled = any(is_optimized(m) or is_compiled_in_place(m) for m in model.modules())
    return not compiled or any(t.requires_grad for _, t in flatten_tensors(call))


def _guard(model: nn.Module) -> Callable[[Tensor], None]:
    """Raises before a parameter is overwritten."""
    storages = {storage_of(p) for p in model.parameters()} - {0}

    def guard(tensor: Tensor) -> None:
        if storage_of(tensor) in storages:
            raise _ParameterWritten

    return guard
