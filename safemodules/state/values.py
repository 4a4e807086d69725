"""Snapshots of single Python values: contents are put back into the same object.

Contents are compared by identity, so an untouched container is not written at all.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "ArrayRecord",
    "DictRecord",
    "GeneratorRecord",
    "ListRecord",
    "SetRecord",
    "SlotsRecord",
]


def _same_items(a: Collection[object], b: Collection[object]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class DictRecord:
    """A dict of any kind, among them the namespace of an object."""

    mapping: dict[Any, Any]
    keys: list[Any]
    values: list[Any]

    def restore(self) -> None:
        """Put keys, order and values back."""
        now = self.mapping
        if _same_items(now.keys(), self.keys) and _same_items(now.values(), self.values):
            return
        # A subclass may forbid or reinterpret these, so the base class's own are used;
        # an OrderedDict keeps its order apart from dict's.
        base: Any = OrderedDict if isinstance(now, OrderedDict) else dict
        base.clear(now)
        for key, value in zip(self.keys, self.values, strict=True):
            base.__setitem__(now, key, value)


@dataclass(frozen=True)
class ListRecord:
    """A list or a deque."""

    values: list[Any] | deque[Any]
    items: list[Any]

    def restore(self) -> None:
        """Put the items back."""
        if _same_items(self.values, self.items):
            return
        if isinstance(self.values, deque):
            self.values.clear()
            self.values.extend(self.items)
        else:
            list.__setitem__(self.values, slice(None), self.items)


@dataclass(frozen=True)
class SetRecord:
    """A set."""

    values: set[Any]
    items: frozenset[Any]

    def restore(self) -> None:
        """Put the members back."""
        if self.values != self.items:
            self.values.clear()
            self.values.update(self.items)


@dataclass(frozen=True)
class SlotsRecord:
    """The ``__slots__`` of an object."""

    obj: object
    names: tuple[str, ...]
    values: dict[str, object]

    def restore(self) -> None:
        """Put the slots back, emptying those that were empty."""
        for name in self.names:
            if name not in self.values:
                if hasattr(self.obj, name):
                    object.__delattr__(self.obj, name)
            elif getattr(self.obj, name, None) is not self.values[name]:
                object.__setattr__(self.obj, name, self.values[name])


@dataclass(frozen=True)
class ArrayRecord:
    """A NumPy array."""

    array: Any
    saved: Any

    def restore(self) -> None:
        """Write the elements back where a byte differs."""
        if self.array.tobytes() != self.saved.tobytes():
            self.array[...] = self.saved


@dataclass(frozen=True)
class GeneratorRecord:
    """A random number generator that a module keeps for itself."""

    generator: Any
    state: Any

    def restore(self) -> None:
        """Set the generator back."""
        if isinstance(self.generator, torch.Generator):
            self.generator.set_state(self.state)
        elif isinstance(self.generator, random.Random):
            self.generator.setstate(self.state)
        elif hasattr(self.generator, "bit_generator"):
            self.generator.bit_generator.state = self.state
        else:
            self.generator.set_state(self.state)
