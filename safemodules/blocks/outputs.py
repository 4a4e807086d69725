"""What the body of a loop returns, and how the outputs of its iterations become one."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from safemodules.blocks.leaves import detached
from safemodules.blocks.paths import Place
from safemodules.errors import LoopBodyError
from safemodules.trees import flatten_tensors, map_tensors

__all__ = ["NOTHING", "Auxiliary", "Collector", "Output"]

NOTHING: Final = object()
"""Stands for a value that was not given, where None is a value."""


class Output(NamedTuple):
    """What one iteration returned, taken apart.

    Args:
        value: A loss without dimensions, or tensors.
        auxiliary: What came along with the loss, detached; ``NOTHING`` if nothing came.
        carry: The state for the next iteration; ``NOTHING`` without one.
    """

    value: Any
    auxiliary: Any
    carry: Any

    @property
    def is_scalar(self) -> bool:
        """Whether the value is a loss."""
        return isinstance(self.value, Tensor) and self.value.dim() == 0

    @property
    def has_auxiliary(self) -> bool:
        """Whether something came along with the loss."""
        return self.auxiliary is not NOTHING

    @classmethod
    def read(cls, returned: Any, *, carries: bool, place: Place) -> "Output":
        """Take apart what a body returned.

        Raises:
            LoopBodyError: It is nothing that a loop can make one value of.
        """
        carry = NOTHING
        if carries:
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise LoopBodyError(
                    f"{place}: with carry= the body returns a pair (output, carry), not "
                    f"{_describe(returned)}"
                )
            returned, carry = returned
        if isinstance(returned, tuple) and len(returned) == 2 and _is_loss(returned[0]):
            return cls(returned[0], detached(returned[1]), carry)
        if isinstance(returned, Tensor) or flatten_tensors(returned):
            return cls(returned, NOTHING, carry)
        raise LoopBodyError(
            f"{place}: the body returned {_describe(returned)}, but a loss (a tensor without "
            f"dimensions), a pair (loss, auxiliary) or tensors are expected. A number taken with "
            f".item() has no gradient."
        )


def _is_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{value!r}" if isinstance(value, float | int | str | None) else type(value).__name__


def _shapes(tensors: Sequence[tuple[str, Tensor]]) -> str:
    return ", ".join(f"{path} {tuple(tensor.shape)}" for path, tensor in tensors) or "no tensor"


def _rebuilt(example: Any, tensors: Sequence[Tensor]) -> Any:
    """Give a nested value with other tensors, in order."""
    if isinstance(example, Tensor):
        return tensors[0]
    known = {id(t): new for (_, t), new in zip(flatten_tensors(example), tensors, strict=True)}
    return map_tensors(lambda tensor: known[id(tensor)], example)


class Collector:
    """Makes one value of what the iterations return, tensor by tensor.

    Sums are made as the values come; for the other reductions the values are kept.

    Args:
        reduction: ``"stack"``, ``"cat"``, ``"mean"``, ``"sum"``, or a function of stacked losses.
        dim: Dimension that is stacked or concatenated along.
        place: Where the loop stands, for messages.
        what: What the values are, for messages.
    """

    def __init__(
        self, reduction: str | Callable[[Tensor], Any], dim: int, place: Place, what: str
    ) -> None:
        self.reduction = reduction
        self.dim = dim
        self.place = place
        self.what = what
        self.count = 0
        self.kept: list[list[Tensor]] = []
        self._example: Any = None
        self._first: list[tuple[str, tuple[int, ...]]] = []

    def add(self, value: Any, weight: Any = None) -> None:
        """Take the value of the next iteration, times its weight (``None`` for one).

        Raises:
            LoopBodyError: It does not go with that of the first iteration.
        """
        plain = isinstance(value, Tensor)
        found = [(self.what, value)] if plain else flatten_tensors(value, self.what)
        shapes = [(path, tuple(tensor.shape)) for path, tensor in found]
        if self.count == 0:
            self._example, self._first = value, shapes
            self.kept = [[] for _ in found]
        elif not self._goes_with_first(shapes):
            raise LoopBodyError(
                f"{self.place}: iteration {self.count} returned {_shapes(found)}, but iteration 0 "
                f"{', '.join(f'{path} {shape}' for path, shape in self._first) or 'no tensor'}; "
                f"they cannot be put together. Return the same tensors, of the same shapes, from "
                f'every iteration (reduction="cat" allows other sizes along its dimension).'
            )
        self.count += 1
        for column, (_, tensor) in zip(self.kept, found, strict=True):
            term = tensor if weight is None else tensor * weight
            if column and self.reduction in ("mean", "sum"):
                column[0] = column[0] + term
            else:
                column.append(term)

    def _goes_with_first(self, shapes: list[tuple[str, tuple[int, ...]]]) -> bool:
        if self.reduction != "cat":
            return shapes == self._first
        return [(path, len(shape)) for path, shape in shapes] == [
            (path, len(shape)) for path, shape in self._first
        ]

    def finish(self, divisor: Any = None) -> Any:
        """Give the reduced value; ``divisor`` is the sum of the weights, for a mean."""
        return _rebuilt(self._example, [self._reduced(column, divisor) for column in self.kept])

    def _reduced(self, column: list[Tensor], divisor: Any) -> Any:
        if callable(self.reduction):
            return self.reduction(torch.stack(column))
        if self.reduction == "stack":
            return torch.stack(column, self.dim)
        if self.reduction == "cat":
            return torch.cat(column, self.dim)
        return column[0] if divisor is None else column[0] / divisor


class Auxiliary:
    """Collects what comes along with losses: tensors are stacked, other values listed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.values: list[Any] = []
        self._tensors = Collector("stack", 0, place, "auxiliary")

    def add(self, value: Any, index: int) -> None:
        """Take what the iteration brought, or ``NOTHING``."""
        if (value is NOTHING) != (not self.values) and index > 0:
            raise LoopBodyError(
                f"{self.place}: iteration {index} returned a loss "
                f"{'without' if value is NOTHING else 'with'} an auxiliary value, other than the "
                f"iterations before it"
            )
        if value is NOTHING:
            return
        self.values.append(value)
        if self._holds_tensors:
            self._tensors.add(value)

    @property
    def _holds_tensors(self) -> bool:
        return bool(flatten_tensors(self.values[0]))

    def finish(self, value: Any) -> Any:
        """Give the value back, in a pair with what came along, if anything did."""
        if not self.values:
            return value
        return value, self._tensors.finish() if self._holds_tensors else self.values
