"""Gradients taken in forward: of each iteration as soon as it has run, scaled in backward.

NOTE [ Gradients in forward ]: gradients are linear. The gradient of sum_i w_i l_i is
sum_i w_i grad(l_i), and whatever is computed from that sum afterwards multiplies it by one
factor, which backward brings. So each iteration's graph is freed before the next one runs.
The sum is made in the order of the iterations, where autograd would sum in the reverse order;
each term is the gradient seeded by w_i; the factor, the incoming gradient over the sum of the
weights, is multiplied onto the sum.

NOTE [ Parameters stay themselves ]: the body runs on its own parameters. `autograd.grad`
touches no `.grad` and no accumulation hook, so that DDP sees one gradient per parameter, when
backward passes the Function below. Hooks of `Tensor.register_hook` would run in forward, too,
and are kept from it.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from safemodules.errors import LoopBodyError
from safemodules.mutation import graph_internals

__all__ = [
    "GradientSum",
    "LossScale",
    "as_in_backward",
    "attach",
    "needs_care",
    "take_gradients",
]

Gradients = Sequence[Tensor | None]

_SECOND: Final = (
    "a second derivative was asked for (create_graph=True) through gradients that an "
    'AccumulatingLoop took in forward; they are constants by then. Use store="recompute" for '
    "a loop whose gradient is differentiated again."
)


class _RefuseSecond(torch.autograd.Function):
    """The gradient itself, which cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *anchors: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise LoopBodyError(_SECOND)


def _anchor(tensor: Tensor) -> Tensor:
    """Give a tensor without elements whose gradient would reach another, and not its memory."""
    if tensor.is_leaf or tensor.dim() == 0:
        return tensor
    return tensor.narrow(0, 0, 0).clone()


class _Taken(torch.autograd.Function):
    """A value with gradients that are known already."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, gradients: list[Tensor], divisor: Any, *inputs: Tensor
    ) -> Tensor:
        ctx.divisor = divisor
        ctx.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        taken = ctx.saved_tensors
        with torch.no_grad():
            factor = grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
            if ctx.divisor is not None:
                factor = factor / ctx.divisor
            scaled = [gradient * factor.to(gradient.device) for gradient in taken]
        if torch.is_grad_enabled():
            scaled = [_RefuseSecond.apply(gradient, *ctx.anchors) for gradient in scaled]
        return None, None, None, *scaled


def attach(
    value: Tensor, inputs: Sequence[Tensor], gradients: Gradients, divisor: Any = None
) -> Tensor:
    """Give a value a graph whose backward brings known gradients to its inputs.

    Args:
        value: Without dimensions.
        inputs: Tensors that the value depends on.
        gradients: Of each input, times ``divisor``; ``None`` where it does not depend.
        divisor: What the gradients are divided by; a number, a tensor, ``None`` for one.

    Returns:
        The value, differentiable once.
    """
    used = [(t, g) for t, g in zip(inputs, gradients, strict=True) if g is not None]
    if not used:
        return value
    tensors = [tensor for tensor, _ in used]
    out: Tensor = _Taken.apply(value, [gradient for _, gradient in used], divisor, *tensors)
    node: Any = out.grad_fn
    node.anchors = [_anchor(tensor) for tensor in tensors]
    return out


@dataclass
class GradientSum:
    """Gradients of several losses, added up in the order in which they come.

    Args:
        size: Number of tensors that they belong to.
    """

    size: int
    sums: list[Tensor | None] = field(init=False)
    _own: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.sums = [None] * self.size
        self._own = [False] * self.size

    def add(self, gradients: Gradients) -> None:
        """Add one gradient to each sum.

        What autograd returns may share memory with its like, so only sums made here are
        written into.
        """
        sums: list[Tensor] = []
        terms: list[Tensor] = []
        for index, gradient in enumerate(gradients):
            present = self.sums[index]
            if gradient is None:
                continue
            if present is None:
                self.sums[index] = gradient
            elif self._own[index] and present.layout == gradient.layout == torch.strided:
                sums.append(present)
                terms.append(gradient)
            else:
                self.sums[index] = present + gradient
                self._own[index] = True
        if sums:
            graph_internals.add_all_(sums, terms)

    def rescale(self, factor: float) -> None:
        """Multiply every sum by a power of two."""
        self.sums = [None if s is None else s * factor for s in self.sums]


@dataclass
class LossScale:
    """Keeps float16 gradients from underflowing: seeds are multiplied by a power of two.

    It falls where a gradient overflows, and the loop divides by it at the end, in float32.

    Attributes:
        factor: The power of two; 1 where nothing is float16.
    """

    factor: float = 1.0
    FIRST: Final = 2.0**15
    STEP: Final = 2.0**-4

    def lower(self) -> float:
        """Lower the factor; returns by how much."""
        fallen = max(self.factor * self.STEP, 1.0)
        ratio, self.factor = fallen / self.factor, fallen
        return ratio


def _autocast_kinds(loss: Tensor) -> set[str]:
    return {kind for kind in (loss.device.type, "cpu") if torch.is_autocast_enabled(kind)}


def needs_care(loss: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether :func:`as_in_backward` has anything to do."""
    return any(map(graph_internals.tensor_hooks, parameters)) or bool(_autocast_kinds(loss))


@contextlib.contextmanager
def as_in_backward(loss: Tensor, parameters: Sequence[Tensor]) -> Iterator[None]:
    """Leave autocast, which backward runs without, and silence hooks of parameters."""
    hooked = [hooks for p in parameters if (hooks := graph_internals.tensor_hooks(p))]
    kept = [dict(hooks) for hooks in hooked]
    for hooks in hooked:
        hooks.clear()
    try:
        with contextlib.ExitStack() as stack:
            for kind in _autocast_kinds(loss):
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        for hooks, own in zip(hooked, kept, strict=True):
            hooks.update(own)


def take_gradients(
    losses: Sequence[Tensor],
    seeds: Sequence[Tensor],
    leaves: Sequence[Tensor | GradientEdge],
    scale: LossScale,
    earlier: Sequence[GradientSum] = (),
) -> Gradients:
    """Differentiate losses now, and free their graph.

    Args:
        losses: Without dimensions, each with a graph.
        seeds: The gradient that each is given, before the scale.
        leaves: What is differentiated by.
        scale: The present scale; falls if a gradient is not finite.
        earlier: Gradients taken with the scale so far, which fall with it.

    Returns:
        A gradient for each leaf, ``None`` where the losses do not depend on it.
    """
    if not leaves:
        return ()
    wanted: Any = leaves  # tensors and edges, which the stub does not mix
    while True:
        scaled = seeds if scale.factor == 1.0 else [seed * scale.factor for seed in seeds]
        found: Gradients = torch.autograd.grad(
            losses, wanted, scaled, allow_unused=True, retain_graph=scale.factor > 1.0
        )
        if scale.factor == 1.0 or _all_finite(found):
            return found
        ratio = scale.lower()
        for other in earlier:
            other.rescale(ratio)


def _all_finite(gradients: Gradients) -> bool:
    """Whether no gradient is infinite or NaN; one question to the device for all."""
    sums = [g.detach().float().sum() for g in gradients if g is not None]
    if not sums:
        return True
    kinds = {s.device for s in sums}
    return all(
        math.isfinite(torch.stack([s for s in sums if s.device == kind]).sum().item())
        for kind in kinds
    )
