"""The outline of a source file: imports, classes, functions, and what names are bound to.

Only statements are visited; the linted code is never imported or run.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from safemodules.mutation import nodes
from safemodules.mutation.scopes import Scope, function_scope
from safemodules.mutation.source import FunctionNode, SourceFile

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CLASS = re.compile(rb"^[ \t]+class[ \t]", re.MULTILINE)
_FOREIGN_STORE = re.compile(rb"(?<![\w)\]])(?!self\.)[A-Za-z_][\w.()\[\]]*\.(\w+)[ \t]*=(?!=)")

_UNKNOWN = ast.Name("", ast.Load())  # a name that is bound to nothing


@dataclass(frozen=True)
class Import:
    """What an import binds.

    Attributes:
        module: dotted name of the module, with the dots of a relative import in front.
        name: the name in it; empty where the module itself is bound.
    """

    module: str
    name: str = ""


Binding = Import | ast.expr | ast.ClassDef | FunctionNode


@dataclass(eq=False)
class FunctionOutline:
    """One function or method, with the functions nested in it.

    Attributes:
        qualname: its name behind those of the classes around it.
        node: its definition.
        owner: the class whose method it is.
    """

    qualname: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: "ClassOutline | None" = None

    @property
    def is_static(self) -> bool:
        """Whether its first parameter is no object of the class."""
        return any(
            isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod")
            for decorator in self.node.decorator_list
        )

    @property
    def is_property(self) -> bool:
        """Whether it is read like an attribute."""
        return any("property" in ast.unparse(each) for each in self.node.decorator_list)

    @property
    def self_name(self) -> str | None:
        """The parameter that holds the object, if this is a method."""
        arguments = [*self.node.args.posonlyargs, *self.node.args.args]
        if self.owner is None or self.is_static or not arguments:
            return None
        return arguments[0].arg

    @functools.cached_property
    def scope(self) -> Scope:
        """Its local names."""
        return function_scope(self.node, None)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """The definition and everything inside it."""
        return nodes.nodes_of(self.node)

    @functools.cached_property
    def parents(self) -> dict[int, ast.AST]:
        """The node around each node, by identity."""
        return nodes.parents_of(self.node)

    @property
    def first_line(self) -> int:
        """Line of the first decorator, or of the definition."""
        return min([self.node.lineno, *(each.lineno for each in self.node.decorator_list)])


@dataclass(eq=False)
class ClassOutline:
    """One class.

    Attributes:
        qualname: its name behind those of the classes around it.
        node: its definition.
        methods: its functions by name.
    """

    qualname: str
    node: ast.ClassDef
    methods: dict[str, FunctionOutline] = field(default_factory=dict)

    @functools.cached_property
    def own_attributes(self) -> dict[str, list[tuple[ast.expr | None, FunctionOutline | None]]]:
        """What ``self.<name>`` is assigned, with the method that does; ``None`` if unknown."""
        found: dict[str, list[tuple[ast.expr | None, FunctionOutline | None]]] = {}
        for statement in self.node.body:
            for name, value in _assigned(statement):
                found.setdefault(name, []).append((value, None))
        for method in self.methods.values():
            if method.self_name is None:
                continue
            for inner in method.nodes:
                for target, value in _stores(inner):
                    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                        if target.value.id == method.self_name:
                            found.setdefault(target.attr, []).append((value, method))
        return found

    @functools.cached_property
    def registered(self) -> frozenset[str]:
        """Names that the methods register as buffers or parameters."""
        return frozenset(
            inner.args[0].value
            for method in self.methods.values()
            for inner in method.nodes
            if isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Attribute)
            and inner.func.attr in ("register_buffer", "register_parameter")
            and inner.args
            and isinstance(inner.args[0], ast.Constant)
            and isinstance(inner.args[0].value, str)
        )


@dataclass(eq=False)
class Outline:
    """The outline of one file.

    Attributes:
        file: its text and syntax tree.
        names: what each name of the module is bound to, once per binding.
        stars: modules whose names are all imported.
        classes: by qualified name.
        functions: in the order of the text.
        statements: those of the module that define no function or class; some lie in others.
        values_of_self: values of attributes that were looked up, by class and name.
        made: modules with a flag that stand for a constructor's call, by its identity.
        flagged: attributes that hold a module with a flag.
    """

    file: SourceFile
    names: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    classes: dict[str, ClassOutline] = field(default_factory=dict)
    functions: list[FunctionOutline] = field(default_factory=list)
    statements: list[ast.stmt] = field(default_factory=list)
    values_of_self: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    made: dict[int, list[Any]] = field(default_factory=dict)
    flagged: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, file: SourceFile) -> "Outline":
        """Outline a file."""
        outline = cls(file)
        outline._block(file.tree.body, "", None)
        if len(_CLASS.findall(file.data)) > sum(c.node.col_offset > 0 for c in outline.all_classes):
            outline._hidden_classes()
        return outline

    @property
    def all_classes(self) -> list[ClassOutline]:
        """Classes in the order of the text."""
        return list(self.classes.values())

    @functools.cached_property
    def in_place_names(self) -> frozenset[str]:
        """Names of the module that stand for a function whose own name ends in ``_``."""
        return frozenset(
            name
            for name, bindings in self.names.items()
            for binding in bindings
            for original in (getattr(binding, "name", ""), getattr(binding, "attr", ""))
            if original.endswith("_") and not original.endswith("__")
        )

    @functools.cached_property
    def foreign_stores(self) -> frozenset[str]:
        """Attributes that are assigned to other objects than ``self`` anywhere in the file."""
        return frozenset(name.decode() for name in _FOREIGN_STORE.findall(self.file.data))

    def bases(self, cls: ClassOutline) -> Iterator[ClassOutline]:
        """A class and those bases that stand in the same file, as Python would search them."""
        seen: set[str] = set()
        rest = [cls]
        while rest:
            current = rest.pop(0)
            if current.qualname in seen:
                continue
            seen.add(current.qualname)
            yield current
            for base in current.node.bases:
                known = self.classes.get(ast.unparse(base))
                if known is not None:
                    rest.append(known)

    def family(self, cls: ClassOutline) -> list[ClassOutline]:
        """A class, its bases and the classes derived from it, as far as the file shows them."""
        found = list(self.bases(cls))
        found += [c for c in self.all_classes if c not in found and cls in list(self.bases(c))]
        return found

    # -- building -----------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], prefix: str, owner: ClassOutline | None) -> None:
        for statement in body:
            if isinstance(statement, _DEFINITIONS):
                self._function(statement, prefix, owner)
            elif isinstance(statement, ast.ClassDef):
                self._class(statement, prefix)
            else:
                if owner is None:
                    self._bind(statement)
                blocks = list(_blocks(statement))
                if owner is None and not any(map(_defines, blocks)):
                    self.statements.append(statement)
                for block in blocks:
                    self._block(block, prefix, owner)

    def _function(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        prefix: str,
        owner: ClassOutline | None,
    ) -> None:
        outline = FunctionOutline(prefix + node.name, node, owner)
        self.functions.append(outline)
        if owner is not None:
            owner.methods[node.name] = outline
        elif not prefix:
            self.names.setdefault(node.name, []).append(node)

    def _class(self, node: ast.ClassDef, prefix: str) -> None:
        outline = ClassOutline(prefix + node.name, node)
        self.classes[outline.qualname] = outline
        if not prefix:
            self.names.setdefault(node.name, []).append(node)
        self._block(node.body, f"{outline.qualname}.", outline)

    def _hidden_classes(self) -> None:
        """Classes that stand inside functions."""
        known = {id(cls.node) for cls in self.all_classes}
        for function in list(self.functions):
            for node in function.nodes:
                if isinstance(node, ast.ClassDef) and id(node) not in known:
                    known.add(id(node))
                    self._class(node, f"{function.qualname}.<locals>.")

    def _bind(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.asname or alias.name.partition(".")[0]
                module = alias.name if alias.asname else name
                self.names.setdefault(name, []).append(Import(module))
        elif isinstance(statement, ast.ImportFrom):
            module = "." * statement.level + (statement.module or "")
            for alias in statement.names:
                if alias.name == "*":
                    self.stars.append(module)
                    continue
                bound = alias.asname or alias.name
                self.names.setdefault(bound, []).append(Import(module, alias.name))
        else:
            for name, value in _assigned(statement):
                self.names.setdefault(name, []).append(value or _UNKNOWN)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield block
    for handler in getattr(statement, "handlers", ()):
        yield handler.body
    for case in getattr(statement, "cases", ()):
        yield case.body


def _defines(block: list[ast.stmt]) -> bool:
    """Whether functions or classes are defined in a block."""
    return any(
        isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        or any(map(_defines, _blocks(inner)))
        for inner in block
    )


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that a statement binds, with the value where it is a plain assignment."""
    for target, value in _stores(statement):
        if isinstance(target, ast.Name):
            yield target.id, value


def _stores(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Targets of an assignment, ``for`` or ``with``, with the value if it is bound as a whole."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple | ast.List):
                yield from ((element, None) for element in target.elts)
            else:
                yield target, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor):
        targets = node.target
        yield from (
            (each, None) for each in (targets.elts if isinstance(targets, ast.Tuple) else [targets])
        )
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None
