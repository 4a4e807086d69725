"""Weights of iterations, and their sum."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from safemodules.blocks.items import size_of
from safemodules.blocks.paths import Place
from safemodules.errors import LoopItemsError, OptionError

__all__ = ["Weighing", "Weights", "as_seed", "require_weights"]

Weights = None | str | Sequence[Any] | Tensor | Callable[[Any], Any]


def require_weights(weights: Any) -> None:
    """Check what can be checked of weights before they are used.

    Raises:
        OptionError: They are of no kind that is known.
    """
    if isinstance(weights, str) and weights != "size":
        raise OptionError(
            f'weights={weights!r} is unknown; give "size", a number per item, or a function of '
            f"the item"
        )
    if isinstance(weights, Tensor) and weights.dim() != 1:
        raise OptionError(
            f"weights= holds one number per item, but has shape {tuple(weights.shape)}"
        )
    if not (weights is None or callable(weights) or isinstance(weights, str | Sequence | Tensor)):
        raise OptionError(
            f'weights= is "size", a sequence or a function, not a {type(weights).__name__}'
        )


class Weighing:
    """The weight of each iteration, and the sum of those asked for.

    Args:
        weights: ``None`` for one each; numbers in the order of the items; a function of the
            item; ``"size"`` for the size of its first tensor along ``dim``.
        dim: See there.
        place: Where the loop stands, for messages.
    """

    def __init__(self, weights: Weights, dim: int, place: Place) -> None:
        require_weights(weights)
        self.weights = weights
        self.dim = dim
        self.place = place
        self.count = 0
        self.total: Any = 0

    def of(self, item: Any) -> Any:
        """Give the weight of the next item, ``None`` for one, and add it to the sum."""
        index, self.count = self.count, self.count + 1
        weight = self._weight(index, item)
        if isinstance(weight, Tensor):
            self._require_scalar(weight)
        self.total = self.total + (1 if weight is None else weight)
        return weight

    def _weight(self, index: int, item: Any) -> Any:
        weights = self.weights
        if weights is None:
            return None
        if isinstance(weights, str):
            return size_of(item, self.dim)
        if not isinstance(weights, Tensor | Sequence):
            return weights(item)
        if index >= len(weights):
            raise LoopItemsError(
                f"{self.place}: there are {len(weights)} weights, but at least {index + 1} items"
            )
        return weights[index]

    def _require_scalar(self, weight: Tensor) -> None:
        if weight.numel() != 1:
            raise LoopItemsError(
                f"{self.place}: a weight is one number, but has shape {tuple(weight.shape)}"
            )
        if weight.requires_grad:
            raise OptionError(
                f"{self.place}: a weight needs a gradient, which a loop does not give it. Detach "
                f"it, or weigh the losses in reduction=, a function of all losses."
            )

    def finish(self, *, divides: bool) -> Any:
        """Give the sum of the weights, ``None`` if nothing is divided by it.

        Raises:
            LoopItemsError: It is zero, or there were more weights than items.
        """
        if isinstance(self.weights, Tensor | Sequence) and not isinstance(self.weights, str):
            if len(self.weights) != self.count:
                raise LoopItemsError(
                    f"{self.place}: there are {len(self.weights)} weights, but {self.count} items"
                )
        if not divides:
            return None
        on_cpu = not isinstance(self.total, Tensor) or self.total.device.type == "cpu"
        if on_cpu and self.total == 0:
            raise LoopItemsError(
                f"{self.place}: the weights sum to 0, so that their mean is undefined"
            )
        return self.total


def as_seed(weight: Any, loss: Tensor) -> Tensor:
    """Make the gradient that a loss of some weight is seeded with."""
    if weight is None:
        return torch.ones_like(loss, memory_format=torch.preserve_format)
    if isinstance(weight, Tensor):
        return weight.detach().to(device=loss.device, dtype=loss.dtype).reshape(loss.shape)
    return torch.full_like(loss, weight)
