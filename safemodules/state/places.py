"""Where state stands: namespaces, containers, closure cells, generators of random numbers.

A place knows its present content and takes another one; content is compared by identity, so
what is as it was is not written.
"""

import copy
import operator
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any, ClassVar, Protocol

import torch

__all__ = [
    "MISSING",
    "ArrayPlace",
    "AttributesPlace",
    "CellPlace",
    "DefaultsPlace",
    "DictPlace",
    "EmptyPlace",
    "EntryPlace",
    "GeneratorPlace",
    "ListPlace",
    "Place",
    "SetPlace",
    "SlotsPlace",
    "is_generator",
]


def _same(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
    """Whether two mappings have the same entries in the same order, by identity."""
    return (
        len(a) == len(b) and all(map(operator.is_, a.values(), b.values())) and list(a) == list(b)
    )


class _Missing:
    """Stands for the content of an empty place."""


MISSING = _Missing()


class Place(Protocol):
    """Somewhere that content can be read and put.

    Attributes:
        keys: tell one place from another.
        is_fixed: a region that finds its content there as it was is taken not to write it:
            what code shares with every other user of it is hardly ever rebound.
    """

    is_fixed: ClassVar[bool]

    @property
    def keys(self) -> tuple[Any, ...]:
        """The identities of what has the content."""

    def now(self) -> Any:
        """The content, in a form that later changes leave alone."""

    def put(self, content: Any) -> None:
        """Make that the content."""


def entries_of(mapping: dict[Any, Any]) -> dict[Any, Any]:
    """The entries of a dict as they are stored; a subclass may hand out others.

    Example:
        >>> class Made(dict):
        ...     def __getitem__(self, key):
        ...         return [super().__getitem__(key)]
        >>> entries_of(Made(a=1))
        {'a': 1}
    """
    if type(mapping) is dict:
        return dict(mapping)
    base: Any = OrderedDict if isinstance(mapping, OrderedDict) else dict
    return dict(base.items(mapping))


@dataclass(eq=False, slots=True)
class DictPlace:
    """The entries of a dict, among them the namespace of an object."""

    mapping: dict[Any, Any]

    is_fixed: ClassVar[bool] = False

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return (id(self.mapping),)

    def now(self) -> dict[Any, Any]:
        """The entries."""
        return entries_of(self.mapping)

    def put(self, content: dict[Any, Any]) -> None:
        """Write the entries that differ; all of them where their order does."""
        mapping, now = self.mapping, self.now()
        if _same(now, content):
            return
        # A subclass may forbid or reinterpret these; an OrderedDict keeps its order apart.
        base: Any = OrderedDict if isinstance(mapping, OrderedDict) else dict
        if list(now) == list(content):
            for key, value in content.items():
                if now[key] is not value:
                    base.__setitem__(mapping, key, value)
            return
        for key in [key for key in now if key not in content]:
            base.__delitem__(mapping, key)
        for key, value in content.items():
            base.pop(mapping, key, None)
            base.__setitem__(mapping, key, value)


class AttributesPlace(DictPlace):
    """The attributes of a function."""

    __slots__ = ()
    is_fixed: ClassVar[bool] = True


@dataclass(eq=False, slots=True)
class EmptyPlace:
    """Dicts that are empty, as most registries of hooks are.

    Args:
        mappings: the dicts.
    """

    mappings: list[dict[Any, Any]]

    is_fixed: ClassVar[bool] = False

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells them from other places."""
        return tuple(map(id, self.mappings))

    def now(self) -> list[dict[Any, Any]]:
        """The entries of each, or nothing if all are empty."""
        return list(map(dict, self.mappings)) if any(self.mappings) else []

    def put(self, content: list[dict[Any, Any]]) -> None:
        """Write the entries that differ."""
        if content or any(self.mappings):
            for index, mapping in enumerate(self.mappings):
                DictPlace(mapping).put(content[index] if content else {})


@dataclass(eq=False, slots=True)
class EntryPlace:
    """One entry of a dict: a global variable."""

    mapping: dict[str, Any]
    name: str

    is_fixed: ClassVar[bool] = True

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return ((id(self.mapping), self.name),)

    def now(self) -> Any:
        """The value, or :data:`MISSING`."""
        return self.mapping.get(self.name, MISSING)

    def put(self, content: Any) -> None:
        """Bind the name."""
        if content is MISSING:
            self.mapping.pop(self.name, None)
        elif self.mapping.get(self.name, MISSING) is not content:
            self.mapping[self.name] = content


@dataclass(eq=False, slots=True)
class SlotsPlace:
    """The ``__slots__`` of an object."""

    obj: object
    names: tuple[str, ...]

    is_fixed: ClassVar[bool] = False

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return ((id(self.obj), "slots"),)

    def now(self) -> dict[str, Any]:
        """The slots that are filled."""
        return {name: getattr(self.obj, name) for name in self.names if hasattr(self.obj, name)}

    def put(self, content: dict[str, Any]) -> None:
        """Fill the slots, and empty the others."""
        for name in self.names:
            if name not in content:
                if hasattr(self.obj, name):
                    object.__delattr__(self.obj, name)
            elif getattr(self.obj, name, MISSING) is not content[name]:
                object.__setattr__(self.obj, name, content[name])


@dataclass(eq=False, slots=True)
class ListPlace:
    """The items of a list or a deque."""

    items: "list[Any] | deque[Any]"

    is_fixed: ClassVar[bool] = False

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return (id(self.items),)

    def now(self) -> list[Any]:
        """The items."""
        return list(self.items)

    def put(self, content: list[Any]) -> None:
        """Write the items if any differs."""
        items = self.items
        if len(items) == len(content) and all(a is b for a, b in zip(items, content, strict=True)):
            return
        if isinstance(items, deque):
            items.clear()
            items.extend(content)
        else:
            list.__setitem__(items, slice(None), content)


@dataclass(eq=False, slots=True)
class SetPlace:
    """The members of a set."""

    members: set[Any]

    is_fixed: ClassVar[bool] = False

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return (id(self.members),)

    def now(self) -> frozenset[Any]:
        """The members."""
        return frozenset(self.members)

    def put(self, content: frozenset[Any]) -> None:
        """Write the members if they differ."""
        if self.members != content:
            self.members.clear()
            self.members.update(content)


@dataclass(eq=False, slots=True)
class CellPlace:
    """The cell of a closure."""

    cell: CellType

    is_fixed: ClassVar[bool] = True

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return (id(self.cell),)

    def now(self) -> Any:
        """The content, or :data:`MISSING`."""
        try:
            return self.cell.cell_contents
        except ValueError:
            return MISSING

    def put(self, content: Any) -> None:
        """Bind the variable."""
        if content is self.now():
            return
        if content is MISSING:
            del self.cell.cell_contents
        else:
            self.cell.cell_contents = content


@dataclass(eq=False, slots=True)
class DefaultsPlace:
    """The defaults of a function's parameters.

    Args:
        function: the function.
        name: ``"__defaults__"`` or ``"__kwdefaults__"``.
    """

    function: FunctionType
    name: str

    is_fixed: ClassVar[bool] = True

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return ((id(self.function), self.name),)

    def now(self) -> Any:
        """The defaults."""
        return getattr(self.function, self.name)

    def put(self, content: Any) -> None:
        """Set the defaults."""
        if self.now() is not content:
            setattr(self.function, self.name, content)


def is_generator(kind: type) -> bool:
    """Whether objects of a class generate random numbers: one of torch, Python or NumPy.

    Example:
        >>> is_generator(torch.Generator), is_generator(random.Random), is_generator(list)
        (True, True, False)
    """
    if issubclass(kind, torch.Generator | random.Random):
        return True
    numpy_random: Any = sys.modules.get("numpy.random")
    return numpy_random is not None and issubclass(
        kind, (numpy_random.Generator, numpy_random.RandomState)
    )


@dataclass(eq=False, slots=True)
class GeneratorPlace:
    """The state of a random number generator that somebody holds."""

    generator: Any

    is_fixed: ClassVar[bool] = False

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return (id(self.generator),)

    def now(self) -> Any:
        """The state."""
        generator = self.generator
        if isinstance(generator, torch.Generator):
            return generator.get_state()
        if isinstance(generator, random.Random):
            return generator.getstate()
        if hasattr(generator, "bit_generator"):
            return copy.deepcopy(generator.bit_generator.state)
        return generator.get_state()

    def put(self, content: Any) -> None:
        """Set the state."""
        generator = self.generator
        if isinstance(generator, random.Random):
            generator.setstate(content)
        elif hasattr(generator, "bit_generator"):
            generator.bit_generator.state = content
        else:
            generator.set_state(content)


@dataclass(eq=False, slots=True)
class ArrayPlace:
    """The elements of a NumPy array."""

    array: Any

    is_fixed: ClassVar[bool] = False

    @property
    def keys(self) -> tuple[Any, ...]:
        """What tells it from other places."""
        return (id(self.array),)

    def now(self) -> Any:
        """A copy of the elements."""
        return self.array.copy()

    def put(self, content: Any) -> None:
        """Write the elements, if a byte differs."""
        if self.array.tobytes() != content.tobytes():
            self.array[...] = content
