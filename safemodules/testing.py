"""Checks for users' own test suites."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.errors import ExampleInputError, PrecisionError
from safemodules.state import RandomState, module_tensors, tensor_bits
from safemodules.trees import CallArguments, clone_tensor, flatten_tensors, map_tensors
from safemodules.verification import Mode, verify

__all__ = ["assert_equivalent", "gradcheck_module"]


def _is_differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _require_double(named: Mapping[str, Tensor]) -> None:
    for name, tensor in named.items():
        if _is_differentiable(tensor) and tensor.dtype not in (torch.float64, torch.complex128):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise PrecisionError(
                f"gradcheck_module needs float64, but {name} is {kind}: a finite difference "
                f"with eps=1e-6 drowns in the rounding of anything less. Call module.double() "
                f"and pass inputs.double()."
            )


def _copy_module(module: nn.Module, parameters: Sequence[Tensor]) -> nn.Module:
    """Copy a module with all its state, sharing the parameters."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in parameters}
    for tensor in module_tensors(module).values():
        if not tensor.is_leaf:  # deepcopy refuses these
            memo[id(tensor)] = clone_tensor(tensor.detach())
    return copy.deepcopy(module, memo)


@contextmanager
def _kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Undo what an aborted finite difference leaves in its inputs."""
    saved = [tensor.detach().clone() for tensor in tensors]
    randomness = RandomState.capture()
    try:
        yield
    finally:
        randomness.restore()
        for tensor, values in zip(tensors, saved, strict=True):
            if not torch.equal(tensor_bits(tensor), tensor_bits(values)):
                tensor.data.copy_(values)


def gradcheck_module(
    module: nn.Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    nondet_tol: float = 0.0,
    fast_mode: bool = False,
    raise_exception: bool = True,
) -> bool:
    """Check a module's gradients against finite differences.

    Checked are all parameters that require grad and all floating and complex inputs, the
    nested ones too. The module may keep state, use random numbers and overwrite its
    inputs: each evaluation runs a copy of it in its present state, with shared parameters
    and the present random number streams, on copies of the inputs. The module, its inputs
    and the streams are left as they were. It runs in the mode that it is in.

    Args:
        module: The module, in float64 (``module.double()``).
        *inputs: Positional arguments of ``forward``, floating tensors in float64.
        kwargs: Keyword arguments of ``forward``.
        eps: Step of the finite differences.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        nondet_tol: Difference allowed between two backward runs.
        fast_mode: Check random projections of the Jacobians only, for larger modules.
        raise_exception: Raise where the check fails, or return False.

    Returns:
        Whether the check passed.

    Raises:
        safemodules.errors.PrecisionError: A tensor is not in double precision.
        ExampleInputError: There is nothing to check.
        GradcheckError: From torch: the gradients differ (a ``RuntimeError``).

    Example:
        >>> import torch
        >>> from safemodules.testing import gradcheck_module
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).double()
        >>> gradcheck_module(net, torch.randn(4, 2, dtype=torch.float64))
        True
    """
    call = CallArguments(inputs, dict(kwargs or {}))
    named_parameters = dict(module.named_parameters())
    named_inputs = dict(flatten_tensors(call, ""))
    _require_double({**named_parameters, **dict(module.named_buffers()), **named_inputs})

    parameters = list(named_parameters.values())
    leaves: dict[int, Tensor] = {}  # by the id of the caller's tensor
    for tensor in named_inputs.values():
        if _is_differentiable(tensor) and id(tensor) not in leaves:
            # gradcheck refuses an expanded tensor, whose elements share memory.
            leaf = tensor.detach().contiguous() if 0 in tensor.stride() else tensor.detach()
            leaves[id(tensor)] = clone_tensor(leaf).detach().requires_grad_()
    checked = [p for p in parameters if p.requires_grad] + list(leaves.values())
    if not checked:
        raise ExampleInputError(
            f"{type(module).__name__} has no parameter that requires grad and got no floating "
            f"input: there is no gradient to check."
        )
    template = _copy_module(module, parameters)
    randomness = RandomState.capture()

    # gradcheck perturbs the tensors it is given in place, the parameters themselves among
    # them, so the function reads them where they are and not from its arguments.
    def evaluate(*_: Tensor) -> tuple[Tensor, ...]:
        fresh = _copy_module(template, parameters)
        handed = map_tensors(lambda t: clone_tensor(leaves.get(id(t), t.detach())), call)
        randomness.restore()
        out = fresh(*handed.inputs, **handed.kwargs)
        outputs = [t for _, t in flatten_tensors(out) if _is_differentiable(t)]
        # Next to differentiable outputs gradcheck passes over the others, in fast mode not
        # without an error of its own.
        outputs = [t for t in outputs if t.requires_grad] or outputs
        # A module may return its own state, which the check must not see change.
        return tuple(t.clone() for t in outputs)

    with _kept(parameters), torch.inference_mode(False), torch.enable_grad():
        return torch.autograd.gradcheck(
            evaluate,
            checked,
            eps=eps,
            atol=atol,
            rtol=rtol,
            nondet_tol=nondet_tol,
            fast_mode=fast_mode,
            raise_exception=raise_exception,
        )


def assert_equivalent(
    a: nn.Module,
    b: nn.Module,
    *inputs: Any,
    modes: Sequence[Mode] = ("train", "eval"),
    rtol: float = 0.0,
    atol: float = 0.0,
    seed: int = 0,
    **kwargs: Any,
) -> None:
    """Assert that two modules compute the same, see :func:`safemodules.verify`.

    Args:
        a: The reference.
        b: The candidate.
        *inputs: Positional arguments of ``forward``.
        modes: Any of ``"train"``, ``"eval"``, ``"keep"``.
        rtol: Relative tolerance; 0 for a comparison of bits.
        atol: Absolute tolerance.
        seed: Seed of all random number streams, and of the loss.
        **kwargs: Keyword arguments of ``forward``.

    Raises:
        EquivalenceError: They differ (an ``AssertionError``).

    Example:
        >>> import torch
        >>> from safemodules.testing import assert_equivalent
        >>> assert_equivalent(torch.nn.ReLU(), torch.nn.Threshold(0, 0), torch.randn(3))
    """
    verify(a, b, inputs, kwargs, modes=modes, rtol=rtol, atol=atol, seed=seed).raise_if_different()
