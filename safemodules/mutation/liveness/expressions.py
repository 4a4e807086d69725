"""Expressions of an abstract run: names, attributes, operators, containers and sites."""

import ast
import builtins
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import nn

from safemodules.mutation.liveness.attributes import Attributes
from safemodules.mutation.liveness.containers import has_own_code
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.own_code import overrides
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
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
    Storages,
    Value,
    is_plain,
    merged,
    union,
)
from safemodules.mutation.liveness.world import join

_BINARY: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type, Callable[..., Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_COMPARISONS: dict[type, Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


_ELSEWHERE = frozenset({STATE, UNKNOWN})  # memory that may be that of a list
_PLAIN_CONTAINERS = (list, tuple, dict, set, frozenset, OrderedDict)


class Expressions(Attributes):
    """Evaluates expressions over abstract values."""

    def evaluate(self, node: ast.expr, frame: Frame) -> Value:
        """The value of an expression; sites in it are noted."""
        self.tick()
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            raise UnsupportedError(f"an expression {type(node).__name__}")
        region = self.region_at(node, frame) if id(node) in self.regions else nullcontext()
        with region:
            value: Value = handler(self, node, frame)
        if isinstance(value, Known) and value.object in self.changing:
            # see NOTE [ What a branch can rely on ]
            return Abstract(value.storages | {STATE})
        return value

    def test(self, node: ast.expr, frame: Frame) -> bool | None:
        """Whether a condition holds, where that cannot change: `None` and types are trusted."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.test(node.operand, frame)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            _refuse_bindings(node.values[1:])
            stops, unknown = isinstance(node.op, ast.Or), False
            for operand in node.values:
                found = self.test(operand, frame)
                if found is stops:
                    return stops
                unknown = unknown or found is None
            return None if unknown else not stops
        value = self.direct(node, frame)
        self.read(value, frame)
        if has_own_code(value) or overrides(value, "__len__"):
            self.unknown_call([value], frame)
            return None
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            if len(node.ops) == 1 and self.none_ness is not None:
                answer, self.none_ness = self.none_ness, None
                return answer
        if isinstance(value, Known) and isinstance(value.object, nn.Module):
            return bool(value.object) if hasattr(type(value.object), "__len__") else True
        if isinstance(value, Known) and isinstance(value.object, PLAIN):
            return bool(value.object)
        return None

    # -- names and attributes -----------------------------------------------------------

    def _constant(self, node: ast.Constant, frame: Frame) -> Value:
        return Known(node.value)

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        if node.id in frame.names:
            return self.shared(node.id, frame)
        function = frame.reached.function
        if self.changing.rebinds(node.id, function.__globals__):
            now = Known(function.__globals__.get(node.id))
            return Abstract(now.storages | {UNKNOWN})
        if node.id in function.__code__.co_freevars:
            index = function.__code__.co_freevars.index(node.id)
            try:
                return Known(function.__closure__[index].cell_contents)
            except ValueError:
                raise UnsupportedError("an empty cell") from None
        for namespace in (function.__globals__, vars(builtins)):
            if node.id in namespace:
                return Known(namespace[node.id])
        return Abstract(frozenset({UNKNOWN}))  # bound on a path that was not taken

    # -- operators ----------------------------------------------------------------------

    def _binary(self, node: ast.BinOp, frame: Frame) -> Value:
        left, right = self.evaluate(node.left, frame), self.evaluate(node.right, frame)
        known = _computed(_BINARY.get(type(node.op)), left, right)
        if known is not None:
            return known
        value = self.operator([left, right], frame)
        if _may_be_list(node.op, left, right, _ELSEWHERE):
            elsewhere = (left.storages | right.storages) & _ELSEWHERE
            return Abstract(value.storages | elsewhere)
        if _may_be_list(node.op, left, right, _ELSEWHERE | self.inputs):
            frame.world.put(value.storages, (left.storages | right.storages) & self.inputs)
        return value

    def operator(self, operands: Sequence[Value], frame: Frame) -> Value:
        """The result of an operator: new memory; or a list, which holds what its parts held."""
        if any(map(has_own_code, operands)):
            return self.unknown_call(operands, frame)
        if any(self.is_container(operand, frame) for operand in operands):
            held = frame.world.contents(union(operands))
            held |= union(operand for operand in operands if isinstance(operand, Items))
            return self.container(held, frame)
        for operand in operands:
            self.read(operand, frame)
        if all(isinstance(o, Known) and isinstance(o.object, PLAIN) for o in operands):
            return VALUE
        storages = union(operands)
        if not storages:
            return VALUE
        inner = frame.world.contents(frame.world.containers(storages))
        return Abstract(frozenset({self.new()}) | inner)

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> Value:
        operand = self.evaluate(node.operand, frame)
        if isinstance(node.op, ast.UAdd) and operand.storages:
            return Abstract(operand.storages)  # `+t` is `t`
        known = _computed(_UNARY.get(type(node.op)), operand)
        return self.operator([operand], frame) if known is None else known

    def _compare(self, node: ast.Compare, frame: Frame) -> Value:
        _refuse_bindings(node.comparators[1:])
        operands = [self.direct(o, frame) for o in (node.left, *node.comparators)]
        self.none_ness = None
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            first, second = operands[0], operands[1]
            if isinstance(second, Known) and second.object is None:
                is_none = _is_none(first)
                if is_none is not None:
                    self.none_ness = is_none == isinstance(node.ops[0], ast.Is)
            if not any(isinstance(o, Known) and o.object is None for o in operands):
                for operand in operands:  # which tensor it is
                    self.read(operand, frame)
            return VALUE
        if any(map(has_own_code, operands)):
            return self.unknown_call(operands, frame)
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            return self._membership(node.ops[0], operands, frame)
        known = None
        if len(operands) == 2:
            known = _computed(_COMPARISONS.get(type(node.ops[0])), *operands)
        return self.operator(operands, frame) if known is None else known

    def _membership(self, op: ast.cmpop, operands: Sequence[Value], frame: Frame) -> Value:
        """``value in container``: known of plain values that exist already."""
        value, held = operands[0], operands[-1]
        if len(operands) == 2 and is_plain(value):
            container = _as_object(held)
            if container is not None and _is_plain(container):
                try:
                    return Known((value.object in container) == isinstance(op, ast.In))
                except TypeError:  # it raises when the forward runs, too
                    return VALUE
        if not (isinstance(value, Known) and isinstance(value.object, str)):
            for operand in operands:  # what is in a list is compared one by one
                self.read(operand, frame)
        return VALUE

    def _bool(self, node: ast.BoolOp, frame: Frame) -> Value:
        value = self.evaluate(node.values[0], frame)
        for each in node.values[1:]:
            self.read(value, frame)
            if has_own_code(value):
                self.unknown_call([value], frame)
            with self.optionally(frame):
                other = self.evaluate(each, frame)
            value = merged(value, other)
        return value

    def _choice(self, node: ast.IfExp, frame: Frame) -> Value:
        known = self.test(node.test, frame)
        if known is not None:
            return self.evaluate(node.body if known else node.orelse, frame)
        before = dict(frame.names), frame.world.copy()
        first = self.evaluate(node.body, frame)
        one = {**frame.names, "choice": first}, frame.world
        frame.names, frame.world = before
        second = self.evaluate(node.orelse, frame)
        other = {**frame.names, "choice": second}, frame.world
        names, frame.world = join(one, other, self.numbers)
        value = names.pop("choice")
        frame.names = names
        return value

    def _named(self, node: ast.NamedExpr, frame: Frame) -> Value:
        value = self.evaluate(node.value, frame)
        self.store(node.target, value, frame)
        return value

    def _text(self, node: ast.JoinedStr, frame: Frame) -> Value:
        texts: list[str] = []
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self.evaluate(inner, frame)
            self.read(value, frame)
            if has_own_code(value):
                self.unknown_call([value], frame)
            bare = not isinstance(part, ast.FormattedValue) or (
                part.conversion == -1 and part.format_spec is None
            )
            if bare and is_plain(value):
                texts.append(f"{value.object}")
        return Known("".join(texts)) if len(texts) == len(node.values) else VALUE

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        self.share_with(node, frame)
        return frame.enclose(Closure(node, frame, self.defaults_of(node.args, frame)))

    def defaults_of(self, arguments: ast.arguments, frame: Frame) -> dict[str, Value]:
        """Parameters of a nested function that have defaults, which are evaluated now."""
        positional = [*arguments.posonlyargs, *arguments.args]
        given = positional[len(positional) - len(arguments.defaults) :]
        pairs = [*zip(given, arguments.defaults, strict=True)]
        pairs += [
            (parameter, default)
            for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        ]
        return {parameter.arg: self.evaluate(default, frame) for parameter, default in pairs}

    def _starred(self, node: ast.Starred, frame: Frame) -> Value:
        raise UnsupportedError("a starred expression")


def _refuse_bindings(nodes: Sequence[ast.expr]) -> None:
    """What is perhaps not evaluated shall bind no name."""
    if any(isinstance(inner, ast.NamedExpr) for node in nodes for inner in ast.walk(node)):
        raise UnsupportedError("a name that is perhaps bound")


def _computed(operator: Callable[..., Any] | None, *operands: Value) -> Value | None:
    """The result of an operator on numbers and strings that are known."""
    objects = [operand.object for operand in operands if isinstance(operand, Known)]
    if operator is None or len(objects) < len(operands):
        return None
    if not all(isinstance(each, PLAIN) for each in objects):
        return None
    try:
        return Known(operator(*objects))
    except Exception:  # it raises when the forward runs, too
        return None


def _may_be_list(op: ast.operator, left: Value, right: Value, lists: Storages) -> bool:
    """Whether the result may be a list or dict, where some memory may: it holds what they hold."""
    operands = left, right
    plain = [o.object for o in operands if isinstance(o, Known) and isinstance(o.object, PLAIN)]
    if isinstance(op, ast.Add | ast.Sub | ast.BitOr | ast.BitAnd | ast.BitXor):
        return not plain and all(not o.storages or o.storages & lists for o in operands)
    if not isinstance(op, ast.Mult) or any(not isinstance(number, int) for number in plain):
        return False
    return any(not o.storages for o in operands) and any(o.storages & lists for o in operands)


def _is_plain(container: Any) -> bool:
    """Whether a container tells at once what is in it, without running code of the user's."""
    if type(container) in (str, range) or isinstance(container, nn.ModuleDict):
        return True
    return type(container) in _PLAIN_CONTAINERS and all(isinstance(e, PLAIN) for e in container)


def _as_object(value: Value) -> Any:
    """A container that is known, or a display of entries that are; else `None`."""
    if isinstance(value, Items) and all(map(is_plain, value.entries)):
        return tuple(entry.object for entry in value.entries if isinstance(entry, Known))
    return value.object if isinstance(value, Known) else None


def _is_none(value: Value) -> bool | None:
    if isinstance(value, Known):
        return value.object is None
    if isinstance(value, Items | Named | Closure | Made | Method):
        return False
    return None


_EXPRESSIONS: dict[type, Callable[..., Value]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions.attribute,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._compare,
    ast.BoolOp: Expressions._bool,
    ast.IfExp: Expressions._choice,
    ast.NamedExpr: Expressions._named,
    ast.JoinedStr: Expressions._text,
    ast.Tuple: Expressions._tuple,
    ast.List: Expressions._list,
    ast.Dict: Expressions._dict,
    ast.Set: Expressions._set,
    ast.Subscript: Expressions._subscript,
    ast.Slice: Expressions._slice,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.Lambda: Expressions._lambda,
    ast.Starred: Expressions._starred,
    ast.Call: Expressions.call,
}
