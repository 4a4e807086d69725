"""A loop for training scripts that runs backward after each iteration."""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from safemodules.blocks.leaves import Leaves
from safemodules.blocks.plans import Call
from safemodules.blocks.weights import Weighing
from safemodules.errors import LoopBodyError, LoopItemsError

__all__ = ["run_steps"]


def _total_weight(call: Call) -> Any:
    """Sum the weights before the items have come.

    Raises:
        LoopItemsError: They cannot be known.
    """
    weighing, items = call.weighing, call.pieces.items
    if weighing.weights is None and call.pieces.count is not None:
        return call.pieces.count
    if isinstance(items, Sequence):
        ahead = Weighing(weighing.weights, weighing.dim, call.place)
        for item in items:
            ahead.of(item)
        return ahead.finish(divides=True)
    if isinstance(weighing.weights, Tensor | Sequence) and not isinstance(weighing.weights, str):
        # one after the other, as a call adds them: from 3.12 on `sum` rounds floats otherwise
        return functools.reduce(operator.add, weighing.weights, 0)
    raise LoopItemsError(
        f"{call.place}: the sum of the weights is needed before the first backward, but a "
        f"{call.pieces.what} does not tell it. Give steps(..., total=), a list of items, or "
        f'reduction="sum".'
    )


def run_steps(call: Call, backward: Callable[[Tensor], Any], total: float | None) -> Iterator[Any]:
    """Yield the loss of each iteration after its backward.

    Args:
        call: The call.
        backward: Runs the backward of a loss.
        total: Sum of the weights if it is known; ``None`` to find it.
    """
    divisor = None
    if call.reduction == "mean":
        divisor = _total_weight(call) if total is None and call.pieces.count != 0 else total
    leaves = Leaves()
    shared, kwargs = leaves(call.shared), leaves(call.kwargs)
    for item in call.stream():
        given, weight = leaves(item), call.weighing.of(item)
        del item
        output = call.run(lambda step, *a, **k: step(*a, **k), given, None, shared, kwargs)
        del given
        if not output.is_scalar:
            raise LoopBodyError(
                f"{call.place}: steps() needs a loss (a tensor without dimensions) from each "
                f"iteration"
            )
        loss, value = output.value, output.value.detach()
        loss = loss if weight is None else loss * weight
        backward(loss if divisor is None else loss / divisor)
        del loss
        yield value if not output.has_auxiliary else (value, output.auxiliary)
        del output
    originals, gradients = leaves.gradients()
    if originals:
        torch.autograd.backward(originals, gradients)
