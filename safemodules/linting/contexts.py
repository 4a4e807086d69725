"""What names and attributes refer to, told from source alone.

NOTE [ Stand-ins ]: names that lead to torch give torch's own objects, since torch is loaded
anyway. A module that a constructor makes of a class of torch is a stand-in: an object of that
class whose own constructor has not run, with children and the ``inplace`` flag as in the
text. So the same finder and the same freshness analysis work as for living models. What leads
elsewhere gives a mark that is no tensor.
"""

import ast
import builtins
import functools
import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from safemodules.linting.outline import ClassOutline, FunctionOutline, Import, Outline
from safemodules.mutation.operators import INPLACE_MODULES
from safemodules.mutation.resolution import Context, resolve, static_attribute
from safemodules.mutation.scopes import Scope

_PACKAGES = frozenset({"functools", "torch"})
_DEPTH = 8
_NO_SCOPE = Scope(ast.Module([], []), None)


class Elsewhere:
    """What a name refers to that is not looked into: no tensor."""

    def __init__(self, name: str) -> None:
        self.name = name


class UserModule(nn.Module):
    """Stands for a module of a class that is not torch's.

    Args:
        class_name: qualified name of the class in the file; empty if it is not there.
    """

    def __init__(self, class_name: str = "") -> None:
        super().__init__()
        self.class_name = class_name


@dataclass(frozen=True, eq=False)
class SourceContext(Context):
    """One function, known from source alone.

    Attributes:
        outline: the outline of its file.
        definition: the function; ``None`` at module level.
    """

    outline: Outline | None = None
    definition: FunctionOutline | None = None

    @classmethod
    def of(cls, outline: Outline, definition: FunctionOutline | None) -> "SourceContext":
        """The context of a function of an outlined file."""
        return cls(None, None, (), None, outline, definition)

    @property
    def self_name(self) -> str | None:
        """Name of the parameter that holds the object, if this is a method."""
        return None if self.definition is None else self.definition.self_name

    def scope_of(self, node: ast.AST) -> Scope:
        """The local names of the function, looked up once."""
        known = self.definition
        return known.scope if known is not None and known.node is node else super().scope_of(node)

    @property
    def class_outline(self) -> ClassOutline | None:
        """The class whose method this is."""
        return None if self.definition is None else self.definition.owner

    def own(self, name: str) -> list[Any]:
        """Values that ``self.<name>`` may have; empty unless all of them are known."""
        assert self.outline is not None
        cls = self.class_outline
        return [] if cls is None else own_values(self.outline, cls, name)

    def outer(self, name: str) -> list[Any]:
        """What a name of the module or a built-in refers to."""
        assert self.outline is not None
        return module_values(self.outline, name)

    def loaded(self, name: str) -> list[Any]:
        """Modules of torch; whatever else is loaded here says nothing of the linted code."""
        if name.partition(".")[0] in _PACKAGES:
            return super().loaded(name)
        return [ModuleType(name)]


# -- names of the module --------------------------------------------------------------------


def module_values(outline: Outline, name: str, depth: int = 0) -> list[Any]:
    """What a name at module level may refer to; empty if that is not known."""
    bindings = outline.names.get(name)
    if bindings is None:
        known = not outline.stars and hasattr(builtins, name)
        return [getattr(builtins, name)] if known else []
    found: list[Any] = []
    for binding in bindings if depth < _DEPTH else ():
        values = _binding_values(outline, binding, depth)
        if not values:
            return []
        found += values
    ours = [value for value in found if not isinstance(value, Elsewhere) and value is not None]
    return _distinct(ours or found)


def _binding_values(outline: Outline, binding: Any, depth: int) -> list[Any]:
    if isinstance(binding, Import):
        return imported_values(binding)
    if isinstance(binding, ast.Constant):
        return [binding.value]
    if isinstance(binding, ast.Name):
        return module_values(outline, binding.id, depth + 1)
    if isinstance(binding, ast.Attribute):
        values = _binding_values(outline, binding.value, depth + 1)
        found = [getattr_of_torch(value, binding.attr) for value in values]
        return [] if None in found else found
    if isinstance(binding, ast.expr):
        return []
    return [Elsewhere(binding.name)]


def imported_values(binding: Import) -> list[Any]:
    """What an import binds: an object of torch, or a mark."""
    package = binding.module.partition(".")[0]
    if package not in _PACKAGES:
        where = f"{binding.module}.{binding.name}"
        return [Elsewhere(where) if binding.name else ModuleType(binding.module)]
    module = sys.modules.get(binding.module)
    if module is None:
        return []
    if not binding.name:
        return [module]
    value = getattr_of_torch(module, binding.name)
    return [] if value is None else [value]


def getattr_of_torch(holder: Any, name: str) -> Any:
    """An attribute of a module or class of torch, ``None`` if it has none."""
    if isinstance(holder, ModuleType):
        found = static_attribute(holder, name)
        if type(found) is object:  # missing
            found = sys.modules.get(f"{holder.__name__}.{name}")
        return found
    return inspect.getattr_static(holder, name, None) if isinstance(holder, type) else None


# -- attributes of self ---------------------------------------------------------------------


def own_values(outline: Outline, cls: ClassOutline, name: str) -> list[Any]:
    """Values that an attribute of an object may have; empty unless all of them are known."""
    cache, key = outline.values_of_self, (cls.qualname, name)
    if key not in cache:
        cache[key] = []  # what refers to itself is not known
        cache[key] = _own_values(outline, cls, name)
    return list(cache[key])


def _own_values(outline: Outline, cls: ClassOutline, name: str) -> list[Any]:
    for base in outline.bases(cls):
        method = base.methods.get(name)
        if method is not None:
            return [] if method.is_property else [Elsewhere(method.qualname)]
    if any(name in base.registered for base in outline.bases(cls)):
        return [_a_tensor()]
    if name in outline.foreign_stores:
        return []
    found: list[Any] = []
    for member in outline.family(cls):
        for value, method in member.own_attributes.get(name, ()):
            values = [] if value is None else evaluate(value, outline, method)
            if not values:
                return []
            found += values
    return _distinct([value for value in found if value is not None] or found)


def evaluate(node: ast.expr, outline: Outline, method: FunctionOutline | None) -> list[Any]:
    """Values of the right side of ``self.<name> = ...``; empty unless all of them are known."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.List | ast.ListComp):
        return [[]]
    if isinstance(node, ast.Dict | ast.DictComp):
        return [{}]
    if isinstance(node, ast.IfExp):
        first, second = (evaluate(each, outline, method) for each in (node.body, node.orelse))
        return [*first, *second] if first and second else []
    if isinstance(node, ast.Call):
        if called_class(node, outline, method) is nn.Parameter:
            return [_a_tensor()]
        module = stand_in(node, outline, method)
        return [] if module is None else [module]
    return []


def stand_in(node: ast.Call, outline: Outline, method: FunctionOutline | None) -> nn.Module | None:
    """A module in place of the one that a call makes, see NOTE [ Stand-ins ]."""
    cls = called_class(node, outline, method)
    if isinstance(cls, ClassOutline):
        return UserModule(cls.qualname) if is_module_class(outline, cls) else None
    if cls is None or not issubclass(cls, nn.Module) or "Lazy" in cls.__name__:
        return None
    module: nn.Module = cls.__new__(cls)
    nn.Module.__init__(module)
    if cls in INPLACE_MODULES:
        flag = inplace_flag(node, cls)
        module.inplace = True if flag is None else bool(flag)  # type: ignore[assignment]
        outline.made.setdefault(id(node), []).append(module)
    if cls is nn.Sequential:
        for index, argument in enumerate(node.args):
            child = evaluate(argument, outline, method)
            known = len(child) == 1 and isinstance(child[0], nn.Module)
            module.add_module(str(index), child[0] if known else UserModule())
        if node.keywords:
            return None
    return module


def called_class(node: ast.Call, outline: Outline, method: FunctionOutline | None) -> Any:
    """The class that a call constructs: torch's own, an outline, or ``None``."""
    scope = _NO_SCOPE if method is None else method.scope
    if isinstance(node.func, ast.Name) and node.func.id in outline.classes:
        return outline.classes[node.func.id] if scope.holder(node.func.id) is None else None
    values = resolve(node.func, scope, SourceContext.of(outline, method))
    if len(values) == 1 and isinstance(values[0], type):
        return values[0]
    return None


def inplace_flag(node: ast.Call, cls: Any) -> bool | None:
    """The flag that a constructor call gives a module of torch; ``None`` if it is not known."""
    for keyword in node.keywords:
        if keyword.arg == "inplace":
            value = keyword.value
            return value.value if isinstance(value, ast.Constant) else None  # type: ignore[return-value]
        if keyword.arg is None:
            return None
    position = flag_position(cls)
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return None
    if len(node.args) > position:
        value = node.args[position]
        return value.value if isinstance(value, ast.Constant) else None  # type: ignore[return-value]
    return False


def flag_position(cls: Any) -> int:
    """Position of ``inplace`` among the arguments of a constructor of torch."""
    return list(inspect.signature(cls.__init__).parameters).index("inplace") - 1


def is_module_class(outline: Outline, cls: ClassOutline) -> bool:
    """Whether a class is one of modules, as far as its own file shows."""
    for base in outline.bases(cls):
        for expression in base.node.bases:
            values = resolve(expression, _NO_SCOPE, SourceContext.of(outline, None))
            if any(isinstance(v, type) and issubclass(v, nn.Module) for v in values):
                return True
    return False


@functools.cache
def _a_tensor() -> torch.Tensor:
    """Stands for every parameter and buffer."""
    return torch.empty(0)


def _distinct(values: list[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())
