"""Containers of an abstract run: what they hold, and what their entries may be."""

import ast
from collections import OrderedDict, deque
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from torch import nn

from safemodules.mutation.fresh_modules import is_sequential
from safemodules.mutation.liveness.callables import callables_in, entries_in
from safemodules.mutation.liveness.changing import is_changeable
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.own_code import has_operators, iterates
from safemodules.mutation.liveness.repetition import Repetition
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    PLAIN,
    STATE,
    UNKNOWN,
    Abstract,
    Items,
    Known,
    Made,
    Named,
    Once,
    Storages,
    Value,
    has_rest,
    holds_tensor,
    union,
)
from safemodules.mutation.resolution import is_torch_class

# Lists and the like that a checkpoint puts back.
PUT_BACK = (list, dict, set, frozenset, deque, OrderedDict)


def runs_code(value: Value) -> bool:
    """Whether a value is an object of a class of the user's, whose operators are code."""
    if not isinstance(value, Known) or isinstance(value.object, FunctionType):
        return False
    if isinstance(value.object, nn.Module | list | tuple | dict | set | frozenset):
        return has_operators(type(value.object))
    return bool(callables_in(value.object))


def has_own_code(value: Value) -> bool:
    """Whether operators on a value are code of the user's, also where the forward has made it."""
    return isinstance(value, Made) or runs_code(value)


class Containers(Repetition):
    """Makes containers and looks into them."""

    def _part_of(self, value: Value, node: ast.Slice, frame: Frame) -> Value | None:
        """``value[i:j]`` of entries that are known one by one."""
        entries = self.entries_of(value)
        bounds = [
            Known(None) if part is None else self.evaluate(part, frame)
            for part in (node.lower, node.upper, node.step)
        ]
        known = [bound.object for bound in bounds if isinstance(bound, Known)]
        if isinstance(value, Items) and entries is None:
            begin = known[0] if known[1:] == [None, None] else None
            if isinstance(begin, int) and 0 <= begin < len(value.entries):
                return Items(value.entries[begin:])
        if entries is None or len(known) < len(bounds):
            return None
        if not all(part is None or isinstance(part, int) for part in known) or known[2] == 0:
            return None
        found = entries[slice(*known)]
        objects = [entry.object for entry in found if isinstance(entry, Known)]
        if isinstance(value, Known) and is_sequential(value.object):
            return Known(nn.Sequential(*objects))
        if isinstance(value, Known) and not holds_tensor(value.object):
            return self.known_list(objects)
        return Items(tuple(found))

    def entry_of(self, value: Value, key: Value, frame: Frame) -> Value:
        """``value[key]``."""
        made = isinstance(value, Made) and value.method("__getitem__")
        if made or runs_code(value) or iterates(value):
            return self.unknown_call([value, key], frame)
        if isinstance(value, Known) and isinstance(value.object, dict | nn.ModuleDict):
            return self._value_at(value, key)
        index = key.object if isinstance(key, Known) else None
        entries = self.entries_of(value)
        if entries is not None and isinstance(index, int) and -len(entries) <= index < len(entries):
            return entries[index]
        if isinstance(value, Items) and isinstance(index, int):
            if 0 <= index < len(value.entries) - 1:  # before the rest
                return value.entries[index]
        if isinstance(value, Named) and index in value.entries:
            return value.entries[index]
        if isinstance(value, Known):
            return self._any_entry(value)
        if isinstance(value, Items | Named):
            self.lose_sight([value])
            return Abstract(value.storages)
        storages = value.storages
        tensors = storages - frame.world.containers(storages)
        if tensors and not isinstance(key, Known) and key.storages:
            # by a mask or by indices: a copy
            self.read(Abstract(tensors), frame)
            return Abstract(frame.world.contents(storages) | {self.new()})
        return Abstract(frame.world.contents(storages))

    def _value_at(self, value: Known, key: Value) -> Value:
        """``value[key]`` of a dict that exists already."""
        mapping: Any = value.object
        if hasattr(type(mapping), "__missing__"):  # a look at it may put something into it
            self.note_change(value)
        if isinstance(key, Known) and isinstance(key.object, (*PLAIN, type)):
            if key.object in mapping:
                return Known(mapping[key.object])
        return self._any_entry(value)

    def _any_entry(self, value: Known) -> Value:
        """Some entry of a list or the like that exists already."""
        known = value.object
        if isinstance(known, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            if is_torch_class(type(known)) and not self.changing.has_regrown(known):
                return Abstract(union(map(Known, known.children())))  # it indexes them
        if isinstance(known, nn.Module):
            raise UnsupportedError("a module is chosen at run time")
        if isinstance(known, list | tuple | dict | set | frozenset):
            self.lose_sight(map(Known, entries_in(known)))
        return Abstract(value.storages)

    def is_container(self, value: Value, frame: Frame) -> bool:
        """Whether a value is surely a list, a tuple or a dict, and no tensor."""
        if isinstance(value, Items):
            return True
        if isinstance(value, Known):
            return isinstance(value.object, list | tuple | dict)
        storages = value.storages
        return bool(storages) and all(map(frame.world.is_container, storages))

    def known_list(self, entries: Sequence[Any]) -> Value:
        """A list that the forward makes of what exists already."""
        made = list(entries)
        self.changing.lists[id(made)] = made
        return Known(made)

    def list_of_modules(self, entries: Sequence[Value] | None) -> Value | None:
        """A list that holds nothing but modules, and so is known."""
        known = [entry.object for entry in entries or () if isinstance(entry, Known)]
        if not entries or len(known) < len(entries):
            return None
        modules = all(isinstance(entry, nn.Module) for entry in known)
        return self.known_list(known) if modules else None

    def element_of(self, value: Value, frame: Frame) -> Value:
        """One of what iteration gives."""
        if isinstance(value, Made) and (value.method("__iter__") or value.method("__getitem__")):
            return self.unknown_call([value], frame)
        if runs_code(value) or iterates(value):
            return self.unknown_call([value], frame)
        self.lose_sight([value] if isinstance(value, Items) else [])
        return Abstract(frame.world.contents(value.storages))

    def entries_of(self, value: Value) -> list[Value] | None:
        """What iteration gives, where that is known one by one."""
        if isinstance(value, Items):
            return None if has_rest(value.entries) else list(value.entries)
        if isinstance(value, Known):
            known = value.object
            if iterates(value) or (
                isinstance(known, nn.Module) and self.changing.has_regrown(known)
            ):
                return None
            if isinstance(known, nn.ModuleDict):
                return [Known(key) for key in known]
            if isinstance(known, nn.Sequential | nn.ModuleList | nn.ParameterList):
                return [Known(entry) for entry in known]
            if isinstance(known, list | tuple | range) and len(known) <= 4096:
                return [Known(entry) for entry in known]
            if isinstance(known, dict):
                return [Known(key) for key in known]
        return None

    def may_be_list(self, storages: Storages, frame: Frame) -> bool:
        """Whether something that is taken for a tensor may be a list that somebody has passed."""
        elsewhere = storages & (self.inputs | {STATE, UNKNOWN})
        return bool(elsewhere) or any(each in frame.world.heap for each in storages)

    def lasting(self, value: Value, frame: Frame) -> Value:
        """A value that gets a name: what is given once may be asked again, in vain."""
        if not isinstance(value, Once):
            return value
        # what it goes through may change until it is asked
        return self.container(value.storages | value.of, frame)

    def shared(self, name: str, frame: Frame) -> Value:
        """A dict of named arguments, which somebody else may hold or change from now on."""
        value = frame.names[name]
        if isinstance(value, Named):
            self.lose_sight(value.entries.values())
            frame.bind(name, self.container(value.storages, frame))
        return frame.names[name]

    def direct(self, node: ast.expr, frame: Frame) -> Value:
        """The value of an expression that is looked into and handed to nobody."""
        if isinstance(node, ast.Name) and isinstance(frame.names.get(node.id), Named):
            return frame.names[node.id]
        return self.evaluate(node, frame)

    def share_with(self, node: ast.AST, frame: Frame) -> None:
        """Share the named arguments that a nested function mentions."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in frame.names:
                self.shared(inner.id, frame)

    def note_change(self, value: Value) -> None:
        """A container that exists already is changed, see NOTE [ What a branch can rely on ]."""
        if isinstance(value, Known):
            known = value.object
            if is_changeable(known) or isinstance(known, nn.Module):
                self.changing.note(known)
            if is_changeable(known):
                self.answers_once()
                if type(known) not in PUT_BACK:
                    self.changing.note_outside(self.line)

    def container(self, held: frozenset[int], frame: Frame) -> Value:
        """A new list, dict or set."""
        cell = self.new() + 1  # an odd number, see `World.is_container`
        frame.world.heap[cell] = held
        return Abstract(frozenset({cell}))
