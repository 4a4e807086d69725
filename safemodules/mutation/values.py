"""Which targets of an assignment are surely no tensors: counters, strings, lists, dicts."""

import ast
from typing import Any, Literal

import torch
from torch import nn

from safemodules.mutation import nodes
from safemodules.mutation.resolution import Context, resolve
from safemodules.mutation.scopes import Scope

Kind = Literal["number", "container"]

_NUMBER_CALLS = frozenset({"len", "int", "float", "bool", "ord", "id", "hash", "round"})
_TEXT_CALLS = frozenset({"str", "repr", "format"})
_CONTAINER_CALLS = frozenset({"list", "dict", "set", "tuple", "sorted", "range", "defaultdict",
                              "OrderedDict", "Counter", "deque"})  # fmt: skip
_NUMBER_METHODS = frozenset({"item", "dim", "numel", "ndimension", "element_size", "stride"})
_CONTAINER_METHODS = frozenset({"tolist", "copy", "keys", "values", "items"})
_NO_OPERANDS = (ast.List, ast.Tuple, ast.Dict, ast.Set)  # operators of tensors take none of them
_CONTAINERS = (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def is_plain_value(node: ast.AST, scope: Scope, context: Context) -> bool:
    """Whether an augmented or item assignment surely writes no tensor.

    Args:
        node: an ``AugAssign``, or the ``Subscript`` that is assigned to.
        scope: where it stands.
        context: the function and its objects.
    """
    if isinstance(node, ast.AugAssign):
        target = kind_of(node.target, scope, context)
        if target == "container" or isinstance(node.value, _NO_OPERANDS) or _is_text(node.value):
            return True
        return target == "number" and kind_of(node.value, scope, context) is not None
    if isinstance(node, ast.Subscript):
        # a container holds what it is given: assigning an entry overwrites no tensor
        if _is_text(node.slice):
            return True
        return holds_entries(node.value, scope, context)
    return False


def holds_entries(node: ast.expr, scope: Scope, context: Context) -> bool:
    """Whether an expression is surely a list, a tuple, a dict or a set."""
    return kind_of(node, scope, context) == "container"


def _is_text(node: ast.expr) -> bool:
    """Whether an expression is a text, which no tensor takes as a key or an operand."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def kind_of(
    node: ast.expr, scope: Scope, context: Context, seen: frozenset[str] = frozenset()
) -> Kind | None:
    """Whether an expression is surely a number or string, surely a container, or unknown."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        return "number"
    if isinstance(node, _CONTAINERS):
        return "container"
    if isinstance(node, ast.Name):
        return _name_kind(node.id, scope, context, seen)
    if isinstance(node, ast.UnaryOp):
        return kind_of(node.operand, scope, context, seen)
    if isinstance(node, ast.BinOp):
        kinds = {kind_of(side, scope, context, seen) for side in (node.left, node.right)}
        return None if None in kinds else "container" if "container" in kinds else "number"
    if isinstance(node, ast.IfExp):
        kinds = {kind_of(side, scope, context, seen) for side in (node.body, node.orelse)}
        return kinds.pop() if len(kinds) == 1 else None
    if isinstance(node, ast.Call):
        return _call_kind(node)
    if isinstance(node, ast.Attribute):
        if node.attr in ("ndim", "itemsize"):
            return "number"
        return _value_kind(resolve(node, scope, context))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        return "number" if node.value.attr == "shape" else None
    return None


def _call_kind(node: ast.Call) -> Kind | None:
    if isinstance(node.func, ast.Name):
        if node.func.id in _NUMBER_CALLS | _TEXT_CALLS:
            return "number"
        return "container" if node.func.id in _CONTAINER_CALLS else None
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in _NUMBER_METHODS or (node.func.attr == "size" and node.args):
            return "number"
        return "container" if node.func.attr in _CONTAINER_METHODS - {"copy"} else None
    return None


def _value_kind(values: list[Any]) -> Kind | None:
    if not values:
        return None
    if all(isinstance(value, bool | int | float | complex | str) for value in values):
        return "number"
    if any(isinstance(value, torch.Tensor | nn.Module) for value in values):
        return None
    return "container" if all(isinstance(v, list | tuple | dict | set) for v in values) else None


def _name_kind(name: str, scope: Scope, context: Context, seen: frozenset[str]) -> Kind | None:
    if name in seen:
        return None
    holder = scope.holder(name)
    if holder is None:
        return _value_kind(resolve(ast.Name(name, ast.Load()), scope, context))
    bindings = holder.bindings.get(name, [])
    if not bindings:
        return None
    kinds: set[Kind | None] = set()
    for value in bindings:
        if value is None and bindings.count(None) == 1 and _collects(holder.node, name):
            kinds.add("container")
            continue
        if not isinstance(value, ast.expr):
            return None
        kinds.add(kind_of(value, holder, context, seen | {name}))
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    if kind == "number" and not _stays_number(name, holder, context, seen | {name}):
        return None
    return kind


def _collects(node: ast.AST, name: str) -> bool:
    """Whether a parameter collects arguments: ``*name`` or ``**name``."""
    arguments = getattr(node, "args", None)
    if not isinstance(arguments, ast.arguments):
        return False
    return any(p is not None and p.arg == name for p in (arguments.vararg, arguments.kwarg))


def _stays_number(name: str, holder: Scope, context: Context, seen: frozenset[str]) -> bool:
    """Whether ``name op= value`` nowhere in the function brings in something else."""
    return all(
        kind_of(node.value, holder, context, seen) == "number" or _only_names(node.value, name)
        for node in nodes.walk(holder.node)
        if isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == name
    )


def _only_names(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
