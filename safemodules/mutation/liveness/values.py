"""What the interpreter knows of a value: an object, or the memory that it may refer to."""

import ast
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

import torch
from torch import nn

from safemodules.mutation.liveness.callables import callables_in, entries_in, lose, number_of
from safemodules.mutation.reach import Reached

Storages = frozenset[int]  # below zero: see NOTE [ Callables as memory ]

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
        """State, if it is or holds a tensor; and what may be called."""
        state = frozenset({STATE}) if holds_tensor(self.object) else NOTHING
        return state | callables_in(self.object)


@dataclass(frozen=True)
class Abstract(Value):
    """Something that is made when the forward runs; without storages it holds no tensor."""

    memory: Storages = NOTHING

    @property
    def storages(self) -> Storages:
        """Memory that it may be, or hold."""
        return self.memory


@dataclass(frozen=True)
class Rest(Value):
    """Any number of further arguments, which are not known one by one.

    It stands last among positional arguments, and under `REST` among named ones.
    """

    memory: Storages = NOTHING

    @property
    def storages(self) -> Storages:
        """Memory that any of them may be, or hold."""
        return self.memory


REST = "**"


@dataclass(frozen=True)
class Items(Value):
    """A tuple whose entries are known one by one, but perhaps for a `Rest` at its end."""

    entries: tuple[Value, ...]

    @property
    def storages(self) -> Storages:
        """Memory of all entries."""
        return union(self.entries)


@dataclass(frozen=True)
class Once(Items):
    """What `zip` and the like give, one by one and once.

    Attributes:
        partial: perhaps only the first ones of them.
        of: the lists that it goes through, made by the forward.
    """

    partial: bool = False
    of: Storages = NOTHING


@dataclass(frozen=True, eq=False)
class Named(Value):
    """The keyword arguments that a function has collected in ``**kwargs``.

    A function changes its own dict, which nobody else holds: a value of this kind is replaced
    by another one in the names that stand for it.
    """

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
    defaults: dict[str, Value] = field(default_factory=dict)

    @property
    def storages(self) -> Storages:
        """The function itself, which is a container of what the names in it stand for."""
        return frozenset({number_of(id(self), self)})

    @functools.cached_property
    def mentioned(self) -> frozenset[str]:
        """Names in its text."""
        return names_in(self.node)

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
class Made(Value):
    """An object of a class of the user's, made when the forward runs."""

    cls: type
    memory: Storages

    def method(self, name: str) -> FunctionType | None:
        """A method that the class defines, other than by ``object`` or a built-in base."""
        found = inspect.getattr_static(self.cls, name, None)
        return found if isinstance(found, FunctionType) else None

    def has_setter(self, name: str) -> bool:
        """Whether code of the class runs when an attribute is set."""
        found = inspect.getattr_static(self.cls, name, None)
        return hasattr(type(found), "__set__") or self.method("__setattr__") is not None

    @property
    def storages(self) -> Storages:
        """The object itself, which is a container of its attributes."""
        return self.memory


@dataclass(frozen=True)
class Method(Value):
    """A function bound to an object that is known."""

    function: FunctionType
    holder: Any

    @property
    def storages(self) -> Storages:
        """The method itself."""
        return frozenset({number_of((id(self.function), id(self.holder)), self)})


PLAIN = (int, float, str, bool, type(None), complex)
_FORMS = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_NO_TENSORS = (*PLAIN, *_FORMS, bytes, range, slice, type, ModuleType, nn.Module, Enum, PurePath)
VALUE = Abstract()  # a number, a shape, a flag


@functools.lru_cache(maxsize=2**14)
def names_in(node: ast.AST) -> frozenset[str]:
    """Names in a text."""
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def union(values: Iterable[Value]) -> Storages:
    """Memory of several values."""
    return NOTHING.union(*(value.storages for value in values))


def merged(first: Value, second: Value) -> Value:
    """What is known of a value that is one of two."""
    if first is second or (type(first) is type(second) and _equal(first, second)):
        return first
    storages = first.storages | second.storages
    for value in (first, second):
        if isinstance(value, Known):
            lose(value.object)
    if isinstance(first, Items) and isinstance(second, Items):
        alike = has_rest(first.entries) == has_rest(second.entries)
        if alike and len(first.entries) == len(second.entries):
            pairs = zip(first.entries, second.entries, strict=True)
            return Items(tuple(merged(one, other) for one, other in pairs))
    if isinstance(first, Named) and isinstance(second, Named):
        return _merged_names(first.entries, second.entries)
    if isinstance(first, Rest) and isinstance(second, Rest):
        return Rest(storages)
    if isinstance(first, Made) and isinstance(second, Made) and first.cls is second.cls:
        return Made(first.cls, storages)
    return Abstract(storages)


def _merged_names(first: dict[str, Value], second: dict[str, Value]) -> Value:
    """Named values of two paths: what only one of them has is among the rest."""
    both = {
        name: merged(value, second[name])
        for name, value in first.items()
        if name in second and name != REST
    }
    others = [v for values in (first, second) for name, v in values.items() if name not in both]
    if not all(isinstance(value, Abstract | Rest) or is_plain(value) for value in others):
        return Abstract(union([*first.values(), *second.values()]))
    return Named({**both, REST: Rest(union(others))} if others else both)


def is_plain(value: Value) -> TypeGuard[Known]:
    """Whether a value is a number, a text or the like that is known."""
    return isinstance(value, Known) and isinstance(value.object, PLAIN)


def is_whole(value: Value) -> TypeGuard[Known]:
    """Whether a value is a whole number that is known."""
    return isinstance(value, Known) and isinstance(value.object, int)


def is_text(value: Value) -> TypeGuard[Known]:
    """Whether a value is a text that is known."""
    return isinstance(value, Known) and isinstance(value.object, str)


def has_rest(values: Iterable[Value]) -> bool:
    """Whether some values are not known one by one."""
    return any(isinstance(value, Rest) for value in values)


def with_memory(value: Value, change: Callable[[Storages], Storages]) -> Value:
    """A value that refers to other memory."""
    if isinstance(value, Abstract | Rest):
        found = change(value.memory)
        return value if found == value.memory else type(value)(found)
    if isinstance(value, Made):
        return Made(value.cls, change(value.memory))
    if isinstance(value, Items):
        return Items(tuple(with_memory(entry, change) for entry in value.entries))
    if isinstance(value, Named):
        return Named({name: with_memory(v, change) for name, v in value.entries.items()})
    return value


def _equal(first: Value, second: Value) -> bool:
    if isinstance(first, Known) and isinstance(second, Known):
        return first.object is second.object or (
            type(first.object) is type(second.object)
            and isinstance(first.object, int | float | str)
            and bool(first.object == second.object)
        )
    return isinstance(first, Abstract | Rest | Items | Method) and first == second


def holds_tensor(value: Any, depth: int = 0) -> bool:
    """Whether an object is a tensor, or may hold one; a module or a function is none."""
    if isinstance(value, _NO_TENSORS) or callable(value):
        return False
    if not isinstance(value, list | tuple | dict | set | frozenset):
        return True  # a tensor, or whatever is not looked into
    return depth > 3 or any(holds_tensor(entry, depth + 1) for entry in entries_in(value))
