"""What the interpreter knows of a value: an object, or the memory that it may refer to."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from safemodules.mutation.reach import Reached

Storages = frozenset[int]

NOTHING: Storages = frozenset()
STATE = 0  # parameters, buffers and other tensors that modules hold
UNKNOWN = 1  # whatever code that is not looked into may hold
FIRST_NEW = 2


class Value:
    """Anything that an expression may stand for."""

    __slots__ = ()

    @property
    def storages(self) -> Storages:
        """Memory that it may be, or hold."""
        return NOTHING


@dataclass(frozen=True)
class Known(Value):
    """An object that exists already: a module, a function, a number."""

    object: Any

    @property
    def storages(self) -> Storages:
        """State, if it is or holds a tensor."""
        return frozenset({STATE}) if holds_tensor(self.object) else NOTHING


@dataclass(frozen=True)
class Abstract(Value):
    """Something that is made when the forward runs; without storages it holds no tensor."""

    memory: Storages = NOTHING

    @property
    def storages(self) -> Storages:
        """Memory that it may be, or hold."""
        return self.memory


@dataclass(frozen=True)
class Items(Value):
    """A tuple whose entries are known one by one."""

    entries: tuple[Value, ...]

    @property
    def storages(self) -> Storages:
        """Memory of all entries."""
        return union(self.entries)


@dataclass(frozen=True, eq=False)
class Named(Value):
    """The keyword arguments that a function has collected in ``**kwargs``."""

    entries: dict[str, Value]

    @property
    def storages(self) -> Storages:
        """Memory of all entries."""
        return union(self.entries.values())


@dataclass(frozen=True, eq=False)
class Closure(Value):
    """A nested function, with the call around it, whose names it sees as they are then."""

    node: ast.FunctionDef | ast.Lambda
    frame: Any

    @property
    def names(self) -> dict[str, Value]:
        """The names around it."""
        names: dict[str, Value] = self.frame.names
        return names

    @property
    def reached(self) -> Reached:
        """The function around it."""
        reached: Reached = self.frame.reached
        return reached


@dataclass(frozen=True)
class Method(Value):
    """A function bound to an object that is known."""

    function: FunctionType
    holder: Any


PLAIN = (int, float, str, bool, type(None), complex)
VALUE = Abstract()  # a number, a shape, a flag


def union(values: Iterable[Value]) -> Storages:
    """Memory of several values."""
    return NOTHING.union(*(value.storages for value in values))


def merged(first: Value, second: Value) -> Value:
    """What is known of a value that is one of two."""
    if first is second or (type(first) is type(second) and _equal(first, second)):
        return first
    if isinstance(first, Items) and isinstance(second, Items):
        if len(first.entries) == len(second.entries):
            pairs = zip(first.entries, second.entries, strict=True)
            return Items(tuple(merged(one, other) for one, other in pairs))
    return Abstract(first.storages | second.storages)


def _equal(first: Value, second: Value) -> bool:
    if isinstance(first, Known) and isinstance(second, Known):
        return first.object is second.object or (
            type(first.object) is type(second.object)
            and isinstance(first.object, int | float | str)
            and bool(first.object == second.object)
        )
    return isinstance(first, Abstract | Items | Method) and first == second


def holds_tensor(value: Any, depth: int = 0) -> bool:
    """Whether an object is a tensor, or a container with one in it; a module is none."""
    if isinstance(value, Tensor):
        return True
    if depth > 3 or isinstance(value, str | nn.Module):
        return False
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return False
    return any(holds_tensor(entry, depth + 1) for entry in value)
