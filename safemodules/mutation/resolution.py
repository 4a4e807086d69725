"""What an expression of a function refers to, as far as it is known before the function runs."""

import ast
import builtins
import inspect
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from safemodules.mutation import nodes
from safemodules.mutation.internals import USER_CLASS
from safemodules.mutation.scopes import Scope, function_scope

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = tuple(
    os.path.abspath(path) + os.sep
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
# What is known of these from what they promise; their text is no user's.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OURS = tuple(
    _PACKAGE + os.path.join(*path)
    for path in (("checkpointing", ""), ("blocks", "checkpointed_seq.py"))
)
_MISSING = object()


def is_foreign(filename: str) -> bool:
    """Whether a file is of torch, the standard library or ours: their text is never edited."""
    path = os.path.abspath(filename)
    if path.startswith((_TORCH, *_OURS)) or filename.startswith("<frozen"):
        return True
    inner = os.sep + "site-packages" + os.sep
    return path.startswith(_STDLIB) and inner not in path


def is_torch_class(cls: type) -> bool:
    """Whether a class is torch's own.

    Example:
        >>> is_torch_class(nn.ReLU), is_torch_class(type("Mine", (nn.ReLU,), {}))
        (True, False)
    """
    return cls.__module__.partition(".")[0] == "torch"


@dataclass(frozen=True, eq=False)
class Context:
    """One function as run by one class of objects.

    Attributes:
        function: the running function.
        owner: the class of the first argument, or ``None`` for a plain function.
        objects: the living objects of that class, whose attributes tell what it calls.
        class_name: the class whose body holds the text, which mangles private names.
    """

    function: Any  # a FunctionType; as the type of a field mypy would take it for a method
    owner: type | None = None
    objects: Sequence[Any] = field(default=())
    class_name: str | None = None

    @property
    def self_name(self) -> str | None:
        """Name of the parameter that holds the object, if this is a method."""
        code = self.function.__code__
        return code.co_varnames[0] if self.owner is not None and code.co_argcount else None

    def scope_of(self, node: ast.AST) -> Scope:
        """The local names of the function, whose definition is given."""
        return function_scope(node, None)

    def own(self, name: str) -> list[Any]:
        """Values of ``self.<name>``: of the class where it defines one, else of each object."""
        assert self.owner is not None
        found = [static_attribute(value, name) for value in self.objects]
        if not found:
            found = [inspect.getattr_static(self.owner, name, _MISSING)]
        return _distinct(value for value in found if value is not _MISSING)

    def outer(self, name: str) -> list[Any]:
        """What a name refers to that is not local: a cell, a global or a built-in."""
        function = self.function
        if name in function.__code__.co_freevars:
            cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
            try:
                return [cell.cell_contents]
            except ValueError:  # not filled yet
                return []
        for namespace in (function.__globals__, vars(builtins)):
            if name in namespace:
                return [namespace[name]]
        return []

    def loaded(self, name: str) -> list[Any]:
        """The module of a dotted name, if it is imported already: importing runs code."""
        return [sys.modules[name]] if name in sys.modules else []


def static_attribute(value: Any, name: str) -> Any:
    """An attribute, without running properties, ``__getattr__`` or descriptors."""
    if isinstance(value, ModuleType):
        return vars(value).get(name, _MISSING)
    if isinstance(value, nn.Module):
        for table in ("_parameters", "_buffers", "_modules"):
            if name in value.__dict__.get(table, {}):
                return value.__dict__[table][name]
        return _attribute_of_user(value, name)
    return inspect.getattr_static(value, name, _MISSING)


def _attribute_of_user(module: nn.Module, name: str) -> Any:
    """An attribute of a module, past the methods that an earlier conversion has edited."""
    found = next(
        (
            vars(base)[name]
            for base in type(module).__mro__
            if name in vars(base) and USER_CLASS not in vars(base)
        ),
        _MISSING,
    )
    return found if isinstance(found, property) else module.__dict__.get(name, found)


def resolve(expression: ast.expr, scope: Scope, context: Context) -> list[Any]:
    """Values that a name or a chain of attributes may have; empty if nothing is known.

    Attributes of ``self`` have one value per living object, duplicates left out.
    """
    if isinstance(expression, ast.Name):
        return _resolve_name(expression.id, scope, context)
    if isinstance(expression, ast.Attribute):
        name = mangled(expression.attr, context.class_name)
        if isinstance(expression.value, ast.Name) and is_self(expression.value.id, scope, context):
            return context.own(name)
        found = [
            _bound(static_attribute(value, name), value)
            for value in resolve(expression.value, scope, context)
            if not isinstance(value, torch.Tensor)  # its attributes are other tensors
        ]
        return _distinct(value for value in found if value is not _MISSING)
    return []


def mangled(name: str, class_name: str | None) -> str:
    """A private name as the class body that holds it spells it.

    Example:
        >>> mangled("__state", "_Net"), mangled("__dict__", "Net")
        ('_Net__state', '__dict__')
    """
    if class_name is None or not name.startswith("__") or name.endswith("__"):
        return name
    stripped = class_name.lstrip("_")
    return f"_{stripped}{name}" if stripped else name


def is_hashable(value: Any) -> bool:
    """Whether a value can be looked up in a table."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _bound(attribute: Any, holder: Any) -> Any:
    """A function found on an object is its method."""
    if isinstance(attribute, FunctionType) and not isinstance(holder, ModuleType | type):
        if attribute.__name__ not in getattr(holder, "__dict__", {}):
            return MethodType(attribute, holder)
    return attribute


def is_self(name: str, scope: Scope, context: Context) -> bool:
    """Whether a name is the object whose method this is."""
    if name != context.self_name:
        return False
    holder = scope.holder(name)
    return holder is not None and holder.parent is None and holder.bindings.get(name) == [None]


def next_in_mro(cls: type, after: type, name: str) -> Any:
    """The attribute that ``super(after, self).<name>`` finds on an object of class ``cls``."""
    mro = cls.__mro__
    for base in mro[mro.index(after) + 1 :] if after in mro else ():
        if name in vars(base):
            return vars(base)[name]
    return None


def _distinct(values: Any) -> list[Any]:
    return list({id(value): value for value in values}.values())


def _resolve_name(name: str, scope: Scope, context: Context) -> list[Any]:
    holder = scope.holder(name)
    if holder is not None:
        bindings = holder.bindings.get(name, [])
        if len(bindings) != 1 or bindings[0] is None:
            return []
        if isinstance(bindings[0], ast.alias):
            return _imported(bindings[0], holder, context)
        return resolve(bindings[0], holder, context)
    return context.outer(name)


def _imported(alias: ast.alias, scope: Scope, context: Context) -> list[Any]:
    """What a local import binds."""
    for node in nodes.walk(scope.node):
        if isinstance(node, ast.Import) and alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            return context.loaded(name)
        if isinstance(node, ast.ImportFrom) and alias in node.names and not node.level:
            values = context.loaded(node.module or "")
            found = [static_attribute(value, alias.name) for value in values]
            return [value for value in found if value is not _MISSING] or context.loaded(
                f"{node.module}.{alias.name}"
            )
    return []
