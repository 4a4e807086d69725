"""Gradients of a model whose own backward raises, from a functionalized run.

``torch.func.functionalize`` replays a forward with every overwrite turned into a new
value and every alias kept up to date, so the result is differentiable and means what the
in-place program means. It cannot follow writes into tensors that are not its arguments,
which is why parameters and buffers are passed explicitly; a checkpoint inside it fails.

NOTE [ Copies Under Functionalize ]
The functional form of ``copy_``, which every assignment to a slice ends in, has no
derivative in torch. Zeroing and adding have one, and store the same values (only a -0.0
is stored as 0.0), so copies are made of these two.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, functionalize
from torch.overrides import TorchFunctionMode

from safemodules.mutation.liveness.kinds import VIEWS
from safemodules.mutation.operations import may_write
from safemodules.mutation.operators import method_kind
from safemodules.state import preserved, seed_everything
from safemodules.trees import CallArguments, clone_inputs, flatten_tensors, map_tensors
from safemodules.verification.observation import Mode, output_weights, quiet_run, set_mode

__all__ = ["FUNCTIONAL_TOLERANCE", "functional_gradients", "gradient_reason"]

# Functionalizing turns a write to a view into a copy of the whole, whose gradient is added
# up in another order; the rounding then grows through the layers before it. A wrong
# gradient is off by orders of magnitude more. Relative to the norm of each gradient.
FUNCTIONAL_TOLERANCE: Final[Mapping[torch.dtype, float]] = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}

# A gradient that is zero in exact arithmetic (a bias before batch norm) is pure rounding
# noise, whose size goes with the other gradients and not with its own.
_NOISE: Final = 1e-2


class _DifferentiableCopies(TorchFunctionMode):
    """Make ``copy_`` and slice assignment differentiable, see the note above.

    Attributes:
        tolerance: That of the coarsest dtype in which anything was computed: a model of
            double parameters may compute in single precision inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tolerance = FUNCTIONAL_TOLERANCE[torch.float64]
        self.buffers: list[Tensor] = []
        self.detached: list[Tensor] = []  # and views of them

    def _may_cut(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Tell whether a function writes to a tensor that may have a gradient to pass on."""
        name = getattr(func, "__name__", "")
        if not args or (method_kind(name) is None and name != "__setitem__"):
            return False
        return not any(args[0] is buffer for buffer in self.buffers)

    def _follow_detached(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse a write through a detached alias, which the gradient passes by in place."""
        name = getattr(func, "__name__", "")
        if self.detached and args and may_write(name, func, kwargs):
            if any(args[0] is alias for alias in self.detached):
                raise RuntimeError("a tensor is written through a detached alias")

    def _is_detached(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Tell whether a result is a detached alias of a tensor, or a view of one."""
        name = getattr(func, "__name__", "")
        if name == "detach":  # whether there is a gradient cannot be seen from inside
            return True
        return bool(args) and name in VIEWS and any(args[0] is alias for alias in self.detached)

    def __torch_function__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch, its copies replaced."""
        if not torch.is_grad_enabled() and self._may_cut(func, args):
            # in place the gradient passes such a write by, as a new value it is cut off
            raise RuntimeError("a tensor is written while gradients are off")
        self._follow_detached(func, args, kwargs or {})
        if func is Tensor.copy_ and not kwargs and _is_copied(*args[:2]):
            return _copy(args[0], args[1])
        if func is Tensor.__setitem__ and _is_basic(args[1]) and _is_copied(args[0], args[2]):
            target, source = args[0][args[1]], args[2]
            while source.dim() > target.dim() and source.shape[0] == 1:
                source = source.squeeze(0)  # an assignment drops leading ones
            _copy(target, source)
            return None
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and self._is_detached(func, args):
            self.detached.append(result)
        if isinstance(result, Tensor) and (result.is_floating_point() or result.is_complex()):
            tolerance = FUNCTIONAL_TOLERANCE.get(result.dtype, 1e-1)
            self.tolerance = max(self.tolerance, tolerance)
        return result


def _is_copied(target: object, source: object) -> bool:
    """Tell whether values are copied that keep their gradient, without a change of kind."""
    if not isinstance(target, Tensor) or not isinstance(source, Tensor):
        return False
    return source.is_complex() <= target.is_complex() and (
        target.is_floating_point() or target.is_complex()
    )


def _is_basic(index: object) -> bool:
    """Tell whether an index selects a view: one of integers, slices, None and Ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or isinstance(part, slice)
        or (isinstance(part, int) and not isinstance(part, bool))
        for part in parts
    )


def _copy(target: Tensor, source: Tensor) -> Tensor:
    # The source may be a view of the target (`y[0] *= 2` assigns it to itself).
    values = source.to(device=target.device, dtype=target.dtype, copy=True)
    return target.zero_().add_(values)


def functional_gradients(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    mode: Mode,
    seed: int,
    copy_parameters: bool | Collection[str] = False,
) -> tuple[dict[str, Tensor | None], float]:
    """Differentiate a functionalized run of a model.

    Args:
        model: The module; it is left as it was.
        args: Positional arguments of ``forward``.
        kwargs: Keyword arguments of ``forward``.
        mode: Mode to run in.
        seed: Seed of all random number streams, and of the loss.
        copy_parameters: Parameters that forward overwrites: names, or True for all.

    Returns:
        Gradients on the CPU by the name of the parameter or the path of the input, and the
        relative tolerance within which another run has to agree with them.

    Raises:
        Exception: Whatever functionalize or the model raises.
    """
    call = CallArguments(tuple(args), dict(kwargs))
    with (
        preserved(model, copy_parameters=copy_parameters),
        quiet_run(iter([*model.parameters(), *(t for _, t in flatten_tensors(call, ""))])),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        set_mode(model, mode)
        handed, leaves = clone_inputs(call, requires_grad=True, root="")
        parameters = dict(model.named_parameters())
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        copies = _DifferentiableCopies()
        tensors = list({id(t): t for _, t in flatten_tensors(handed, "")}.values())

        def run(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: list[Tensor]
        ) -> list[Tensor]:
            # functionalize wraps tensors of the containers that it knows, so it is given a
            # plain list, and returns one: a model may use any container.
            wrapped = {id(t): w for t, w in zip(tensors, inputs, strict=True)}
            rebuilt = map_tensors(lambda tensor: wrapped[id(tensor)], handed)
            state = {**parameters, **buffers}
            copies.buffers = list(buffers.values())
            with copies:
                out = functional_call(model, state, rebuilt.inputs, rebuilt.kwargs)
            return [tensor for _, tensor in flatten_tensors(out)]

        seed_everything(seed)
        outputs = functionalize(run)(parameters, buffers, tensors)
        outputs = [out for out in outputs if out.requires_grad]
        targets = {n: p for n, p in parameters.items() if p.requires_grad} | leaves
        grads: Sequence[Tensor | None] = [None] * len(targets)
        if outputs and targets:
            weights = output_weights(outputs, seed)
            grads = torch.autograd.grad(outputs, list(targets.values()), weights, allow_unused=True)
        found = {
            name: None if grad is None else grad.detach().cpu()
            for name, grad in zip(targets, grads, strict=True)
        }
        return found, copies.tolerance


def gradient_reason(
    expected: Tensor | None, found: Tensor | None, largest: float, tolerance: float
) -> str | None:
    """Compare one gradient with that of a functionalized run.

    Args:
        expected: Gradient of the functionalized run; None counts as zero, since an
            overwritten value drops out of its graph only sometimes.
        found: Gradient of the candidate.
        largest: The largest norm among all expected gradients.
        tolerance: Relative to the norm of the expected gradient.

    Returns:
        The reason why they differ, None if they agree within the tolerance.
    """
    if expected is None and found is None:
        return None
    present = found if expected is None else expected
    assert present is not None
    if expected is not None and found is not None and expected.shape != found.shape:
        return f"shape is {list(found.shape)}, expected {list(expected.shape)}"
    wide = torch.complex128 if present.is_complex() else torch.float64
    a = torch.zeros_like(present, dtype=wide) if expected is None else expected.to(wide)
    b = torch.zeros_like(present, dtype=wide) if found is None else found.to(wide)
    if torch.equal(a.isnan(), b.isnan()):
        a, b = a.nan_to_num(), b.nan_to_num()
    error = torch.linalg.vector_norm(a - b).item()
    norm = torch.linalg.vector_norm(a).item()
    if torch.equal(a, b) or error <= tolerance * max(norm, _NOISE * largest):
        return None
    return (
        f"off by {error:.3g} in norm {norm:.3g} from the functionalized reference "
        f"(tolerance {tolerance:g}: its sums run in another order)"
    )
