"""Objects and containers that a forward makes, in an abstract run."""

import dataclasses
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from safemodules.mutation.liveness import kinds
from safemodules.mutation.liveness.callables import number_of
from safemodules.mutation.liveness.containers import has_own_code
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.own_code import (
    has_operators,
    has_own_init,
    is_made_plainly,
    iterates,
)
from safemodules.mutation.liveness.torch_functions import TorchFunctions, holds_module
from safemodules.mutation.liveness.values import (
    NOTHING,
    UNKNOWN,
    VALUE,
    Abstract,
    Items,
    Known,
    Made,
    Once,
    Storages,
    Value,
    has_rest,
    is_whole,
    union,
)
from safemodules.mutation.resolution import is_foreign


class Construction(TorchFunctions):
    """Calls classes."""

    def _builtin(self, name: str, args: Sequence[Value], frame: Frame) -> Value:
        raise NotImplementedError

    def construct(
        self, cls: type, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """Make an object: a container of what it is given."""
        given = [*args, *kwargs.values()]
        if has_rest(given):
            return self._made_unseen(cls, given, frame)
        built_in = cls.__module__ == "builtins"
        if built_in and cls.__name__ not in kinds.BUILTINS_OF_OBJECTS:  # as `type` is
            if any(has_own_code(value) or iterates(value) for value in given):
                return self.unknown_call(given, frame)
        if cls in (list, tuple, set, frozenset, dict, enumerate, zip, reversed, range):
            return self._container(cls, args, kwargs, frame)
        if built_in and cls.__name__ in kinds.BUILTINS_OF_VALUES:
            return self._builtin(cls.__name__, args, frame)
        if issubclass(cls, BaseException):
            return self.unknown_call(given, frame) if union(given) else VALUE
        if cls is torch.Size:
            return VALUE
        if not is_made_plainly(cls):
            return self._made_unseen(cls, given, frame)
        if issubclass(cls, Tensor):
            if has_own_init(cls) or has_operators(cls):
                return self._made_unseen(cls, given, frame)
            return self.torch_call("to", args, kwargs, frame)  # perhaps a view
        if holds_module(given):
            return self._made_unseen(cls, given, frame)
        if is_foreign(_file_of(cls)):
            held = frame.world.held_by(union(given))
            missing = frozenset({UNKNOWN}) if hasattr(cls, "__missing__") else NOTHING
            return self.container(held | missing, frame)
        if issubclass(cls, tuple):
            return self.made(cls, union(given), frame)
        if hasattr(cls, "__dataclass_fields__") and not has_own_init(cls):
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
            return self._made_unseen(cls, given, frame)
        made = self.made(cls, NOTHING, frame)
        self.call_function(init, [made, *args], kwargs, frame)
        return made

    def _made_unseen(self, cls: type, given: Sequence[Value], frame: Frame) -> Value:
        """An object of which nothing is known: any method may run, with all that it was given."""
        self.lose_class(cls)
        return self.unknown_call(given, frame)

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
        of = frame.world.containers(union(given))
        if cls is range:
            return self._range(args)
        if cls is enumerate and lists and lists[0] is not None:
            start = given[1] if len(given) > 1 else Known(0)
            return Once(
                tuple(
                    Items((Known(start.object + i) if is_whole(start) else VALUE, entry))
                    for i, entry in enumerate(lists[0])
                ),
                of=of,
            )
        if given and all(entries is not None for entries in lists):
            known = [entries or [] for entries in lists]
            if cls is zip:
                return Once(tuple(Items(tuple(row)) for row in zip(*known, strict=False)), of=of)
            if cls is reversed:
                return Once(tuple(reversed(known[0])), of=of)
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
                return Once(found, partial=True, of=of)
        self.lose_sight(given)
        if cls not in (zip, enumerate, reversed):
            return self.container(held, frame)
        made = self.container(held | of, frame)  # which may change until it is asked
        self.sources.update(dict.fromkeys(made.storages, of))
        return made

    @staticmethod
    def _range(args: Sequence[Value]) -> Value:
        numbers = [a.object for a in args if isinstance(a, Known) and isinstance(a.object, int)]
        if len(numbers) < len(args) or numbers[2:] == [0] or not 0 < len(args) < 4:
            return VALUE
        return Known(range(*numbers))


def _file_of(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
