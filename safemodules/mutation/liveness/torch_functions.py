"""Functions and methods of torch in an abstract run, by their names."""

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from torch import nn

from safemodules.mutation.liveness import kinds
from safemodules.mutation.liveness.containers import Containers
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.values import (
    VALUE,
    Abstract,
    Closure,
    Known,
    Method,
    Value,
    union,
)


class TorchFunctions(Containers):
    """Calls operators."""

    def ask(self, name: str, given: Sequence[Value], frame: Frame) -> Value:
        """What somebody asks of a tensor that its values do not tell."""
        if name in ("is_leaf", "grad_fn"):  # of what a region is given that is recomputed
            self.answers_once()
        for value in given:
            if name in kinds.IDENTITY:
                self.identify(value, frame)
            else:
                self.read(value, frame)
        if name in ("_base", "as_strided"):
            found = union(given)
            return Abstract(frame.world.contents(found) | found)
        return VALUE

    def function_of_torch(
        self, called: Any, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """A function of torch's: an operator, or something of the same name."""
        name, given = getattr(called, "__name__", ""), [*args, *kwargs.values()]
        if getattr(called, "__module__", None) == "torch.nn.init" and given:
            for value in given:
                self.read(value, frame)
            written = kwargs.get("tensor", given[0])
            self.stays_in_place(written.storages, frame)
            return written
        if kinds.is_operator(called, name):
            return self.torch_call(name, args, kwargs, frame)
        if not union(given) and not holds_module(given):
            return Abstract(frozenset({self.new()}))  # a switch, a generator, a dtype
        return self.unknown_call(given, frame)

    def torch_call(
        self, name: str, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """An operator of torch, by its name."""
        given = [*args, *kwargs.values()]
        if name in kinds.ASKED:
            return self.ask(name, given, frame)
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
        if not union(given) and not holds_module(given):
            return Abstract(frozenset({new}))  # a switch, a generator, a dtype
        return self.unknown_call(given, frame, writes=name.endswith("_"))


def holds_module(values: Sequence[Value]) -> bool:
    """Whether some values may be called, or are lists that may hold such."""
    return any(
        isinstance(value, Closure | Method)
        or (
            isinstance(value, Known)
            and isinstance(value.object, nn.Module | FunctionType | list | dict)
        )
        for value in values
    )
