"""Functions of torch, of Python and of other libraries, in an abstract run."""

import builtins
import functools
import logging
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.mutation.internals import user_class_of
from safemodules.mutation.liveness import kinds
from safemodules.mutation.liveness.callables import functions_around
from safemodules.mutation.liveness.construction import Construction
from safemodules.mutation.liveness.containers import PUT_BACK, has_own_code
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.own_code import (
    overrides,
    own,
)
from safemodules.mutation.liveness.torch_functions import holds_module
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    PLAIN,
    STATE,
    UNKNOWN,
    VALUE,
    Abstract,
    Items,
    Known,
    Named,
    Value,
    has_rest,
    is_plain,
    is_text,
    merged,
    union,
)
from safemodules.mutation.resolution import static_attribute

Arguments = tuple[list[Value], dict[str, Value]]
# Of what type these are, and which attributes they have, does not change.
_SETTLED = (nn.Module, FunctionType, type, *PLAIN)
_STATE_OF_MODULES = frozenset("buffers named_buffers named_parameters parameters".split())
_LOOKUPS = ("__getattr__", "__getattribute__")
_ANSWERS: dict[Any, bool] = {
    torch.jit.is_scripting: False,  # type: ignore[attr-defined]  # they are public
    torch.jit.is_tracing: False,  # type: ignore[attr-defined]
    torch.compiler.is_compiling: False,
}


class Library(Construction):
    """Calls what is known by its name."""

    def foreign(
        self, called: Any, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """A function of torch, of Python or of another library."""
        given = [*args, *kwargs.values()]
        if has_rest(given):
            return self.unknown_call([Known(called), *given], frame)
        if called is torch.compile and args:
            return args[0]
        if called is functools.wraps:
            return Known(torch.compile)  # a decorator, after which the same is computed
        if isinstance(called, functools.partial):
            first = [Known(value) for value in called.args]
            named = {name: Known(value) for name, value in called.keywords.items()}
            return self.call_value(
                Known(called.func), ([*first, *args], {**named, **kwargs}), frame
            )
        name = getattr(called, "__name__", "")
        module = getattr(called, "__module__", None)
        of = getattr(called, "__objclass__", None)
        if of in (list, dict, set, tuple, frozenset, str):  # `list.copy`
            return self.unknown_call(given, frame)
        try:
            answer = _ANSWERS.get(called)
        except TypeError:
            answer = None
        if answer is not None:
            return Known(answer)
        if name == "next" and not self._is_made_here(args[0] if args else VALUE, frame):
            self.answers_once()
        if not _answers_again(called):
            self.answers_once()
        plain = module == "builtins" and name in kinds.BUILTINS_OF_OBJECTS
        if any(map(has_own_code, given)):
            if not plain or name == "len":
                return self.unknown_call(given, frame)
        if module == "builtins" and not isinstance(called, type):
            runs = kwargs or any(storage < 0 for storage in union(given))
            if name not in kinds.BUILTINS_OF_OBJECTS and runs:
                return self.unknown_call(given, frame)  # `max(..., key=function)`
            if name in kinds.NAMESPACES:
                raise UnsupportedError(f"it calls {name}(), which sees all names")
            return self._builtin(name, args, frame)
        if name == "annotate" and module == "torch.jit":
            return args[1] if len(args) > 1 else kwargs.get("the_value", VALUE)
        owner = owner_of(called)
        if owner == "torch":
            return self.function_of_torch(called, args, kwargs, frame)
        if not frame.world.held_by(union(given)) and not holds_module(given):
            if owner == "numpy":  # an array, which tensors may share
                return Abstract(frozenset({self.new()}))
            plain = owner in ("math", "operator", "functools", "itertools")
            return VALUE if plain else Abstract(frozenset({UNKNOWN}))
        return self.unknown_call([Known(called), *given], frame)

    @staticmethod
    def _is_made_here(value: Value, frame: Frame) -> bool:
        """Whether a list, or what goes through one, was made by the forward."""
        return bool(value.storages) and value.storages == frame.world.containers(value.storages)

    def _builtin(self, name: str, args: Sequence[Value], frame: Frame) -> Value:
        if not args:
            return self.unknown_call(args, frame)
        if name in ("isinstance", "hasattr", "callable") and isinstance(args[0], Known):
            objects = [_settled(value) for value in args]
            known = all(entry is not None for entry in objects[1:])
            if name == "hasattr" and known and isinstance(objects[-1], str):
                holder, attr = objects
                found = static_attribute(holder, attr)
                known = not self.changing.assigns(holder, attr, found)
                if hasattr(type(found), "__set__") or overrides(args[0], *_LOOKUPS):
                    return self.unknown_call(args, frame)
            if known and isinstance(objects[0], _SETTLED):
                return _answer(name, objects)
            return VALUE
        if name == "getattr" and len(args) > 1 and is_text(args[1]):
            attribute = self.attribute_of(args[0], str(args[1].object), frame)
            return attribute if len(args) < 3 else merged(attribute, args[2])
        if name in ("getattr", "setattr", "delattr"):
            return self._any_attribute(name, args, frame)
        if name in kinds.IDENTIFYING:
            for value in args:
                self.identify(value, frame)
            return VALUE
        if name == "slice":
            return self.container(union(args), frame)
        if name == "type":
            if len(args) == 1 and isinstance(args[0], Known):
                return Known(user_class_of(type(args[0].object)))
            return self.unknown_call(args, frame)
        if name == "len":
            if overrides(args[0], "__len__"):
                return self.unknown_call(args, frame)
            entries = self.entries_of(args[0])
            if entries is None and isinstance(args[0], Known):
                known = args[0].object
                if isinstance(known, str | set | frozenset | nn.ModuleDict | nn.ModuleList):
                    return Known(len(known))
            return VALUE if entries is None else Known(len(entries))
        if name in kinds.BUILTINS_OF_VALUES:
            if name not in ("len", "isinstance", "type"):
                for value in args:
                    self.read(value, frame)
            return VALUE
        if name in ("iter", "next", "sorted"):
            self.lose_sight(args)
            held = args[0].storages | frame.world.contents(args[0].storages)
            return Abstract(held | union(args[1:]))
        if name in kinds.BUILTINS_OF_NUMBERS:
            for value in args:
                self.read(value, frame)
            found = union(args)
            return Abstract(frame.world.contents(found) | found | {self.new()}) if found else VALUE
        return self.unknown_call(args, frame)

    def _any_attribute(self, name: str, args: Sequence[Value], frame: Frame) -> Value:
        """``setattr``, ``delattr``, and ``getattr`` of a name that is found when it runs."""
        holder, key = args[0], args[1] if len(args) > 1 else VALUE
        text = str(key.object) if is_text(key) else None
        if name == "getattr":
            if isinstance(holder, Known):  # any of its methods
                self.changing.look_into_class(type(holder.object))
            return self.unknown_call(args, frame)
        known = holder.object if isinstance(holder, Known) else None
        if text is not None or not self.spelled:
            self.changing.assign(text, known, self.line)
        if not isinstance(known, nn.Module):
            self.changing.note_outside(self.line)
        if name == "setattr" and text is not None and len(args) == 3:
            self.store_attribute(holder, text, args[2], frame)
        frame.world.put(holder.storages | {STATE, UNKNOWN}, union(args[2:]))
        return VALUE

    def method_of_module(self, module: nn.Module, name: str, frame: Frame) -> Value | None:
        """What a module holds: children of a container, parameters, buffers."""
        found: Any = None
        if own(type(module), name) is not None or self.changing.has_regrown(module):
            return None
        if name in _STATE_OF_MODULES:
            return self.container(frozenset({STATE}), frame)
        if name == "children":
            found = list(module.children())
        elif name == "named_children":
            found = list(module.named_children())
        elif isinstance(module, nn.ModuleDict) and name in ("items", "values", "keys"):
            found = list(getattr(module, name)())
        return None if found is None else self.known_list(found)

    def method_of_object(
        self, holder: Known, name: str, arguments: Arguments, frame: Frame
    ) -> Value | None:
        """A method of a number, a string or a container that exists already."""
        known, given = holder.object, [*arguments[0], *arguments[1].values()]
        if own(type(known), name) is not None:
            return None
        if name in kinds.COMPARING:
            for value in (holder, *given):
                self.read(value, frame)
        if name not in kinds.UNCHANGING:
            self.note_change(holder)
        if isinstance(known, str):
            if all(map(is_plain, given)):
                return self._of_text(known, name, arguments)
            if any(map(has_own_code, given)):
                return self.unknown_call(given, frame)
            for value in given:
                self.read(value, frame)
            return VALUE
        if isinstance(known, dict) and name in ("items", "keys", "values"):
            return self.known_list(list(getattr(dict, name)(known)))
        if isinstance(known, dict) and name == "get" and given and isinstance(given[0], Known):
            default = given[1] if len(given) > 1 else Known(None)
            try:
                found = given[0].object in known
            except TypeError:  # it raises when the forward runs, too
                return VALUE
            return Known(known[given[0].object]) if found else default
        if isinstance(known, str | int | float | bool | list | tuple | dict | range | torch.Size):
            if isinstance(known, list | dict) and name not in kinds.UNCHANGING:
                held = union(given) | frame.world.contents(union(given))
                frame.world.put(frozenset({STATE}), held)
                return Abstract(frozenset({STATE}) | held) if name == "setdefault" else VALUE
            return Abstract(holder.storages | union(given))
        if not isinstance(known, Tensor | nn.Module | ModuleType | type | FunctionType):
            if not isinstance(known, (*PUT_BACK, logging.Logger)):
                self.answers_once()
            if not any(storage < 0 for storage in holder.storages):  # a deque, a set
                frame.world.put(frozenset({STATE}), frame.world.held_by(union(given)))
                for value in given:
                    self.read(value, frame)
                return Abstract(frozenset({STATE}))
        return None

    def _of_text(self, text: str, method: str, arguments: Arguments) -> Value:
        """The result of a method of a text."""
        args, kwargs = arguments
        named = {name: _settled(value) for name, value in kwargs.items()}
        try:
            found = getattr(text, method)(*map(_settled, args), **named)
        except Exception:  # it raises when the forward runs, too
            return VALUE
        return self.known_list(found) if isinstance(found, list) else Known(found)

    def method(self, holder: Value, name: str, arguments: Arguments, frame: Frame) -> Value:
        """A method of a tensor, or of a container."""
        args, kwargs = arguments
        given = [*args, *kwargs.values()]
        keyed = name in ("sort", "sorted") and bool(given)
        if has_rest(given) or keyed or any(storage < 0 for storage in holder.storages):
            return self.unknown_call([holder, *given], frame)
        if not holder.storages and union(given) and not isinstance(holder, Items | Named):
            return self.unknown_call(given, frame)  # no tensor, so no method of torch's
        containers = frame.world.containers(holder.storages)
        elsewhere = holder.storages & {STATE, UNKNOWN}
        if name == "add" and elsewhere:  # perhaps of a set
            frame.world.put(elsewhere, union(given))
        if name in kinds.COMPARING and (containers or elsewhere):
            for value in (holder, *given):
                self.read(value, frame)
        if containers and name in kinds.SILENT | kinds.NUMBERS:  # no tensor, nor a list
            return self.unknown_call([holder, *given], frame)
        if containers and name == "add":
            for value in given:
                self.remember(value, frame)
        if name in kinds.CONTAINER_WRITERS:
            held = holder.storages or frozenset({UNKNOWN})
            inner = union(given)
            if name in ("extend", "update"):
                inner |= frame.world.contents(inner)
            frame.world.put(held, inner)
            if name == "setdefault":
                return Abstract(inner | frame.world.contents(holder.storages))
            return Abstract(frozenset({UNKNOWN})) if UNKNOWN in held else VALUE
        if name in kinds.CONTAINER_READERS:  # which no tensor has, or which give views of it
            if UNKNOWN in holder.storages:  # somebody's object
                return self.unknown_call([holder, *given], frame)
            return Abstract(frame.world.contents(holder.storages) | holder.storages | union(given))
        if containers and containers == holder.storages and name not in kinds.VIEWS:
            if name in ("add", "discard", "clear", "remove", "sort", "reverse"):
                frame.world.put(containers, union(given))
                return VALUE
        if not holder.storages and not union(given):
            return VALUE if not isinstance(holder, Items | Named) else holder
        found = self.torch_call(name, [holder, *args], kwargs, frame)
        kept = union(given) - {STATE}
        if self.inputs & holder.storages and kept:  # perhaps no tensor, and no operator
            frame.world.put(self.inputs, kept)
            return Abstract(found.storages | kept)
        return found


def owner_of(called: Any) -> str:
    """The package that a function is of, or ``numpy.random``, whose functions have a state."""
    module = getattr(called, "__module__", None)
    if module is None:  # a method of a class that is written in C
        holder = getattr(called, "__objclass__", getattr(called, "__self__", None))
        cls = holder if isinstance(holder, type) else type(holder)
        module = "torch" if holder is None else cls.__module__
    return "numpy.random" if module.startswith("numpy.random") else module.partition(".")[0]


def _answers_again(called: Any) -> bool:
    """Whether a function answers the same when a region is recomputed, or is the user's inside."""
    if called in (input, open):
        return False
    if isinstance(called, FunctionType) and functions_around(called):
        return True
    return owner_of(called) in kinds.REPEATABLE


def _answer(name: str, objects: Sequence[Any]) -> Value:
    try:
        return Known(getattr(builtins, name)(*objects))
    except TypeError:  # it raises when the forward runs, too
        return VALUE


def _settled(value: Value) -> Any:
    """An object that is known, or a tuple of such."""
    if isinstance(value, Items):
        found = tuple(map(_settled, value.entries))
        return None if None in found else found
    return value.object if isinstance(value, Known) else None
