"""Attributes of an abstract run: of modules, of objects, and of what the forward makes."""

import ast
import functools
import inspect
import threading
from collections import namedtuple
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from torch import Tensor, nn

from safemodules.mutation.liveness import kinds
from safemodules.mutation.liveness.callables import numbered
from safemodules.mutation.liveness.changing import is_changeable
from safemodules.mutation.liveness.displays import Displays
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.own_code import gets_itself, sets_itself
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    NOTHING,
    STATE,
    UNKNOWN,
    VALUE,
    Abstract,
    Closure,
    Items,
    Known,
    Made,
    Method,
    Named,
    Storages,
    Value,
    merged,
)
from safemodules.mutation.resolution import mangled, static_attribute

# What namedtuples and classes with slots keep their attributes in.
_SLOTS = (type(namedtuple("_Pair", "x").x), MemberDescriptorType)  # type: ignore[attr-defined]
_OUTSIDE = (type, FunctionType, ModuleType)  # whose attributes no checkpoint puts back
_MISSING = static_attribute(nn.Identity(), "no such attribute")


class Attributes(Displays):
    """Reads attributes of values."""

    def attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        """The value of ``holder.name``."""
        return self.attribute_of(self.evaluate(node.value, frame), node.attr, frame)

    def attribute_of(self, holder: Value, attr: str, frame: Frame) -> Value:
        """An attribute of a value."""
        name = mangled(attr, frame.reached.context.class_name)
        if isinstance(holder, Known):
            return self._attribute_of_object(holder.object, name, frame)
        if isinstance(holder, Made):
            return self._attribute_of_made(holder, name, frame)
        if isinstance(holder, Items | Named | Closure | Method):
            return Abstract(holder.storages | {UNKNOWN})
        if name == "_version":
            raise UnsupportedError("it asks how often a tensor was overwritten")
        if name in kinds.ASKED:
            return self.ask(name, [holder], frame)
        containers = frame.world.containers(holder.storages)
        if name in kinds.SILENT:  # or of an object that holds something of that name
            return Abstract(frame.world.contents(containers)) if containers else VALUE
        if name in kinds.STRIDED_VIEWS:
            frame.world.strided |= holder.storages
        return Abstract(frame.world.contents(holder.storages) | holder.storages)

    def _attribute_of_made(self, holder: Made, name: str, frame: Frame) -> Value:
        found = inspect.getattr_static(holder.cls, name, None)
        if isinstance(found, property) and isinstance(found.fget, FunctionType):
            return self.call_function(found.fget, [holder], {}, frame)
        if found is not None and not hasattr(type(found), "__get__"):  # of the class
            held = Known(found).storages | holder.storages
            return Abstract(held | frame.world.contents(self.cell_of(holder)))
        plain = found is None or isinstance(found, _SLOTS)
        if plain and not holder.method("__getattr__") and not holder.method("__getattribute__"):
            return Abstract(frame.world.contents(self.cell_of(holder)) | self.cell_of(holder))
        return self.unknown_call([holder], frame)

    @staticmethod
    def cell_of(made: Made) -> Storages:
        """The container of its attributes."""
        return frozenset(storage for storage in made.storages if storage >= 0)

    def _attribute_of_object(self, holder: Any, name: str, frame: Frame) -> Value:
        if isinstance(holder, Tensor):
            return VALUE if name in kinds.SILENT else Abstract(frozenset({STATE}))
        if name == "__dict__":
            self.changing.assign(None, holder, self.line)
        if gets_itself(type(holder), name):
            return self.unknown_call([Known(holder)], frame)
        if isinstance(holder, nn.Module):
            assigned = frame.world.attributes.get((id(holder), name))
            if assigned is not None and not self.changing.is_contested(name):
                return assigned
            if assigned is not None:
                now = Known(static_attribute(holder, name)).storages
                return Abstract(assigned.storages | now | {STATE})
            if name == "_modules" and self.changing.has_regrown(holder):
                return Abstract(Known(holder).storages | {STATE, UNKNOWN})
            if name == "inplace" and id(holder) in self.flags and holder not in self.running[-1:]:
                self.unknown.setdefault(id(holder), f"its flag is read at {self.line}")
            if name in ("training", "inplace"):
                return VALUE
        if isinstance(holder, FunctionType) and name in ("__module__", "__name__", "__qualname__"):
            return Known(getattr(holder, name))
        if type(holder).__module__ == "torch._ops":  # made when they are asked for
            return Known(getattr(holder, name, None))
        if isinstance(holder, threading.local):
            self.answers_once()
        found = static_attribute(holder, name)
        if isinstance(holder, nn.Module) and holder._modules in self.changing:
            return Abstract(Known(found).storages | {STATE, UNKNOWN})
        if self.changing.assigns(holder, name, found):
            now = NOTHING if found is _MISSING else Known(found).storages
            return Abstract(now | {STATE})
        if found is _MISSING:
            return Abstract(frozenset({UNKNOWN}))
        if isinstance(found, property):
            if isinstance(found.fget, FunctionType):
                return self.call_function(found.fget, [Known(holder)], {}, frame, holder)
            return Abstract(frozenset({UNKNOWN}))
        if isinstance(found, functools.cached_property) and isinstance(found.func, FunctionType):
            value = self.call_function(found.func, [Known(holder)], {}, frame, holder)
            frame.world.put(frozenset({STATE}), value.storages)
            return Abstract(value.storages | {STATE})
        if isinstance(found, staticmethod):
            return Known(found.__func__)
        if isinstance(found, classmethod):
            cls = holder if isinstance(holder, type) else type(holder)
            plain = isinstance(found.__func__, FunctionType)
            function: Any = found.__func__
            return Method(function, cls) if plain else Abstract(frozenset({UNKNOWN}))
        if isinstance(found, FunctionType) and not isinstance(holder, ModuleType | type):
            if name not in getattr(holder, "__dict__", {}):
                return Method(found, holder)
        if is_changeable(holder) and name not in kinds.UNCHANGING and callable(found):
            self.note_change(Known(holder))  # when it is called
            return Abstract(Known(holder).storages | {STATE, UNKNOWN})
        return Known(found)

    def store_attribute(self, holder: Value, name: str, value: Value, frame: Frame) -> None:
        """Set an attribute."""
        if isinstance(holder, Known) and isinstance(holder.object, _OUTSIDE):
            self.changing.note_outside(self.line)
        if isinstance(holder, Known) and sets_itself(type(holder.object), name):
            self._set_by_itself(holder.object, name, value, frame)
        elif isinstance(holder, Known) and isinstance(holder.object, nn.Module):
            self._store_in_module(holder.object, name, value, frame)
        elif isinstance(holder, Made) and holder.has_setter(name):
            self.unknown_call([holder, value], frame)
        else:
            held = holder.storages or frozenset({UNKNOWN})
            frame.world.put(held, value.storages)
            if not isinstance(holder, Made):
                self.changing.variables.add(name)  # perhaps of a Python module
                if any(storage < 0 for storage in held):  # an object that exists already
                    self._store_in_any(held, name, value, frame)

    def _set_by_itself(self, holder: Any, name: str, value: Value, frame: Frame) -> None:
        """Code of the user's sets an attribute of an object."""
        found = static_attribute(holder, name)
        setter = found.fset if isinstance(found, property) else None
        if isinstance(setter, FunctionType):
            self.call_function(setter, [Known(holder), value], {}, frame, holder)
            return
        self.changing.look_into_class(type(holder))
        self.unknown_call([Known(holder), value], frame)
        frame.world.put(frozenset({STATE}), value.storages)

    def _store_in_module(self, module: nn.Module, name: str, value: Value, frame: Frame) -> None:
        self._note_regrown(module, name, value)
        frame.world.attributes[id(module), name] = value
        if self.assigned:
            self.assigned[-1].append(((id(module), name), value))
        frame.world.put(frozenset({STATE}), value.storages)

    def _note_regrown(self, module: nn.Module, name: str, value: Value) -> None:
        """A module may run another forward from now on, or have another child."""
        if name == "forward":
            self.changing.hooked.add(id(module))
        if _may_be_module(value):
            self.changing.regrown.add(id(module))

    def _store_in_any(self, held: Storages, name: str, value: Value, frame: Frame) -> None:
        """Set an attribute of one of several objects, nobody knows of which."""
        frame.world.put(frozenset({STATE}), value.storages)
        objects = [numbered(storage) for storage in held if storage < 0]
        for each in objects:
            if sets_itself(type(each), name):
                self._set_by_itself(each, name, value, frame)
            if isinstance(each, nn.Module):
                self._note_regrown(each, name, value)
        for key, known in list(frame.world.attributes.items()):
            if key[1] == name:
                frame.world.attributes[key] = merged(known, value)


def _may_be_module(value: Value) -> bool:
    """Whether something assigned may be a module: a tensor or what holds none is no such."""
    if isinstance(value, Known):
        return isinstance(value.object, nn.Module)
    if isinstance(value, Made):
        return issubclass(value.cls, nn.Module)
    return any(
        storage < 0 and isinstance(numbered(storage), nn.Module) for storage in value.storages
    )
