"""Arguments of calls in an abstract run: starred ones, named ones, and those of unknown number."""

import ast

import torch

from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.library import Arguments, Library
from safemodules.mutation.liveness.values import (
    REST,
    Abstract,
    Items,
    Known,
    Named,
    Rest,
    Value,
    merged,
    union,
)


class Binding(Library):
    """Evaluates what calls are given."""

    def arguments(self, node: ast.Call, frame: Frame, *, runs_at_once: bool = False) -> Arguments:
        """What a call is given, by position and by name.

        Args:
            node: the call.
            frame: what is true before it.
            runs_at_once: generators that it is given run to their end before anything else does.
        """
        args: list[Value] = []
        if runs_at_once:
            self.eager.update(map(id, node.args))
        for argument in node.args:
            if not isinstance(argument, ast.Starred):
                args.append(self.evaluate(argument, frame))
                continue
            value = self.evaluate(argument.value, frame)
            entries = self.entries_of(value)
            if entries is not None:
                args += entries
            elif isinstance(value, Items):
                args += value.entries
            else:
                args.append(Rest(self.element_of(value, frame).storages | value.storages))
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                kwargs[keyword.arg] = self.evaluate(keyword.value, frame)
                continue
            for name, value in self._named_by(self.direct(keyword.value, frame), frame).items():
                both = name == REST and name in kwargs
                kwargs[name] = merged(kwargs[name], value) if both else value
        given = (value.object for value in kwargs.values() if isinstance(value, Known))
        if any(isinstance(each, torch.Generator) for each in given):
            self.answers_once()
        return self._with_rest_last(args, frame), kwargs

    def _named_by(self, value: Value, frame: Frame) -> dict[str, Value]:
        """What ``**value`` names."""
        if isinstance(value, Named):
            return value.entries
        if isinstance(value, Known) and isinstance(value.object, dict):
            if all(isinstance(name, str) for name in value.object):
                return {name: Known(entry) for name, entry in value.object.items()}
        self.lose_sight([value])
        return {REST: Rest(self.element_of(value, frame).storages | value.storages)}

    def _with_rest_last(self, args: list[Value], frame: Frame) -> list[Value]:
        """Arguments behind ones of unknown number are not known one by one either."""
        first = next((i for i, value in enumerate(args) if isinstance(value, Rest)), None)
        if first is None or first == len(args) - 1:
            return args
        self.lose_sight(args[first:])
        return [*args[:first], Rest(union(args[first:]))]

    def method_of_named(self, name: str, method: str, arguments: Arguments, frame: Frame) -> Value:
        """A method of a dict of named arguments, which a local name stands for."""
        holder = frame.names[name]
        assert isinstance(holder, Named)
        given, _ = arguments
        key = given[0].object if given and isinstance(given[0], Known) else None
        if method not in ("get", "pop") or not isinstance(key, str):
            return self.method(self.shared(name, frame), method, arguments, frame)
        default = given[1] if len(given) > 1 else Known(None)
        if key in holder.entries:
            found = holder.entries[key]
        elif REST in holder.entries:
            found = merged(default, Abstract(holder.entries[REST].storages))
        else:
            found = default
        if method == "pop":
            left = {each: value for each, value in holder.entries.items() if each != key}
            frame.bind(name, Named(left))
        return found
