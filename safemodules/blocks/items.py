"""What a loop runs over: items as they come, or slices of tensors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from safemodules.blocks.paths import Place
from safemodules.errors import LoopItemsError, OptionError
from safemodules.trees import flatten_tensors

__all__ = ["Pieces", "Splitting", "size_of"]

_EMPTY: Final = (
    "{place}: there is nothing to run over ({what} is empty), and the {reduction} of no values is "
    "undefined. Leave the call out where there are no items."
)


def size_of(item: Any, dim: int) -> int:
    """Count the elements along a dimension of the first tensor of an item."""
    for _, tensor in flatten_tensors(item):
        if -tensor.dim() <= dim < tensor.dim():
            return tensor.size(dim)
    raise LoopItemsError(
        f'weights="size" counts the elements along dimension {dim} of the first tensor of each '
        f"item, but a {type(item).__name__} has no tensor with that dimension. Give weights= as "
        f"a function of the item."
    )


@dataclass(frozen=True)
class Pieces:
    """Items in order, with what is known of them beforehand.

    Attributes:
        items: The items; may be an iterator that can be run over once.
        sizes: Elements along the split dimension of each, if tensors were split unevenly.
        what: What was given, for messages.
    """

    items: Iterable[Any]
    sizes: Sequence[int] | None
    what: str

    @property
    def count(self) -> int | None:
        """Number of items, ``None`` for a generator."""
        return len(self.items) if isinstance(self.items, Sized) else None

    def stream(self, place: Place, reduction: str) -> Iterator[Any]:
        """Yield the items, holding none of them; raise if there is none."""
        found = False
        iterator = iter(self.items)
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                break
            found = True
            yield item
            del item
        if not found:
            raise LoopItemsError(_EMPTY.format(place=place, what=self.what, reduction=reduction))


def _is_batch(value: Any) -> bool:
    """Whether a value is tensors that are split together."""
    if isinstance(value, Tensor | Mapping):
        return True
    return isinstance(value, tuple) and any(isinstance(v, Tensor | Mapping) for v in value)


@dataclass(frozen=True)
class Splitting:
    """How tensors are taken apart.

    Attributes:
        dim: Dimension along which.
        chunks: Number of chunks, whose sizes differ by at most one; ``None`` for single slices
            without that dimension.
        chunk_size: Elements of a chunk, the last may have fewer.
    """

    dim: int = 0
    chunks: int | None = None
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        if self.chunks is not None and self.chunk_size is not None:
            raise OptionError("give chunks= or chunk_size=, not both")
        for name in ("chunks", "chunk_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(f"{name}= is a positive whole number, not {value!r}")

    @property
    def is_asked_for(self) -> bool:
        """Whether chunks of some size were asked for."""
        return self.chunks is not None or self.chunk_size is not None

    def pieces(self, items: Any, place: Place) -> Pieces:
        """Take apart what is to be run over.

        Args:
            items: A tensor, a mapping of tensors, with chunks a tuple of tensors: split together
                along the dimension. Anything else is iterated.
            place: Where the loop stands, for messages.

        Raises:
            LoopItemsError: It cannot be taken apart like that.
        """
        what = type(items).__name__
        if isinstance(items, Tensor | Mapping) or (self.is_asked_for and _is_batch(items)):
            return self._split(items, what, place)
        if self.is_asked_for:
            raise LoopItemsError(
                f"{place}: chunks split a tensor, or a tuple or mapping of tensors, but the items "
                f"are a {what}. Leave chunks= and chunk_size= out to run over its items."
            )
        if not isinstance(items, Iterable):
            raise LoopItemsError(
                f"{place}: a {what} cannot be run over; give a tensor, a list, a generator or a "
                f"DataLoader."
            )
        return Pieces(items, None, what)

    def _split(self, items: Any, what: str, place: Place) -> Pieces:
        tensors = flatten_tensors(items, "items")
        if not tensors:
            raise LoopItemsError(f"{place}: {what} holds no tensor that could be split")
        sizes: dict[str, int] = {}
        for path, tensor in tensors:
            if not -tensor.dim() <= self.dim < tensor.dim():
                raise LoopItemsError(
                    f"{place}: {path} of shape {tuple(tensor.shape)} has no dimension {self.dim} "
                    f"to split; hand what every iteration needs over after the items."
                )
            sizes[path] = tensor.size(self.dim)
        if len(set(sizes.values())) > 1:
            raise LoopItemsError(
                f"{place}: tensors that are split together differ in size along dimension "
                f"{self.dim}: {', '.join(f'{path} {size}' for path, size in sizes.items())}"
            )
        total = next(iter(sizes.values()))
        lengths = self._lengths(total)
        parts = [self._take(items, lengths)] if lengths else []
        uneven = self.is_asked_for and len(set(lengths)) > 1
        return Pieces(parts[0] if parts else [], lengths if uneven else None, what)

    def _lengths(self, total: int) -> list[int]:
        if total == 0:
            return []
        if self.chunk_size is not None:
            whole, rest = divmod(total, self.chunk_size)
            return [self.chunk_size] * whole + [rest] * (rest > 0)
        number = min(self.chunks or total, total)
        whole, rest = divmod(total, number)
        return [whole + 1] * rest + [whole] * (number - rest)

    def _take(self, items: Any, lengths: list[int]) -> list[Any]:
        """Cut every tensor; one node of the graph stands behind all slices of one tensor."""
        if isinstance(items, Tensor):
            whole = (
                torch.split(items, lengths, self.dim)
                if self.is_asked_for
                else items.unbind(self.dim)
            )
            return list(whole)
        if isinstance(items, Mapping):
            cut = {key: self._cut(value, lengths) for key, value in items.items()}
            return [{key: cut[key][i] for key in cut} for i in range(len(lengths))]
        columns = [self._cut(value, lengths) for value in items]
        rows = list(zip(*columns, strict=True))
        return [type(items)(*row) for row in rows] if hasattr(items, "_fields") else rows

    def _cut(self, value: Any, lengths: list[int]) -> list[Any]:
        is_nested = isinstance(value, Tensor | Mapping | tuple)
        return self._take(value, lengths) if is_nested else [value] * len(lengths)
