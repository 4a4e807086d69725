"""What a forward itself changes: it need not be, in the next call, what it is now.

NOTE [ What a branch can rely on ]: the attributes of modules, and what they hold, are taken as
they are. That holds for what nobody changes while the forward runs. Names that some function on
the forward path assigns are read off its source; lists, dicts and the like are noted when a run
changes one, and the run is repeated without relying on it.
"""

import ast
import functools
import inspect
import os
from collections import Counter
from collections.abc import MutableMapping, MutableSequence, MutableSet
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from safemodules.mutation.liveness.callables import entries_in, is_of_the_user
from safemodules.mutation.liveness.values import names_in
from safemodules.mutation.reach import Reach, Reached
from safemodules.mutation.resolution import is_foreign

SETTERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__"})
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
        outside: where something is changed that no checkpoint puts back: an attribute of a
            function, a class or a Python module, say.
        hooked: modules on which the forward registers hooks, by identity.
        differing: regions that may see something else when they are recomputed, of which nobody
            would know, and where.
        regrown: modules that may get other children, by identity.
        objects: existing containers and objects that a run has changed, by identity.
        lists: those of them that the run itself has made, each time anew.
    """

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self.objects: dict[int, Any] = {}
        self.lists: dict[int, Any] = {}
        self.variables: set[str] = set()
        self.differing: dict[int, str] = {}
        self.hooked: set[int] = set()
        self.regrown: set[int] = set()
        self._seen: set[Any] = set()
        self._attributes: Counter[str] = Counter()  # how many texts assign them
        sources = (reached.source for reached in reach.all())
        self._files = {source.file.filename for source in sources if source is not None}
        self._ends: set[tuple[str, str]] = set()  # how names begin and end that are put together
        self._everything = False
        self.outside = ""
        self._namespaces: dict[int, dict[str, Any]] = {}  # of Python modules, by identity
        for reached in reach.all():
            self.look_at(reached)

    def look_at(self, reached: Reached) -> None:
        """Note what a function assigns."""
        if reached.source is None or reached.source.node in self._seen:
            return
        self._seen.add(reached.source.node)
        for node in ast.walk(reached.source.node):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                if not self.outside and _is_outside(node.value, reached):
                    self.note_outside(f"{reached.source.file.filename}:{node.lineno}")
            if isinstance(node, ast.Global | ast.Nonlocal):
                self.variables.update(node.names)
            elif isinstance(node, ast.Attribute):
                self._everything |= node.attr == "__dict__"
                if not isinstance(node.ctx, ast.Load):
                    self._attributes[node.attr] += 1
            elif isinstance(node, ast.Call):
                self._call(node, reached.function.__globals__)

    @property
    def size(self) -> int:
        """How much may be another thing: it only grows."""
        sets = (
            self.objects, self.hooked, self.regrown, self.variables, self._attributes,
            self._namespaces, self._ends,
        )  # fmt: skip
        anew = len(self.objects.keys() & self.lists.keys())
        return sum(map(len, sets)) - anew + self._attributes.total() + self._everything

    def _call(self, node: ast.Call, namespace: dict[str, Any]) -> None:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in SETTERS:
            key = _name_given(node, name)
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._attributes[key.value] += 1
            elif isinstance(key, ast.JoinedStr) and _ends_of(key) != ("", ""):
                self._ends.add(_ends_of(key))
            else:
                self._everything = True
        self._everything |= name == "vars"
        if name == "globals":
            self._namespaces[id(namespace)] = namespace
            self.note_outside(f"{namespace.get('__name__')}: globals()")

    def look_into(self, function: FunctionType) -> None:
        """Note what a function assigns that unknown code may call, and what that one calls."""
        if function in self._seen or self._is_of_a_library(function):
            return
        self._seen.add(function)
        reached = self._reach.functions.get(function, [self._reach.elsewhere(function)])[0]
        if reached is None or reached.source is None:  # but for what a dataclass, say, has made
            self._everything |= not function.__name__.startswith("__")
            return
        self.look_at(reached)
        for name in names_in(reached.source.node):
            self._look_into_value(function.__globals__.get(name))
        called = (n.func for n in ast.walk(reached.source.node) if isinstance(n, ast.Call))
        for attr in {node.attr for node in called if isinstance(node, ast.Attribute)}:
            for cls in self._reach.classes:
                self._look_into_value(inspect.getattr_static(cls, attr, None))

    def _look_into_value(self, value: Any, depth: int = 0) -> None:
        """What a name stands for that code mentions which may run."""
        if isinstance(value, FunctionType):
            if not is_foreign(value.__code__.co_filename):
                self.look_into(value)
        elif isinstance(value, staticmethod | classmethod):
            self._look_into_value(value.__func__, depth)
        elif isinstance(value, property):
            for function in (value.fget, value.fset, value.fdel):
                self._look_into_value(function, depth)
        elif isinstance(value, functools.partial | functools.cached_property):
            self._look_into_value(value.func, depth)
        elif isinstance(value, type):
            if is_of_the_user(value) and value not in self._seen:
                self._seen.add(value)
                self.look_into_class(value, made=True)
        elif isinstance(value, list | tuple | dict | set) and depth < 2:
            for entry in entries_in(value):
                self._look_into_value(entry, depth + 1)

    def _is_of_a_library(self, function: FunctionType) -> bool:
        """Whether a function stands in a file of a library's that the forward does not reach."""
        file = function.__code__.co_filename
        return f"{os.sep}site-packages{os.sep}" in file and file not in self._files

    def look_into_class(self, cls: type, *, operators: bool = False, made: bool = False) -> None:
        """Note what the methods of a class assign, any of which may be called.

        Args:
            cls: the class.
            operators: only the methods by which operators run.
            made: an object of it may be made.
        """
        for base in filter(is_of_the_user, cls.__mro__):
            for name, method in vars(base).items():
                if (made or name != "__init__") and (not operators or name.startswith("__")):
                    if not isinstance(method, type):
                        self._look_into_value(method)

    def assign(self, name: str | None, holder: Any, line: str) -> None:
        """An attribute of an object is set by its name; ``None`` if either is not known.

        Where a text spells ``setattr``, what it says of the name was read off it.
        """
        if name is None:
            self._everything = True
        elif name not in self._attributes:
            self._attributes[name] = 2  # by whom else nobody knows
        if not isinstance(holder, nn.Module):
            self.note_outside(line)

    def note_outside(self, line: str) -> None:
        """Something is changed that no checkpoint puts back; the first line is remembered."""
        self.outside = self.outside or line

    def is_contested(self, name: str) -> bool:
        """Whether an attribute of this name is assigned in more than one place."""
        return self._attributes[name] > 1 or self._everything or self._is_put_together(name)

    def _is_put_together(self, name: str) -> bool:
        """Whether ``setattr`` may set it by a name that an f-string gives."""
        return any(name.startswith(begin) and name.endswith(end) for begin, end in self._ends)

    def has_regrown(self, module: nn.Module) -> bool:
        """Whether a module may get other children than it has now."""
        return id(module) in self.regrown or id(module._modules) in self.objects

    def rebinds(self, name: str, namespace: dict[str, Any]) -> bool:
        """Whether a global name may get another value; functions are taken to stay."""
        if name in self.variables:
            return True
        if id(namespace) not in self._namespaces or name not in namespace:
            return False
        return not isinstance(namespace[name], _FIXED) and not callable(namespace[name])

    def assigns(self, holder: Any, name: str, value: Any) -> bool:
        """Whether an attribute of an object, now of some value, may get another one."""
        named = name in self._attributes or self._is_put_together(name)
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


def _name_given(node: ast.Call, setter: str) -> ast.expr | None:
    """What ``setattr(o, name, value)`` and the like take for the name."""
    back = 2 if "setattr" in setter else 1  # before the value
    return node.args[-back] if len(node.args) >= back else None


def _ends_of(text: ast.JoinedStr) -> tuple[str, str]:
    """How a text begins and ends that an f-string gives."""
    parts = [p.value if isinstance(p, ast.Constant) else "" for p in text.values]
    return str(parts[0]), str(parts[-1])


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
