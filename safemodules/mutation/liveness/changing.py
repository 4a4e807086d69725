"""What a forward itself changes: it need not be, in the next call, what it is now.

NOTE [ What a branch can rely on ]: the attributes of modules, and what they hold, are taken as
they are. That holds for what nobody changes while the forward runs. Names that some function on
the forward path assigns are read off its source; lists, dicts and the like are noted when a run
changes one, and the run is repeated without relying on it.
"""

import ast
import functools
from collections.abc import MutableMapping, MutableSequence, MutableSet
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from safemodules.mutation.reach import Reach, Reached

_SETTERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__"})
# Methods by which a container that exists already changes.
CHANGING_METHODS = frozenset(
    """add add_module append appendleft clear discard extend extendleft insert move_to_end pop
    popitem popleft register_module remove reverse rotate setdefault sort update""".split()
)
# What nobody assigns on the way, though something else of that name is assigned.
_FIXED = (ModuleType, property, staticmethod, classmethod)


class Changing:
    """What may be another thing in the next call.

    Attributes:
        variables: names that some function assigns outside of itself: global and nonlocal ones.
        outside: where an attribute of a function, a class or a Python module is assigned.
        hooked: modules on which the forward registers hooks, by identity.
        objects: existing containers and objects that a run has changed, by identity.
    """

    def __init__(self, reach: Reach) -> None:
        self.objects: dict[int, Any] = {}
        self.variables: set[str] = set()
        self.hooked: set[int] = set()
        self._attributes: set[str] = set()
        self._everything = False
        self.outside = ""
        self._namespaces: dict[int, dict[str, Any]] = {}  # of Python modules, by identity
        for reached in reach.all():
            self.look_at(reached)

    def look_at(self, reached: Reached) -> None:
        """Note what a function assigns."""
        if reached.source is None:
            return
        for node in ast.walk(reached.source.node):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                if not self.outside and _is_outside(node.value, reached):
                    self.outside = f"{reached.source.file.filename}:{node.lineno}"
            if isinstance(node, ast.Global | ast.Nonlocal):
                self.variables.update(node.names)
            elif isinstance(node, ast.Attribute):
                self._everything |= node.attr == "__dict__"
                if not isinstance(node.ctx, ast.Load):
                    self._attributes.add(node.attr)
            elif isinstance(node, ast.Call):
                self._call(node, reached.function.__globals__)

    @property
    def size(self) -> int:
        """How much may be another thing: it only grows."""
        names = (
            len(self.hooked) + len(self.variables) + len(self._attributes) + len(self._namespaces)
        )
        return len(self.objects) + names + self._everything

    def _call(self, node: ast.Call, namespace: dict[str, Any]) -> None:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in _SETTERS:
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            names = [text for text in texts if isinstance(text, str)]
            self._attributes.update(names)
            self._everything |= not names
        self._everything |= name == "vars"
        if name == "globals":
            self._namespaces[id(namespace)] = namespace

    def rebinds(self, name: str, namespace: dict[str, Any]) -> bool:
        """Whether a global name may get another value; functions are taken to stay."""
        if name in self.variables:
            return True
        if id(namespace) not in self._namespaces or name not in namespace:
            return False
        return not isinstance(namespace[name], _FIXED) and not callable(namespace[name])

    def assigns(self, holder: Any, name: str, value: Any) -> bool:
        """Whether an attribute of an object, now of some value, may get another one."""
        named = name in self._attributes
        if named and isinstance(holder, nn.Module):
            return True
        if isinstance(holder, ModuleType) and not named:
            return False
        return (named or self._everything) and not isinstance(value, _FIXED) and not callable(value)

    def __contains__(self, value: Any) -> bool:
        return id(value) in self.objects

    def note(self, value: Any) -> None:
        """An object that exists already is changed."""
        self.objects[id(value)] = value


def is_changeable(value: Any) -> bool:
    """Whether a container can be changed by whoever is given it."""
    return isinstance(value, MutableMapping | MutableSequence | MutableSet)


@functools.lru_cache(maxsize=2**14)
def outer_names(node: ast.AST) -> frozenset[str]:
    """Names that a function, or one inside it, assigns outside of itself."""
    found = (n.names for n in ast.walk(node) if isinstance(n, ast.Global | ast.Nonlocal))
    return frozenset(name for names in found for name in names)


def _is_outside(node: ast.expr, reached: Reached) -> bool:
    """Whether an expression may be a function, a class or a Python module."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__" or _is_outside(node.value, reached)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "type"
    if not isinstance(node, ast.Name):
        return False
    found = reached.function.__globals__.get(node.id)
    local = node.id in reached.function.__code__.co_varnames
    return not local and isinstance(found, FunctionType | type | ModuleType)
