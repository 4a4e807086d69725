"""Which places a call may read, without holding what is in them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from safemodules.checkpointing.packing import Path
from safemodules.checkpointing.walk import Walk

__all__ = ["Survey"]


class Survey(Walk):
    """A walk that keeps no tensor.

    Args:
        function: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__()
        for value in (function, *args, *kwargs.values()):
            self.pack(value, Path(None, ""))
        self.note_empty()

    def pack(self, value: Any, path: Path) -> Any:
        """Note a value and what it leads to, but for tensors."""
        return value if isinstance(value, Tensor) else super().pack(value, path)
