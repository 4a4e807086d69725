"""Overwrites that are wrong for sure, told from the text of one function.

Two kinds: a tensor that the operation right before has saved for backward, and a tensor that
a list was given before.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from safemodules.linting.contexts import SourceContext
from safemodules.linting.outline import FunctionOutline
from safemodules.mutation import nodes
from safemodules.mutation.found import FoundSite
from safemodules.mutation.operators import INPLACE_MODULES
from safemodules.mutation.resolution import resolve
from safemodules.mutation.scopes import Scope

#: Operators whose result is saved for backward. Source: ``derivatives.yaml`` of torch, whose
#: formulas for these use ``result``.
KEEPS_RESULT = frozenset(
    "exp log_softmax reciprocal relu rsqrt sigmoid softmax sqrt tan tanh".split()
)
#: Modules of torch whose result is saved for backward.
_RESULT_MODULES = (nn.ReLU, nn.Sigmoid, nn.Softmax, nn.LogSoftmax, nn.Tanh)
#: Modules of torch that save their input, since their weight requires grad.
_INPUT_MODULES = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
)
_COLLECTING = frozenset({"append", "appendleft", "insert"})


@dataclass(frozen=True)
class Saved:
    """What holds the tensor of a name.

    Attributes:
        what: the operation that has saved it, or how it was collected.
        line: where.
        collected: a container holds it.
    """

    what: str
    line: int
    collected: bool


Names = dict[str, Saved]


class Overwrites:
    """Follows the statements of one function.

    Args:
        context: what is known of the function.
        scope: its local names.
        sites: its sites.

    After :meth:`run`, ``found`` has what an overwrite destroys, by identity of the site's key
    or of the call of a module with a flag.
    """

    def __init__(self, context: SourceContext, scope: Scope, sites: list[FoundSite]) -> None:
        self.context = context
        self.scope = scope
        self.sites: Mapping[int, FoundSite] = {id(site.node): site for site in sites}
        self.found: dict[int, Saved] = {}
        self.calls: dict[int, ast.Call] = {}
        self.gradients: frozenset[str] = frozenset()

    def run(self, function: FunctionOutline) -> None:
        """Follow the body of the function."""
        node = function.node
        if not switches_gradients_off(node.decorator_list):
            self.gradients = _names_with_gradients(function, self.context.self_name)
            self._block(node.body, {})

    def _block(self, body: list[ast.stmt], names: Names) -> None:
        for statement in body:
            self._statement(statement, names)

    def _statement(self, node: ast.stmt, names: Names) -> None:
        if isinstance(node, ast.If):
            self._expressions(node.test, names)
            ends = []
            for branch in (node.body, node.orelse):
                inner = dict(names)
                self._block(branch, inner)
                if not (branch and isinstance(branch[-1], ast.Return | ast.Raise | ast.Continue)):
                    ends.append(inner)
            names.clear()
            if ends:
                names.update({k: v for k, v in ends[0].items() if all(e.get(k) == v for e in ends)})
        elif isinstance(node, ast.For | ast.While | ast.AsyncFor):
            self._loop(node, names)
        elif isinstance(node, ast.With | ast.AsyncWith):
            if switches_gradients_off(item.context_expr for item in node.items):
                names.clear()
                return
            self._block(node.body, names)
        elif isinstance(node, ast.Try | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.clear()
        elif isinstance(node, ast.stmt):
            self._simple(node, names)

    def _loop(self, node: ast.For | ast.While | ast.AsyncFor, names: Names) -> None:
        for _ in range(2):  # the second pass sees what the first has left
            inner = dict(names)
            if isinstance(node, ast.For | ast.AsyncFor):
                self._forget(node.target, inner)
            self._block(node.body, inner)
            names.update(
                {name: saved for name, saved in inner.items() if saved.collected or name in names}
            )
            for name in list(names):
                if name not in inner:
                    del names[name]
        self._block(node.orelse, names)

    def _simple(self, node: ast.stmt, names: Names) -> None:
        if isinstance(node, ast.AugAssign):
            self._expressions(node.value, names)
            self._overwritten(id(node), names)
            self._collected(node.target, node.value, names)
            return
        if isinstance(node, ast.Assign):
            self._assign(node, names)
            return
        self._expressions(node, names)

    def _assign(self, node: ast.Assign, names: Names) -> None:
        self._expressions(node.value, names)
        self._overwritten(id(node), names)
        for target in node.targets:
            if isinstance(target, ast.Subscript) and self.sites.get(id(node)) is None:
                self._hold(node.value, "stored", names)
            elif isinstance(target, ast.Name):
                known = self._kept_as_collected(node.value, names)
                self._forget(target, names)
                result = known or self._result(node.value)
                if result is not None:
                    names[target.id] = result
            else:
                self._forget(target, names)

    def _kept_as_collected(self, value: ast.expr, names: Names) -> Saved | None:
        """``x = x.mul_(2)`` and ``x = self.relu(x)`` with a flag bind the very tensor."""
        site = self.sites.get(id(value))
        if site is not None and site.place is not None and site.place.root in names:
            known = names[str(site.place.root)]
            return known if known.collected else None
        return None

    def _expressions(self, node: ast.AST, names: Names) -> None:
        calls = [inner for inner in nodes.walk(node) if isinstance(inner, ast.Call)]
        for call in sorted(calls, key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0)):
            self._overwritten(id(call), names)
            self._module_call(call, names)
            if isinstance(call.func, ast.Attribute) and call.func.attr in _COLLECTING:
                for argument in call.args[-1:]:
                    self._hold(argument, f"given to {call.func.attr}", names)

    def _module_call(self, call: ast.Call, names: Names) -> None:
        if not isinstance(call.func, ast.Attribute) or not call.args:
            return
        argument = call.args[0]
        if not isinstance(argument, ast.Name):
            return
        values = resolve(call.func, self.scope, self.context)
        if not values:
            return
        if all(type(value) in INPLACE_MODULES and value.inplace is True for value in values):
            if argument.id in names:
                self.found.setdefault(id(call), names[argument.id])
                self.calls[id(call)] = call
                if not names[argument.id].collected:
                    del names[argument.id]
        elif all(isinstance(value, _INPUT_MODULES) for value in values):
            known = names.get(argument.id)
            if known is None or not known.collected:
                names[argument.id] = Saved(ast.unparse(call.func), call.lineno, False)

    def _result(self, value: ast.expr) -> Saved | None:
        """The operation that has saved the value, where an assignment binds its result."""
        if not isinstance(value, ast.Call) or not _has_gradients(
            value, self.context.self_name, self.gradients
        ):
            return None
        values = resolve(value.func, self.scope, self.context)
        if isinstance(value.func, ast.Attribute):
            name = value.func.attr
            of_torch = not values and name in KEEPS_RESULT
            function = len(values) == 1 and getattr(values[0], "__name__", "") in KEEPS_RESULT
            if of_torch or (function and _is_of_torch(values[0])):
                return Saved(name, value.lineno, False)
            if values and all(isinstance(each, _RESULT_MODULES) for each in values):
                return Saved(ast.unparse(value.func), value.lineno, False)
        return None

    # -- names --------------------------------------------------------------------------

    def _overwritten(self, key: int, names: Names) -> None:
        site = self.sites.get(key)
        if site is None or site.place is None or site.place.root is None:
            return
        known = names.get(site.place.root)
        if known is None or (
            known.collected and any(isinstance(a, ast.Attribute) for a in site.place.accessors)
        ):
            return
        self.found.setdefault(site.key, known)
        if not known.collected:
            del names[site.place.root]

    def _hold(self, value: ast.expr, how: str, names: Names) -> None:
        if isinstance(value, ast.Name):
            names[value.id] = Saved(how, value.lineno, True)
        elif isinstance(value, ast.Tuple | ast.List):
            for element in value.elts:
                self._hold(element, how, names)

    def _collected(self, target: ast.expr, value: ast.expr, names: Names) -> None:
        """``outputs += (x,)``."""
        if isinstance(value, ast.Tuple | ast.List):
            self._hold(value, f"added to {ast.unparse(target)}", names)

    def _forget(self, target: ast.AST, names: Names) -> None:
        for name in _names(target):
            names.pop(name, None)


def _names(node: ast.AST) -> Iterator[str]:
    for inner in nodes.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id


def switches_gradients_off(expressions: Iterable[ast.AST]) -> bool:
    """Whether decorators or contexts switch gradients off."""
    return any(
        getattr(inner, "attr", getattr(inner, "id", "")) in ("no_grad", "inference_mode")
        for node in expressions
        for inner in nodes.walk(node)
    )


def _names_with_gradients(function: FunctionOutline, self_name: str | None) -> frozenset[str]:
    """Names bound to what is computed from results of the model's modules and methods."""
    found: set[str] = set()
    assignments = [inner for inner in function.nodes if isinstance(inner, ast.Assign)]
    for _ in range(2):  # the second pass sees names that are bound further down, in a loop
        for statement in assignments:
            if _has_gradients(statement.value, self_name, found):
                found |= {
                    inner.id
                    for target in statement.targets
                    for inner in nodes.walk(target)
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
                }
    return frozenset(found)


def _has_gradients(node: ast.expr, self_name: str | None, names: Collection[str]) -> bool:
    found = False
    for inner in nodes.walk(node):
        if isinstance(inner, ast.Attribute):
            if inner.attr in ("detach", "data", "no_grad", "shape", "size"):
                return False
        elif isinstance(inner, ast.Name):
            found = found or inner.id in names
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            holder = inner.func.value
            found = found or (isinstance(holder, ast.Name) and holder.id == self_name)
    return found


def _is_of_torch(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    return not isinstance(module, str) or module.partition(".")[0] == "torch"
