"""Which expressions compute a value and do nothing else, and which calls may run a module."""

import ast
import builtins
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import nn

from safemodules.mutation import nodes
from safemodules.mutation.resolution import Context, is_foreign, is_self, resolve
from safemodules.mutation.scopes import Scope

_BUILTINS: Final = frozenset(
    {abs, bool, dict, float, getattr, int, isinstance, len, list, max, min, range, round}
    | {slice, str, sum, tuple, type, zip, enumerate, reversed}
)
_EFFECTS: Final = frozenset({"backward", "register_hook", "retain_grad", "set_", "share_memory_"})
_TENSOR_METHODS: Final = frozenset(
    name
    for name in dir(torch.Tensor)
    if not name.startswith("_") and not name.endswith("_") and name not in _EFFECTS
)
_CONTAINERS: Final = (nn.ModuleList, nn.ModuleDict, nn.Sequential, list, tuple, dict)
# Nodes that are pure where their children are.
_TRANSPARENT: Final = (
    *(ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.BinOp),
    *(ast.UnaryOp, ast.Compare, ast.Starred, ast.keyword, ast.Dict),
)


@dataclass(frozen=True, eq=False)
class Purity:
    """What is known about the expressions of one function.

    Attributes:
        context: the function.
        scopes: the scope of each node, by its identity.
        sites: identities of nodes that overwrite a tensor.
    """

    context: Context
    scopes: Mapping[int, Scope]
    sites: Collection[int]

    def resolve(self, node: ast.expr) -> list[Any]:
        """What an expression may refer to."""
        scope = self.scopes.get(id(node))
        return [] if scope is None else resolve(node, scope, self.context)

    def is_pure(self, node: ast.AST) -> bool:
        """Whether evaluating an expression has no effect that is seen outside of modules."""
        if id(node) in self.sites:
            return False
        if isinstance(node, ast.Name):
            return id(node) in self.scopes and node.id != "super"
        if isinstance(node, ast.Call):
            called = self.runs_module(node) or self._is_pure_callee(node.func)
            inner = [*node.args, *node.keywords]
            if not isinstance(node.func, ast.Name):
                inner += nodes.children(node.func)
            return called and all(map(self.is_pure, inner))
        if not isinstance(node, _TRANSPARENT):
            return False
        return all(map(self.is_pure, nodes.children(node)))

    def _is_pure_callee(self, callee: ast.expr) -> bool:
        values = self.resolve(callee)
        if values:
            return all(map(_is_pure_function, values))
        if isinstance(callee, ast.Attribute) and callee.attr in _TENSOR_METHODS:
            return not any(isinstance(v, nn.Module) for v in self.resolve(callee.value))
        return False

    def runs_module(self, call: ast.Call) -> bool:
        """Whether what is called may be a module, or a method of one that a user wrote."""
        callee = call.func
        values = self.resolve(callee)
        if values:
            own = self._is_own(callee)
            return all(_runs_module(value, own=own) for value in values)
        if isinstance(callee, ast.Name):
            scope = self.scopes.get(id(callee))
            return scope is not None and scope.holder(callee.id) is not None
        if isinstance(callee, ast.Attribute):
            return self._may_be_module(callee)
        if isinstance(callee, ast.Subscript):
            found = self.resolve(callee.value)
            return all(isinstance(value, _CONTAINERS) for value in found)
        if isinstance(callee, ast.Call):
            return self.resolve(callee.func) == [getattr]
        return False

    def _is_own(self, callee: ast.expr) -> bool:
        """Whether an expression is an attribute of the module whose method this is."""
        if not isinstance(callee, ast.Attribute) or not isinstance(callee.value, ast.Name):
            return False
        scope, owner = self.scopes.get(id(callee.value)), self.context.owner
        is_module = owner is not None and issubclass(owner, nn.Module)
        return is_module and scope is not None and is_self(callee.value.id, scope, self.context)

    def _may_be_module(self, callee: ast.Attribute) -> bool:
        """Whether an attribute of something unknown may be a module."""
        if callee.attr in _TENSOR_METHODS or callee.attr.endswith("_"):
            return False
        if hasattr(list, callee.attr) or hasattr(dict, callee.attr) or hasattr(set, callee.attr):
            return False
        root: ast.expr = callee
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            return False
        scope = self.scopes.get(id(root))
        if scope is None or scope.holder(root.id) is None:
            return False
        owners = self.resolve(callee.value)
        return not owners or all(isinstance(owner, nn.Module) for owner in owners)


def _runs_module(value: Any, *, own: bool) -> bool:
    if isinstance(value, nn.Module):
        return True
    function = value if own else None
    if isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
        function = value.__func__
    return isinstance(function, FunctionType) and not is_foreign(function.__code__.co_filename)


def _is_pure_function(value: Any) -> bool:
    if any(value is known for known in _BUILTINS):
        return True
    module = getattr(value, "__module__", None) or ""
    name = getattr(value, "__name__", "")
    if getattr(builtins, name, None) is value or name.endswith("_") or "checkpoint" in module:
        return False
    return module.partition(".")[0] in ("torch", "math", "operator") or hasattr(torch, name)
