"""What stands for a value in the content of a place: values that hold tensors are packed."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from safemodules.checkpointing.held import Held
from safemodules.errors import CheckpointError

__all__ = ["Consumed", "Packed", "Path", "unpack"]


class Path(NamedTuple):
    """Where something was met, spelled only when a message asks for it."""

    parent: "Path | None"
    step: str
    key: Any = None

    def __str__(self) -> str:
        """``argument 0[2].ema``."""
        return f"{'' if self.parent is None else self.parent}{self.step.format(self.key)}"


class Consumed:
    """Stands for an iterator, of which the region has taken what cannot be taken again."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __iter__(self) -> "Consumed":
        """Go on to the error."""
        return self

    def __next__(self) -> Any:
        """Refuse."""
        raise CheckpointError(
            f"{self._what}, an iterator: the checkpointed region reads it, and it cannot be read "
            f"again for the recomputation. Take the items before the region and pass them."
        )


class Packed:
    """A value that is made anew for a recomputation, since it is immutable and holds tensors."""

    __slots__ = ("make", "parts")

    def __init__(self, make: Callable[..., Any], parts: Any) -> None:
        self.make, self.parts = make, parts


def unpack(value: Any, tensors: Mapping[Held, Tensor]) -> Any:
    """A packed value with its tensors."""
    kind = type(value)
    if kind is Packed:
        return value.make([unpack(part, tensors) for part in value.parts])
    return tensors[value] if isinstance(value, Held) else value
