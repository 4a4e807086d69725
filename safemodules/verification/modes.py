"""Observation of a model in several modes, with the fallbacks that a faulty one needs.

NOTE [ Reference First, Then The Candidate ]
A model that is changed in place is its own reference, so observing and comparing are
apart: ``reference = observe_reference(model, ...)``, change the model, ``candidate =
observe_modes(model, ..., like=reference)``, ``compare_modes(reference, candidate)``.
``like`` tells the second observation what the first one has to be compared with.

NOTE [ Fallbacks ]
A mode is tried (1) with gradients of parameters and inputs, (2) with inputs that do not
require grad, which is how most people train, (3) under ``no_grad``. For a reference that
ran only under (3), and not for want of memory, the gradients come from ``functionalize``.
"""

import gc
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from safemodules.errors import (
    DeviceMismatchError,
    ExampleInputError,
    NonFiniteReferenceError,
    OptionError,
)
from safemodules.trees import CallArguments, describe_structure, flatten_tensors
from safemodules.verification.observation import Mode, Observation, RunError, observe
from safemodules.verification.reference import functional_gradients

__all__ = [
    "as_arguments",
    "check_reference",
    "is_out_of_memory",
    "observe_mode",
    "observe_modes",
    "observe_reference",
]

_REENTRANT = "incompatible with .grad()"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def as_arguments(example_inputs: object) -> tuple[Any, ...]:
    """Return positional arguments: a tuple stands for all of them, anything else for one.

    Example:
        >>> from safemodules.verification import as_arguments
        >>> as_arguments([1, 2]), as_arguments((1, 2))
        (([1, 2],), (1, 2))
    """
    # A named tuple is a value of its own, so subclasses do not count.
    return example_inputs if type(example_inputs) is tuple else (example_inputs,)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory ran out, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in _OUT_OF_MEMORY)


def observe_mode(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: Mode,
    seed: int = 0,
    like: Observation | None = None,
    keep_values: bool = False,
    copy_parameters: bool | Collection[str] = False,
) -> Observation:
    """Observe a model in one mode, see NOTE [ Fallbacks ].

    Args:
        model: The module; it is left as it was.
        args: Positional arguments of ``forward``.
        kwargs: Keyword arguments of ``forward``.
        mode: Mode to run in.
        seed: Seed of all random number streams, and of the loss.
        like: The reference's observation, if this model is the candidate.
        keep_values: Keep tensors for a comparison with a tolerance.
        copy_parameters: Parameters that forward overwrites: names, or True for all.

    Returns:
        The first observation that ended well, or the last one.

    Raises:
        StateError: The run changed a parameter.
    """
    keep_gradients = like is not None and like.reference_gradients is not None

    def attempt(gradients: bool, input_gradients: bool) -> Observation:
        def run(accumulate: bool) -> Observation:
            return observe(
                model,
                args,
                kwargs,
                mode=mode,
                gradients=gradients,
                input_gradients=input_gradients,
                accumulate=accumulate,
                seed=seed,
                keep_values=keep_values,
                keep_gradients=keep_gradients and gradients,
                copy_parameters=copy_parameters,
            )

        seen = run(accumulate=False)
        if seen.error is not None and _REENTRANT in str(seen.error.exception):
            seen = run(accumulate=True)
        return seen

    seen = attempt(True, True)
    if seen.error is None:
        return seen
    first_error = seen.error
    if not is_out_of_memory(first_error.exception):
        seen = attempt(True, False)
        if seen.error is None:
            note = f"input gradients not compared: the run raises with them ({first_error})"
            return replace(
                seen, input_gradients=None, input_gradient_error=first_error, notes=(note,)
            )
    gradient_error = seen.error
    del seen
    # A failed run's graph lies in cycles with its exception. They are young; a full
    # collection takes a second in a large process.
    gc.collect(2 if is_out_of_memory(first_error.exception) else 1)
    seen = attempt(False, False)
    if seen.error is not None:
        return seen
    seen = replace(seen, gradient_error=gradient_error)
    if like is not None or gradient_error is None:
        return seen
    return _with_reference_gradients(seen, model, args, kwargs or {}, seed, copy_parameters)


def _with_reference_gradients(
    seen: Observation,
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seed: int,
    copy_parameters: bool | Collection[str],
) -> Observation:
    assert seen.gradient_error is not None
    if is_out_of_memory(seen.gradient_error.exception):
        return replace(seen, notes=("gradients not compared: the reference ran out of memory",))
    try:
        grads, tolerance = functional_gradients(
            model, args, kwargs, mode=seen.mode, seed=seed, copy_parameters=copy_parameters
        )
    except Exception as exception:
        # functionalize fails in many ways, none of which is the user's fault.
        failed = RunError("forward", exception)
        note = f"gradients not compared: functionalize failed on the reference ({failed})"
        return replace(seen, notes=(note,))
    return replace(seen, reference_gradients=grads, reference_tolerance=tolerance)


def observe_modes(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    modes: Sequence[Mode] = ("train", "eval"),
    *,
    seed: int = 0,
    like: Mapping[str, Observation] | None = None,
    keep_values: bool = False,
    copy_parameters: bool | Collection[str] = False,
) -> dict[str, Observation]:
    """Observe a model in each mode, from the same state each time.

    See NOTE [ Reference First, Then The Candidate ].

    Args:
        model: The module; it is left as it was.
        args: Positional arguments of ``forward``.
        kwargs: Keyword arguments of ``forward``.
        modes: Any of ``"train"``, ``"eval"``, ``"keep"``.
        seed: Seed of all random number streams, and of the loss.
        like: The reference's observations, if this model is the candidate.
        keep_values: Keep tensors for a comparison with a tolerance.
        copy_parameters: Parameters that forward overwrites: names, or True for all.

    Returns:
        Observations by mode.

    Raises:
        OptionError: ``modes`` is empty or holds an unknown mode.
        StateError: A run changed a parameter.
    """
    unknown = [mode for mode in modes if mode not in get_args(Mode)]
    if unknown or not modes:
        raise OptionError(
            f"modes is {tuple(modes)!r}; give at least one of {', '.join(get_args(Mode))}"
        )
    return {
        mode: observe_mode(
            model,
            args,
            kwargs,
            mode=mode,
            seed=seed,
            like=like.get(mode) if like is not None else None,
            keep_values=keep_values,
            copy_parameters=copy_parameters,
        )
        for mode in modes
    }


def observe_reference(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    modes: Sequence[Mode] = ("train", "eval"),
    *,
    seed: int = 0,
    keep_values: bool = False,
    copy_parameters: bool | Collection[str] = False,
) -> dict[str, Observation]:
    """Observe a model that others are to be compared with, and check that they can be.

    The arguments are those of :func:`observe_modes`.

    Raises:
        ExampleInputError: The model raises on the inputs in every mode.
        DeviceMismatchError: It does so, and is on another device than the inputs.
        NonFiniteReferenceError: An output holds NaN.
        StateError: A run changed a parameter.
    """
    seen = observe_modes(
        model,
        args,
        kwargs,
        modes,
        seed=seed,
        keep_values=keep_values,
        copy_parameters=copy_parameters,
    )
    errors = [observation.error for observation in seen.values()]
    if errors and all(errors):
        _raise_input_error(model, CallArguments(tuple(args), dict(kwargs or {})), errors[0])
    check_reference(seen)
    return seen


def _raise_input_error(model: nn.Module, call: CallArguments, error: RunError | None) -> None:
    assert error is not None
    name = type(model).__name__
    at_model = {str(t.device) for t in [*model.parameters(), *model.buffers()]}
    at_inputs = {str(t.device) for _, t in flatten_tensors(call, "")}
    if at_model and at_inputs and not at_model & at_inputs:
        raise DeviceMismatchError(
            f"{name} is on {_listed(at_model)}, its example inputs are on {_listed(at_inputs)}. "
            f"Move one: model.to({sorted(at_inputs)[0]!r}), or the inputs with "
            f".to({sorted(at_model)[0]!r}). The run raised {error}"
        ) from error.exception
    raise ExampleInputError(
        f"{name}.forward does not accept the example inputs. Given: {describe_call(call)}. "
        f"Signature: forward{_signature(model)}. It raised {error}. A tuple stands for all "
        f"positional arguments; pass keyword arguments as example_kwargs."
    ) from error.exception


def _listed(devices: set[str]) -> str:
    return " and ".join(sorted(devices))


def describe_call(call: CallArguments) -> str:
    """Print arguments as types, shapes and plain values."""

    def describe(value: object) -> str:
        if isinstance(value, Tensor):
            kind = str(value.dtype).removeprefix("torch.")
            return f"{kind}{list(value.shape)}"
        if type(value) in (list, tuple) and len(value) <= 4:  # type: ignore[arg-type]  # checked
            inner = ", ".join(describe(item) for item in value)  # type: ignore[attr-defined]
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        return describe_structure(value, "").get("", type(value).__name__)

    parts = [describe(value) for value in call.inputs]
    parts += [f"{name}={describe(value)}" for name, value in call.kwargs.items()]
    return ", ".join(parts) or "nothing"


def _signature(model: nn.Module) -> str:
    try:
        return str(inspect.signature(model.forward))
    except (TypeError, ValueError):
        return "(...)"


def check_reference(reference: Mapping[str, Observation]) -> None:
    """Check that a reference's outputs can be compared with others.

    Args:
        reference: Observations by mode.

    Raises:
        NonFiniteReferenceError: An output holds NaN, which equals nothing, itself included.
    """
    for mode, seen in reference.items():
        for name, digest in seen.outputs.items():
            if digest.has_nan:
                raise NonFiniteReferenceError(
                    f"The reference's output {name} ({digest}) holds NaN in mode {mode}, so "
                    f"nothing can be compared with it. Pass example inputs, or load weights, "
                    f"for which the model is finite; torch.autograd.set_detect_anomaly(True) "
                    f"and forward hooks find the first NaN."
                )
