"""Functions of torch, of Python and of other libraries, in an abstract run."""

import builtins
import dataclasses
import functools
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.mutation.internals import user_class_of
from safemodules.mutation.liveness import kinds
from safemodules.mutation.liveness.callables import number_of
from safemodules.mutation.liveness.containers import Containers, runs_code
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    NOTHING,
    PLAIN,
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
    Once,
    Storages,
    Value,
    has_rest,
    is_plain,
    merged,
    union,
)
from safemodules.mutation.resolution import is_foreign, static_attribute

Arguments = tuple[list[Value], dict[str, Value]]
# Of what type these are, and which attributes they have, does not change.
_SETTLED = (nn.Module, FunctionType, type, *PLAIN)
_ANSWERS: dict[Any, bool] = {
    torch.jit.is_scripting: False,  # type: ignore[attr-defined]  # they are public
    torch.jit.is_tracing: False,  # type: ignore[attr-defined]
    torch.compiler.is_compiling: False,
}


class Library(Containers):
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
        plain = module == "builtins" and name in kinds.BUILTINS_OF_OBJECTS
        if any(isinstance(value, Made) or runs_code(value) for value in given):
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
            return args[1]
        owner = (module or "torch").partition(".")[0]
        if owner == "torch":
            return self.torch_call(name, args, kwargs, frame)
        if not frame.world.held_by(union(given)) and not _holds_module(given):
            return VALUE if owner in ("math", "operator", "numpy", "functools", "itertools") else (
                Abstract(frozenset({UNKNOWN}))
            )  # fmt: skip
        return self.unknown_call([Known(called), *given], frame)

    def _builtin(self, name: str, args: Sequence[Value], frame: Frame) -> Value:
        if name in ("isinstance", "hasattr", "callable") and isinstance(args[0], Known):
            objects = [_settled(value) for value in args]
            known = all(entry is not None for entry in objects[1:])
            if name == "hasattr" and known:
                holder, attr = objects
                known = not self.changing.assigns(holder, attr, static_attribute(holder, attr))
            if known and isinstance(objects[0], _SETTLED):
                return Known(getattr(builtins, name)(*objects))
            return VALUE
        if name == "getattr" and isinstance(args[1], Known):
            attribute = self.attribute_of(args[0], str(args[1].object), frame)
            return attribute if len(args) < 3 else merged(attribute, args[2])
        if name in ("setattr", "delattr"):  # whichever attribute: see `Changing.assigns`
            frame.world.put(args[0].storages | {STATE, UNKNOWN}, union(args[2:]))
            return VALUE
        if name == "type" and len(args) == 1:
            if isinstance(args[0], Known):
                return Known(user_class_of(type(args[0].object)))
            return Abstract(frozenset({UNKNOWN}))
        if name == "len":
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

    def _construct(
        self, cls: type, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """Make an object: a container of what it is given."""
        given = [*args, *kwargs.values()]
        if has_rest(given):
            return self.unknown_call(given, frame)
        if cls.__module__ == "builtins" and any(isinstance(value, Made) for value in given):
            return self.unknown_call(given, frame)
        if cls in (list, tuple, set, frozenset, dict, enumerate, zip, reversed, range):
            return self._container(cls, args, kwargs, frame)
        if cls.__name__ in kinds.BUILTINS_OF_VALUES and cls.__module__ == "builtins":
            return self._builtin(cls.__name__, args, frame)
        if issubclass(cls, BaseException):
            return self.unknown_call(given, frame) if union(given) else VALUE
        if cls is torch.Size:
            return VALUE
        if issubclass(cls, Tensor):
            return self.torch_call("to", args, kwargs, frame)  # perhaps a view
        if _holds_module(given):
            return self.unknown_call(given, frame)
        if is_foreign(_file_of(cls)):
            held = frame.world.held_by(union(given))
            missing = frozenset({UNKNOWN}) if hasattr(cls, "__missing__") else NOTHING
            return self.container(held | missing, frame)
        if issubclass(cls, tuple):
            return self.made(cls, union(given), frame)
        if hasattr(cls, "__dataclass_fields__"):  # its `__init__` has no text of its own
            fields: Any = vars(cls).get("__dataclass_fields__", {}).values()
            made_anew = any(f.default_factory is not dataclasses.MISSING for f in fields)
            held = union(given) | (frozenset({UNKNOWN}) if made_anew else NOTHING)
            made = self.made(cls, held, frame)
            after = made.method("__post_init__")
            if after is not None:
                self.call_function(after, [made], {}, frame)
            return made
        init = getattr(cls, "__init__", None)
        if init is object.__init__ and not given:
            return self.made(cls, NOTHING, frame)
        if not isinstance(init, FunctionType):
            return self.unknown_call(given, frame)
        made = self.made(cls, NOTHING, frame)
        self.call_function(init, [made, *args], kwargs, frame)
        return made

    def made(self, cls: type, held: Storages, frame: Frame) -> Made:
        """A new object, which is known by its number where it is held."""
        (cell,) = self.container(held, frame).storages
        made = Made(cls, frozenset({cell}))
        return Made(cls, frozenset({cell, number_of(("made", cell), made)}))

    def _container(
        self, cls: type, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        given = [*args, *kwargs.values()]
        lists = [self.entries_of(value) for value in given]
        if cls is range:
            return self._range(args)
        if cls is enumerate and lists and lists[0] is not None:
            start = given[1] if len(given) > 1 else Known(0)
            return Once(
                tuple(
                    Items((Known(start.object + i) if isinstance(start, Known) else VALUE, entry))
                    for i, entry in enumerate(lists[0])
                )
            )
        if given and all(entries is not None for entries in lists):
            known = [entries or [] for entries in lists]
            if cls is zip:
                return Once(tuple(Items(tuple(row)) for row in zip(*known, strict=False)))
            if cls is reversed:
                return Once(tuple(reversed(known[0])))
            if cls is tuple and all(isinstance(e, Known) for e in known[0]):
                return Items(tuple(known[0]))
        held = frame.world.contents(union(given)) | (NOTHING if cls is not dict else union(given))
        if cls in (zip, enumerate) and len(given) and any(entries is not None for entries in lists):
            rows = next(entries for entries in lists if entries is not None)
            if cls is zip:  # of modules and tensors: the modules tell how many rows there are
                entry = [Abstract(frame.world.contents(value.storages)) for value in given]
                columns = [
                    [known] * len(rows) if column is None else column
                    for known, column in zip(entry, lists, strict=True)
                ]
                found = tuple(Items(tuple(row)) for row in zip(*columns, strict=False))
                return Once(found, partial=True)
        self.lose_sight(given)
        return self.container(held, frame)

    @staticmethod
    def _range(args: Sequence[Value]) -> Value:
        numbers = [a.object for a in args if isinstance(a, Known) and isinstance(a.object, int)]
        return Known(range(*numbers)) if len(numbers) == len(args) and args else VALUE

    def method_of_object(
        self, holder: Known, name: str, arguments: Arguments, frame: Frame
    ) -> Value | None:
        """A method of a number, a string or a container that exists already."""
        known, given = holder.object, [*arguments[0], *arguments[1].values()]
        if isinstance(known, str) and all(map(is_plain, given)):
            return _of_text(known, name, arguments)
        if isinstance(known, dict) and name in ("items", "keys", "values"):
            return Known(list(getattr(known, name)()))
        if isinstance(known, dict) and name == "get" and given and isinstance(given[0], Known):
            default = given[1] if len(given) > 1 else Known(None)
            try:
                found = given[0].object in known
            except TypeError:  # it raises when the forward runs, too
                return VALUE
            return Known(known[given[0].object]) if found else default
        if isinstance(known, str | int | float | bool | list | tuple | dict | range | torch.Size):
            if isinstance(known, list | dict) and name in kinds.CONTAINER_WRITERS:
                held = union(given) | frame.world.contents(union(given))
                frame.world.put(frozenset({STATE}), held)
                return Abstract(frozenset({STATE}) | held) if name == "setdefault" else VALUE
            return Abstract(holder.storages | union(given))
        if not isinstance(known, Tensor | nn.Module | ModuleType | type | FunctionType):
            if not any(storage < 0 for storage in holder.storages):  # a deque, a set
                frame.world.put(frozenset({STATE}), frame.world.held_by(union(given)))
                for value in given:
                    self.read(value, frame)
                return Abstract(frozenset({STATE}))
        return None

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

    def torch_call(
        self, name: str, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """An operator of torch, by its name."""
        given = [*args, *kwargs.values()]
        if name in kinds.IDENTITY:
            for value in given:
                self.read(value, frame)
            return VALUE
        if name in kinds.SILENT or name == "_assert":
            return VALUE
        if kinds.may_write(name, args, kwargs):
            for value in given:
                self.read(value, frame)
            self.stays_in_place(frame.world.held_by(union(given)), frame)
            return Abstract(frame.world.held_by(union(given)) | {self.new()})
        if name in kinds.NUMBERS:
            for value in given:
                self.read(value, frame)
            return VALUE
        if name in kinds.FACTORIES:
            form = args[:1] if kinds.takes_form_of_first(name) else ()
            for value in given[len(form) :]:
                self.read(value, frame)
            new = self.new()
            frame.world.filled.add(new)
            return Abstract(frozenset({new}))
        if name in kinds.VIEWS and args:
            if name in kinds.STRIDED_VIEWS:
                frame.world.strided |= args[0].storages
            return Abstract(frame.world.contents(args[0].storages))
        for value in given:
            self.read(value, frame)
        new = self.new()
        if name in kinds.DROPOUT_FUNCTIONS and args:
            return Abstract(self.perhaps(frozenset({new}), args[0].storages, None, frame))
        if kinds.is_fresh(name):
            return Abstract(frozenset({new}))
        if name in kinds.PERHAPS_COPIES:
            return Abstract(frame.world.held_by(union(given)) | {new})
        if not union(given) and not _holds_module(given):
            return Abstract(frozenset({new}))  # a switch, a generator, a dtype
        return self.unknown_call(given, frame, writes=name.endswith("_"))


def _settled(value: Value) -> Any:
    """An object that is known, or a tuple of such."""
    if isinstance(value, Items):
        found = tuple(map(_settled, value.entries))
        return None if None in found else found
    return value.object if isinstance(value, Known) else None


def _of_text(text: str, method: str, arguments: Arguments) -> Value:
    """The result of a method of a text."""
    args, kwargs = arguments
    try:
        return Known(
            getattr(text, method)(
                *map(_settled, args), **{name: _settled(v) for name, v in kwargs.items()}
            )
        )
    except Exception:  # it raises when the forward runs, too
        return VALUE


def _holds_module(values: Sequence[Value]) -> bool:
    return any(
        isinstance(value, Closure | Method)
        or (
            isinstance(value, Known)
            and isinstance(value.object, nn.Module | FunctionType | list | dict)
        )
        for value in values
    )


def _file_of(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
