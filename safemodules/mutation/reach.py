"""Every function that the forward of a model reaches, as far as its living modules tell."""

import ast
import functools
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from safemodules.errors import SourceError
from safemodules.mutation.finder import find
from safemodules.mutation.found import Findings, Obstacle, Reference
from safemodules.mutation.internals import user_class_of
from safemodules.mutation.resolution import (
    Context,
    is_foreign,
    is_self,
    mangled,
    next_in_mro,
)
from safemodules.mutation.source import FunctionSource, NoSourceError, source_of


@dataclass(frozen=True)
class Skipped:
    """Something on the forward path that is left as it is, and why.

    Attributes:
        name: dotted path of a module, or importable name of a function.
        reason: why it is left.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name or 'the model itself'}: {self.reason}"


Run = tuple[FunctionType, type | None]  # a function and the class whose method it is


@dataclass(eq=False)
class Reached:
    """One function on the forward path, as one class runs it.

    Attributes:
        context: the function with the objects whose method it is.
        source: its text; ``None`` for a wrapper of torch's own around functions of the user.
        findings: sites and references in it.
        path: dotted path of the first module that runs it.
    """

    context: Context
    source: FunctionSource | None
    findings: Findings
    path: str

    @property
    def function(self) -> Any:
        """The running function (a ``FunctionType``)."""
        return self.context.function


@dataclass(eq=False)
class ReachedClass:
    """One class of modules, its living instances and the methods that forward reaches.

    Attributes:
        cls: the class.
        instances: pairs of dotted path and module.
        methods: attribute name -> raw class attribute (function, property, static method, ...).
        supers: (defining function, attribute) -> the next class's function.
    """

    cls: type
    instances: list[tuple[str, nn.Module]]
    methods: dict[str, Any] = field(default_factory=dict)
    supers: dict[tuple[FunctionType, str], FunctionType] = field(default_factory=dict)


@dataclass(eq=False)
class Reach:
    """All that the forward of a model reaches."""

    classes: dict[type, ReachedClass] = field(default_factory=dict)
    functions: dict[FunctionType, list[Reached]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    callers: dict[Run, set[Run]] = field(default_factory=dict)
    others: dict[FunctionType, Reached | None] = field(default_factory=dict)

    def elsewhere(self, function: FunctionType) -> Reached | None:
        """A function beside those on the forward path, with sites that have to stay.

        Returns:
            ``None`` if it has no source.
        """
        if function not in self.others:
            try:
                source = source_of(function)
            except SourceError:
                self.others[function] = None
                return None
            context = Context(function, class_name=source.class_name)
            findings = find(source.node, context)
            stay = [replace(site, obstacle=Obstacle.ELSEWHERE) for site in findings.sites]
            self.others[function] = Reached(context, source, replace(findings, sites=stay), "")
        return self.others[function]

    def run_by(self, reached: Reached) -> set[type]:
        """Classes of the model's modules that run a function, themselves or through others."""
        found: set[type] = set()
        seen: set[Run] = set()
        rest = [(reached.function, reached.context.owner)]
        while rest:
            run = rest.pop()
            if run in seen:
                continue
            seen.add(run)
            if run[1] in self.classes:
                found.add(run[1])
            else:
                rest += self.callers.get(run, ())
        return found

    def modules_running(self, reached: Reached) -> Iterator[nn.Module]:
        """The modules that run a function, themselves or through others."""
        for cls in self.run_by(reached):
            yield from (module for _, module in self.classes[cls].instances)

    def all(self) -> Iterator[Reached]:
        """Every reached function, once per class that runs it."""
        for reached in self.functions.values():
            yield from reached


def underlying_functions(attribute: Any) -> list[FunctionType]:
    """Functions behind a class attribute, method, partial or property.

    Example:
        >>> [f.__name__ for f in underlying_functions(functools.partial(inspect.cleandoc, "x"))]
        ['cleandoc']
    """
    if isinstance(attribute, FunctionType):
        return [attribute]
    if isinstance(attribute, staticmethod | classmethod | MethodType):
        return underlying_functions(attribute.__func__)
    if isinstance(attribute, functools.partial | functools.partialmethod):
        return underlying_functions(attribute.func)
    if isinstance(attribute, property | functools.cached_property):
        getter = attribute.fget if isinstance(attribute, property) else attribute.func
        return underlying_functions(getter)
    return []


def wrapped_functions(function: FunctionType) -> list[tuple[str, FunctionType]]:
    """Functions in the closure of a function, by the name of their cell."""
    found = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found += [(name, inner) for inner in underlying_functions(cell.cell_contents)]
        except ValueError:  # an empty cell
            continue
    return found


def defining_class(cls: type, function: FunctionType) -> type | None:
    """The class of an MRO whose body holds a function, decorated or not."""
    for base in cls.__mro__:
        for attribute in vars(base).values():
            for found in underlying_functions(attribute):
                if found is function or function in (f for _, f in wrapped_functions(found)):
                    return base
    return None


def own_name(reference: Reference, context: Context) -> str | None:
    """Name of the attribute, where a reference is ``self.<name>``."""
    node = reference.node
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if is_self(node.value.id, reference.scope, context):
            return mangled(node.attr, context.class_name)
    return None


class _Explorer:
    def __init__(self, classes: Iterable[ReachedClass]) -> None:
        self.reach = Reach({found.cls: found for found in classes})
        self.seen: set[tuple[FunctionType, type | None]] = set()
        self.plain: dict[type, list[Any]] = {}
        self.unresolved: dict[str, set[Run]] = {}
        self.running: Run | None = None
        self.opaque: set[str] = set()

    def run(self) -> Reach:
        for found in self.reach.classes.values():
            self._method(found, "forward")
            self._method(found, "__call__")
        grown = -1
        while grown != len(self.seen):  # a method may be called on an object found elsewhere
            grown = len(self.seen)
            for name in sorted(self.unresolved):
                for found in list(self.reach.classes.values()):
                    self._method(found, name)
                for cls, objects in list(self.plain.items()):
                    attribute = inspect.getattr_static(cls, name, None)
                    for function in underlying_functions(attribute):
                        self._function(Context(function, cls, objects), "")
                        callers = self.reach.callers.setdefault((function, cls), set())
                        callers |= self.unresolved[name]
        return self.reach

    def _method(self, found: ReachedClass, name: str) -> None:
        """Reach a method of a class of modules, unless it is torch's own."""
        attribute = inspect.getattr_static(found.cls, name, None)
        functions = underlying_functions(attribute)
        if not functions or name in found.methods:
            return
        if all(is_foreign(f.__code__.co_filename) and not wrapped_functions(f) for f in functions):
            return
        found.methods[name] = attribute
        modules = tuple(module for _, module in found.instances)
        static = isinstance(attribute, staticmethod | classmethod)
        for function in functions:
            context = Context(function, None if static else found.cls, modules)
            self._function(context, found.instances[0][0])

    def _function(self, context: Context, path: str) -> None:
        function = context.function
        key = (function, context.owner)
        if self.running is not None:
            self.reach.callers.setdefault(key, set()).add(self.running)
        if key in self.seen:
            return
        self.seen.add(key)
        outer, self.running = self.running, key
        self._look_into(context, path)
        self.running = outer

    def _look_into(self, context: Context, path: str) -> None:
        function = context.function
        if is_foreign(function.__code__.co_filename):
            inner = [f for _, f in wrapped_functions(function)]
            if inner:
                self._note(Reached(context, None, Findings(), path))
            for wrapped in inner:
                self._function(Context(wrapped, context.owner, context.objects), path)
            return
        try:
            source = source_of(function)
        except NoSourceError as error:
            self.reach.skipped.append(Skipped(path or function.__qualname__, str(error)))
            return
        context = replace(context, class_name=source.class_name)
        findings = find(source.node, context)
        reached = Reached(context, source, findings, path)
        self._note(reached)
        for reference in findings.references:
            self._follow(reference, reached)

    def _note(self, reached: Reached) -> None:
        self.reach.functions.setdefault(reached.function, []).append(reached)

    def _follow(self, reference: Reference, reached: Reached) -> None:
        context = reached.context
        if reference.is_super:
            self._follow_super(reference, reached)
            return
        name = own_name(reference, context)
        if name is not None:
            found = self.reach.classes.get(context.owner) if context.owner else None
            if found is not None:
                self._method(found, name)
                if name in found.methods:
                    return
            elif isinstance(inspect.getattr_static(context.owner, name, None), FunctionType):
                for function in underlying_functions(context.own(name)[0]):
                    self._function(Context(function, context.owner, context.objects), reached.path)
                return
        if not reference.values and isinstance(reference.node, ast.Attribute):
            self.unresolved.setdefault(reference.node.attr, set()).add(
                (reached.function, context.owner)
            )
        for value in reference.values:
            self._value(value, reached)

    def _value(self, value: Any, reached: Reached) -> None:
        context = reached.context
        owner: type | None = None
        objects: tuple[Any, ...] = ()
        if isinstance(value, MethodType) and not isinstance(value.__self__, type):
            owner, objects = user_class_of(type(value.__self__)), (value.__self__,)
            if owner in self.reach.classes:
                self._method(self.reach.classes[owner], value.__name__)
                return
            if not isinstance(value.__self__, nn.Module):
                self.plain.setdefault(owner, []).append(value.__self__)
        elif isinstance(value, FunctionType) and context.owner is not None:
            # `func(self, ...)` in a decorator's wrapper, or `Base.forward(self, ...)`
            if any(value is inner for _, inner in wrapped_functions(context.function)) or any(
                vars(base).get(value.__name__) is value for base in context.owner.__mro__
            ):
                owner, objects = context.owner, tuple(context.objects)
        for function in underlying_functions(value):
            self._function(Context(function, owner, objects), reached.path)
        self._note_opaque(value)

    def _note_opaque(self, value: Any) -> None:
        """Say of a function that cannot be edited whether it overwrites tensors."""
        if isinstance(value, torch.jit.ScriptFunction):
            name = value.qualified_name.removeprefix("__torch__.")
        else:
            name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        if name in self.opaque:
            return
        self.opaque.add(name)
        if isinstance(value, torch.jit.ScriptFunction):
            if re.search(r"aten::\w+_\(", str(value.graph)):
                self.reach.skipped.append(Skipped(name, "compiled by TorchScript"))
        elif hasattr(value, "cache_info") and isinstance(value.__wrapped__, FunctionType):
            try:
                source = source_of(value.__wrapped__)
            except SourceError:
                return
            if find(source.node, Context(value.__wrapped__)).sites:
                reason = "its results are cached (functools.lru_cache), and handed out again"
                self.reach.skipped.append(Skipped(name, reason))

    def _follow_super(self, reference: Reference, reached: Reached) -> None:
        owner = reached.context.owner
        found = self.reach.classes.get(owner) if owner else None
        name = reference.node.attr  # type: ignore[attr-defined]
        if found is None:
            return
        after = defining_class(found.cls, reached.function)
        target = next_in_mro(found.cls, after, name) if after else None
        if not isinstance(target, FunctionType):
            return
        found.supers[reached.function, name] = target
        self._function(Context(target, found.cls, reached.context.objects), reached.path)


def explore(classes: Iterable[ReachedClass]) -> Reach:
    """Follow every call from the forwards of some classes of modules.

    Args:
        classes: classes with their living instances; torch's own are looked into only where
            a user's class overrides them.

    Returns:
        All functions reached with their sites, and what was skipped.

    Raises:
        SourceError: the text of a reached function is not the text of what runs.
    """
    return _Explorer(classes).run()
