"""Code that an abstract run does not look into: it may read, keep and call all it is given."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from safemodules.mutation.liveness.callables import (
    callables_in,
    entries_in,
    functions_around,
    is_of_the_user,
    numbered,
)
from safemodules.mutation.liveness.changing import is_changeable
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.run import Run
from safemodules.mutation.liveness.values import (
    STATE,
    UNKNOWN,
    Abstract,
    Closure,
    Items,
    Known,
    Made,
    Method,
    Named,
    Storages,
    Value,
    union,
)


class Unseen(Run):
    """Gives values to code that is not looked into."""

    def unknown_call(self, given: Sequence[Value], frame: Frame, *, writes: bool = True) -> Value:
        """Something unknown is given values: it may read, keep and return all that they hold.

        Args:
            given: the values.
            frame: the call around it.
            writes: it may overwrite them, too.
        """
        for value in given:
            self.read(value, frame)
        self.lose_sight(given)
        for value in given:
            if isinstance(value, Known) and isinstance(value.object, type):
                self.lose_class(value.object)
        held = frame.world.held_by(union(given))
        self.lose_callables(held)
        if writes:
            self.stays_in_place(held, frame)
        if any(number < 0 for number in held):  # it may set attributes, too
            for key, value in frame.world.attributes.items():
                frame.world.attributes[key] = Abstract(value.storages | {STATE})
        frame.world.put(frozenset({UNKNOWN}), held - {UNKNOWN})
        return Abstract(frozenset({UNKNOWN}))

    def lose_sight(self, values: Iterable[Value]) -> None:
        """Lists, dicts and the like that exist already may be changed under another name."""
        for value in values:
            if isinstance(value, Known):
                self._note_changeable(value.object)
            if isinstance(value, Items):
                self.lose_sight(value.entries)
            if isinstance(value, Named):
                self.lose_sight(value.entries.values())

    def _note_changeable(self, value: Any, depth: int = 0) -> None:
        if is_changeable(value):
            self.changing.note(value)
        if isinstance(value, list | tuple | dict | set | frozenset) and depth < 3:
            for entry in entries_in(value):
                self._note_changeable(entry, depth + 1)

    def lose_callables(self, storages: Storages) -> None:
        """Unknown code may call these, see NOTE [ Callables as memory ]."""
        for number in storages:
            if number < 0 and number not in self._lost:
                self._lost.add(number)
                self._opaque_object(numbered(number))

    def _opaque_object(self, value: Any, depth: int = 0) -> None:
        reason = "it is handed to code that is not looked into"
        parts: Iterable[Any] = ()
        if isinstance(value, nn.Module):
            self.opaque_module(value, reason)
            self.changing.look_into_class(type(value), operators=True)
        elif isinstance(value, type):
            self.lose_class(value)
        elif isinstance(value, FunctionType):
            self.opaque(value, None, reason)
            parts = functions_around(value)
        elif isinstance(value, Closure):
            self.opaque(value.reached.function, None, "a nested function is handed on")
        elif isinstance(value, Method):
            self.opaque(value.function, value.holder, reason)
        elif isinstance(value, MethodType):
            parts = value.__func__, value.__self__
        elif isinstance(value, functools.partial):
            parts = value.func, *value.args, *value.keywords.values()
        elif isinstance(value, list | tuple | set | dict):
            parts = value.values() if isinstance(value, dict) else value
        elif isinstance(value, Made):
            parts = _methods(value.cls)
        elif callables_in(value):  # an object of a class of the user's
            parts = *_methods(type(value)), *getattr(value, "__dict__", {}).values()
        for part in parts if depth < 3 else ():
            if callables_in(part):
                self._opaque_object(part, depth + 1)

    def lose_class(self, cls: type) -> None:
        """Unknown code may call the methods of a class."""
        self.changing.look_into_class(cls)
        for method in _methods(cls):
            if callables_in(method):
                self._opaque_object(method, 1)

    def opaque(self, function: FunctionType, holder: Any, reason: str) -> None:
        """A function could not be run to its end: nothing is known of what it runs."""
        self.opaque_functions.setdefault(function, reason)
        self.changing.look_into(function)
        if isinstance(holder, nn.Module):
            self.opaque_module(holder, reason)
        elif holder is not None:
            self.changing.note(holder)

    def opaque_module(self, module: nn.Module, reason: str) -> None:
        """Nothing is known of what a module and its children do."""
        for inner in module.modules():
            self.opaque_modules.setdefault(id(inner), reason)


def _methods(cls: type) -> Iterator[Any]:
    """Functions of a class of the user's, also those of its properties."""
    for base in filter(is_of_the_user, cls.__mro__):
        for value in vars(base).values():
            if isinstance(value, property):
                yield from filter(None, (value.fget, value.fset, value.fdel))
            elif isinstance(value, staticmethod | classmethod):
                yield value.__func__
            else:
                yield value
