"""Attributes of an abstract run: of modules, of objects, and of what the forward makes."""

import ast
import functools
import inspect
from collections import namedtuple
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from torch import Tensor, nn

from safemodules.mutation.liveness.displays import Displays
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.kinds import IDENTITY, SILENT, STRIDED_VIEWS
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
)
from safemodules.mutation.resolution import mangled, static_attribute

# What namedtuples and classes with slots keep their attributes in.
_SLOTS = (type(namedtuple("_Pair", "x").x), MemberDescriptorType)  # type: ignore[attr-defined]
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
        if name in IDENTITY:
            self.read(holder, frame)
            return VALUE
        if name in SILENT:
            return VALUE
        if name in STRIDED_VIEWS:
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
            return VALUE if name in SILENT else Abstract(frozenset({STATE}))
        if isinstance(holder, nn.Module):
            assigned = frame.world.attributes.get((id(holder), name))
            if assigned is not None:
                return assigned
            if name == "inplace" and id(holder) in self.flags and holder not in self.running[-1:]:
                self.unknown.setdefault(id(holder), f"its flag is read at {self.line}")
            if name in ("training", "inplace"):
                return VALUE
        if isinstance(holder, FunctionType) and name in ("__module__", "__name__", "__qualname__"):
            return Known(getattr(holder, name))
        if type(holder).__module__ == "torch._ops":  # made when they are asked for
            return Known(getattr(holder, name, None))
        found = static_attribute(holder, name)
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
            return Abstract(frozenset({UNKNOWN}))
        if isinstance(found, FunctionType) and not isinstance(holder, ModuleType | type):
            if name not in getattr(holder, "__dict__", {}):
                return Method(found, holder)
        return Known(found)
