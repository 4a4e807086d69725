"""Expressions of an abstract run: names, attributes, operators, containers and sites."""

import ast
import builtins
import operator
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.mutation.found import FoundSite
from safemodules.mutation.liveness.calls import Calls
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.kinds import SILENT, VIEWS
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
    Method,
    Named,
    Value,
    holds_tensor,
    merged,
    union,
)
from safemodules.mutation.liveness.world import join
from safemodules.mutation.resolution import is_foreign, mangled, static_attribute
from safemodules.mutation.sites import SiteKind

_MISSING = static_attribute(nn.Identity(), "no such attribute")
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
_PLAIN = (int, float, str, bool, type(None), complex)


class Expressions(Calls):
    """Evaluates expressions over abstract values."""

    def evaluate(self, node: ast.expr, frame: Frame) -> Value:
        """The value of an expression; sites in it are noted."""
        self.tick()
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            raise UnsupportedError(f"an expression {type(node).__name__}")
        value: Value = handler(self, node, frame)
        return value

    def test(self, node: ast.expr, frame: Frame) -> bool | None:
        """Whether a condition holds, where that cannot change: `None` and types are trusted."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.test(node.operand, frame)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            stops, answer = isinstance(node.op, ast.Or), not isinstance(node.op, ast.Or)
            unknown = False
            for value in node.values:
                found = self.test(value, frame)
                if found is stops:
                    return stops
                unknown = unknown or found is None
            return None if unknown else answer
        value = self.evaluate(node, frame)
        self.read(value, frame)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            if len(node.ops) == 1 and self.none_ness is not None:
                answer, self.none_ness = self.none_ness, None
                return answer
        if isinstance(value, Known) and isinstance(value.object, nn.Module):
            return bool(value.object) if hasattr(type(value.object), "__len__") else True
        if isinstance(value, Known) and isinstance(value.object, _PLAIN):
            return bool(value.object)
        return None

    # -- names and attributes -----------------------------------------------------------

    def _constant(self, node: ast.Constant, frame: Frame) -> Value:
        return Known(node.value)

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        if node.id in frame.names:
            return frame.names[node.id]
        function = frame.reached.function
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

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        return self.attribute_of(self.evaluate(node.value, frame), node.attr, frame)

    def attribute_of(self, holder: Value, attr: str, frame: Frame) -> Value:
        """An attribute of a value."""
        name = mangled(attr, frame.reached.context.class_name)
        if isinstance(holder, Known):
            return self._attribute_of_object(holder.object, name, frame)
        if isinstance(holder, Items | Named | Closure | Method):
            return Abstract(holder.storages | {UNKNOWN})
        if name in SILENT:
            return VALUE
        return Abstract(frame.world.contents(holder.storages) | holder.storages)

    def _attribute_of_object(self, holder: Any, name: str, frame: Frame) -> Value:
        if isinstance(holder, Tensor):
            return VALUE if name in SILENT else Abstract(frozenset({STATE}))
        if isinstance(holder, nn.Module):
            assigned = frame.world.attributes.get((id(holder), name))
            if assigned is not None:
                return assigned
            if name in self.assigned and name not in holder._modules:
                return Abstract(frozenset({STATE}))
            if name in ("training", "inplace"):
                return VALUE
        found = static_attribute(holder, name)
        if found is _MISSING:
            return Abstract(frozenset({UNKNOWN}))
        if isinstance(found, property):
            if isinstance(found.fget, FunctionType):
                return self.call_function(found.fget, [Known(holder)], {}, frame, holder)
            return Abstract(frozenset({UNKNOWN}))
        if isinstance(found, staticmethod):
            return Known(found.__func__)
        if isinstance(found, classmethod):
            return Abstract(frozenset({UNKNOWN}))
        if isinstance(found, FunctionType) and not isinstance(holder, ModuleType | type):
            if name not in getattr(holder, "__dict__", {}):
                return Method(found, holder)
        return Known(found)

    # -- operators ----------------------------------------------------------------------

    def _binary(self, node: ast.BinOp, frame: Frame) -> Value:
        left, right = self.evaluate(node.left, frame), self.evaluate(node.right, frame)
        known = _computed(_BINARY.get(type(node.op)), left, right)
        return self.operator([left, right], frame) if known is None else known

    def operator(self, operands: Sequence[Value], frame: Frame) -> Value:
        """The result of an operator: new memory; or a list, which holds what its parts held."""
        for operand in operands:
            self.read(operand, frame)
        if all(isinstance(o, Known) and isinstance(o.object, _PLAIN) for o in operands):
            return VALUE
        storages = union(operands)
        if not storages:
            return VALUE
        inner = NOTHING.union(
            *(frame.world.contents(frozenset({s})) for s in storages if frame.world.is_container(s))
        )
        if any(isinstance(operand, Items | Named) for operand in operands):
            inner |= storages
        return Abstract(frozenset({self.new(frame)}) | inner)

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> Value:
        operand = self.evaluate(node.operand, frame)
        known = _computed(_UNARY.get(type(node.op)), operand)
        return self.operator([operand], frame) if known is None else known

    def _compare(self, node: ast.Compare, frame: Frame) -> Value:
        operands = [self.evaluate(o, frame) for o in (node.left, *node.comparators)]
        self.none_ness = None
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            first, second = operands[0], operands[1]
            if isinstance(second, Known) and second.object is None:
                known = _is_none(first)
                if known is not None:
                    self.none_ness = known == isinstance(node.ops[0], ast.Is)
            return VALUE
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            return VALUE
        known = None
        if len(operands) == 2:
            known = _computed(_COMPARISONS.get(type(node.ops[0])), *operands)
        return self.operator(operands, frame) if known is None else known

    def _bool(self, node: ast.BoolOp, frame: Frame) -> Value:
        value = self.evaluate(node.values[0], frame)
        for each in node.values[1:]:
            self.read(value, frame)
            before = dict(frame.names), frame.world.copy()
            other = self.evaluate(each, frame)
            frame.names, frame.world = join(before, (frame.names, frame.world), self.numbers)
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
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.read(self.evaluate(part.value, frame), frame)
        return VALUE

    # -- containers ---------------------------------------------------------------------

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Value:
        entries: list[Value] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                value = self.evaluate(element.value, frame)
                inner = self.entries_of(value)
                if inner is None:
                    return Abstract(self._rest(node, entries, value, frame))
                entries += inner
            else:
                entries.append(self.evaluate(element, frame))
        return Items(tuple(entries))

    def _rest(
        self, node: ast.Tuple | ast.List, entries: list[Value], value: Value, frame: Frame
    ) -> frozenset[int]:
        found = union(entries) | frame.world.contents(value.storages) | value.storages
        for element in node.elts[len(entries) + 1 :]:
            inner = element.value if isinstance(element, ast.Starred) else element
            found |= self.evaluate(inner, frame).storages
        return found

    def _list(self, node: ast.List, frame: Frame) -> Value:
        made = self._tuple(ast.Tuple(node.elts, node.ctx), frame)
        entries = made.entries if isinstance(made, Items) else None
        if entries and all(
            isinstance(e, Known) and isinstance(e.object, nn.Module) for e in entries
        ):
            return Known([e.object for e in entries if isinstance(e, Known)])
        return self.container(made.storages, frame)

    def container(self, held: frozenset[int], frame: Frame) -> Value:
        """A new list, dict or set."""
        cell = self.numbers.new()
        frame.world.heap[cell] = held
        return Abstract(frozenset({cell}))

    def _dict(self, node: ast.Dict, frame: Frame) -> Value:
        held: frozenset[int] = NOTHING
        for key, value in zip(node.keys, node.values, strict=True):
            inner = self.evaluate(value, frame)
            held |= inner.storages if key is not None else frame.world.contents(inner.storages)
            if key is not None:
                self.evaluate(key, frame)
        return self.container(held, frame)

    def _set(self, node: ast.Set, frame: Frame) -> Value:
        return self.container(union([self.evaluate(e, frame) for e in node.elts]), frame)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        value = self.evaluate(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            part = self._part_of(value, node.slice, frame)
            if part is not None:
                return part
        key = self.evaluate(node.slice, frame)
        self.read(key, frame)
        return self.entry_of(value, key, frame)

    def _part_of(self, value: Value, node: ast.Slice, frame: Frame) -> Value | None:
        """``value[i:j]`` of entries that are known one by one."""
        entries = self.entries_of(value)
        bounds = [
            Known(None) if part is None else self.evaluate(part, frame)
            for part in (node.lower, node.upper, node.step)
        ]
        known = [bound.object for bound in bounds if isinstance(bound, Known)]
        if entries is None or len(known) < len(bounds):
            return None
        found = entries[slice(*known)]
        if isinstance(value, Known) and not holds_tensor(value.object):
            return Known([entry.object for entry in found if isinstance(entry, Known)])
        return Items(tuple(found))

    def entry_of(self, value: Value, key: Value, frame: Frame) -> Value:
        """``value[key]``."""
        index = key.object if isinstance(key, Known) else None
        entries = self.entries_of(value)
        if entries is not None and isinstance(index, int) and -len(entries) <= index < len(entries):
            return entries[index]
        if isinstance(value, Named) and index in value.entries:
            return value.entries[index]
        if isinstance(value, Known):
            if isinstance(value.object, nn.ModuleDict | dict) and index in value.object:
                return Known(value.object[index])
            if isinstance(value.object, nn.Module):
                raise UnsupportedError("a module is chosen at run time")
            return Abstract(value.storages)
        if isinstance(value, Items):
            return Abstract(value.storages)
        storages = value.storages
        tensors = frozenset(s for s in storages if not frame.world.is_container(s))
        if tensors and not isinstance(key, Known) and key.storages:
            # by a mask or by indices: a copy
            self.read(Abstract(tensors), frame)
            return Abstract(frame.world.contents(storages) | {self.new(frame)})
        return Abstract(frame.world.contents(storages))

    def _slice(self, node: ast.Slice, frame: Frame) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.read(self.evaluate(part, frame), frame)
        return VALUE

    def element_of(self, value: Value, frame: Frame) -> Value:
        """One of what iteration gives."""
        return Abstract(frame.world.contents(value.storages))

    def entries_of(self, value: Value) -> list[Value] | None:
        """What iteration gives, where that is known one by one."""
        if isinstance(value, Items):
            return list(value.entries)
        if isinstance(value, Known):
            known = value.object
            if isinstance(known, nn.ModuleDict):
                return [Known(key) for key in known]
            if isinstance(known, nn.Sequential | nn.ModuleList | nn.ParameterList):
                return [Known(entry) for entry in known]
            if isinstance(known, list | tuple | range) and len(known) <= 4096:
                return [Known(entry) for entry in known]
            if isinstance(known, dict):
                return [Known(key) for key in known]
        return None

    def _comprehension(self, node: Any, frame: Frame) -> Value:
        outer = dict(frame.names)
        held: set[int] = set()
        entries: list[Value] | None = [] if isinstance(node, ast.ListComp) else None

        def run(generators: list[ast.comprehension]) -> None:
            nonlocal entries
            if not generators:
                elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                values = [self.evaluate(element, frame) for element in elements]
                held.update(union(values))
                if entries is not None:
                    entries.append(values[0])
                return
            generator = generators[0]
            iterated = self.evaluate(generator.iter, frame)
            known = self.entries_of(iterated)
            rounds = known
            if rounds is None:
                self.rounds += 1
                rounds = [self.element_of(iterated, frame)] * 2
                entries = None
            for entry in rounds:
                self.store(generator.target, entry, frame)
                for condition in generator.ifs:
                    if self.test(condition, frame) is None:
                        entries = None
                run(generators[1:])
            if known is None:
                self.rounds -= 1

        run(node.generators)
        bound = {
            n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)
        }
        for name in bound:
            frame.names.pop(name, None)
            if name in outer:
                frame.names[name] = outer[name]
        if entries and all(
            isinstance(e, Known) and isinstance(e.object, nn.Module) for e in entries
        ):
            return Known([e.object for e in entries if isinstance(e, Known)])
        return self.container(frozenset(held), frame)

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        return Closure(node, frame)

    def _starred(self, node: ast.Starred, frame: Frame) -> Value:
        raise UnsupportedError("a starred expression")

    # -- stores -------------------------------------------------------------------------

    def store(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind a target."""
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, frame)
        elif isinstance(target, ast.Attribute):
            holder = self.evaluate(target.value, frame)
            if isinstance(holder, Known) and isinstance(holder.object, nn.Module):
                name = mangled(target.attr, frame.reached.context.class_name)
                frame.world.attributes[id(holder.object), name] = value
                frame.world.put(frozenset({STATE}), value.storages)
            else:
                held = holder.storages or frozenset({UNKNOWN})
                frame.world.put(held, value.storages)
        elif isinstance(target, ast.Subscript):
            self._store_item(target, value, frame)
        elif isinstance(target, ast.Starred):
            self.store(target.value, self.container(value.storages, frame), frame)
        else:
            raise UnsupportedError("a target of an assignment")

    def _unpack(self, targets: Sequence[ast.expr], value: Value, frame: Frame) -> None:
        entries = self.entries_of(value)
        starred = any(isinstance(target, ast.Starred) for target in targets)
        if entries is not None and len(entries) == len(targets) and not starred:
            for target, entry in zip(targets, entries, strict=True):
                self.store(target, entry, frame)
            return
        element = Abstract(frame.world.contents(value.storages))
        for target in targets:
            self.store(target, element, frame)

    def _store_item(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        site = self.site_at(target, frame)
        holder = self.evaluate(target.value, frame)
        self.read(self.evaluate(target.slice, frame), frame)
        storages = holder.storages
        containers = frozenset(s for s in storages if frame.world.is_container(s))
        tensors = storages - containers
        if containers or not tensors:
            frame.world.put(containers or frozenset({UNKNOWN}), value.storages)
        if not tensors:
            return
        self.read(value, frame)
        if tensors & {STATE, UNKNOWN} or site is None:
            frame.world.put(tensors, value.storages)  # perhaps a container
        new = self.write(site, tensors, frame)
        if new is not None and site is not None:
            self.rebind(site, new, containers, frame)

    def augmented(self, node: ast.AugAssign, frame: Frame) -> None:
        """``target op= value``."""
        value = self.evaluate(node.value, frame)
        old = self.evaluate(node.target, frame)
        if isinstance(old, Known) and isinstance(old.object, _PLAIN):
            result = self.operator([old, value], frame)
            self.store_plainly(node.target, result, frame)
            return
        self.read(value, frame)
        self.read(old, frame)
        containers = frozenset(s for s in old.storages if frame.world.is_container(s))
        frame.world.put(containers, frame.world.contents(value.storages))
        if isinstance(old, Items):
            self.store_plainly(node.target, Abstract(old.storages | value.storages), frame)
            return
        tensors = old.storages - containers
        if not old.storages:  # a number, perhaps plus a tensor
            self.store_plainly(node.target, self.operator([old, value], frame), frame)
        elif tensors:
            site = self.site_at(node, frame)
            new = self.write(site, tensors, frame)
            if new is not None and site is not None:
                self.rebind(site, new, containers, frame)

    def store_plainly(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind the target of an augmented assignment that overwrites no tensor."""
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif value.storages:
            self.store(target, value, frame)


def _computed(operator: Callable[..., Any] | None, *operands: Value) -> Value | None:
    """The result of an operator on numbers and strings that are known."""
    objects = [operand.object for operand in operands if isinstance(operand, Known)]
    if operator is None or len(objects) < len(operands):
        return None
    if not all(isinstance(each, _PLAIN) for each in objects):
        return None
    try:
        return Known(operator(*objects))
    except Exception:  # it raises when the forward runs, too
        return None


def _is_none(value: Value) -> bool | None:
    if isinstance(value, Known):
        return value.object is None
    if isinstance(value, Items | Named | Closure | Method):
        return False
    return None


_EXPRESSIONS: dict[type, Callable[..., Value]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
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
__all__ = ["VIEWS", "Expressions", "FoundSite", "Iterable", "SiteKind", "is_foreign", "torch"]
