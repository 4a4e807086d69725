"""Walking syntax trees, faster than :mod:`ast` does: nothing but statements and expressions.

Contexts (``ast.Load``) and operators (``ast.Add``) are left out; they make up half of the nodes
of a tree and are read off the nodes that have them.
"""

import ast
from collections.abc import Iterator

_LEFT_OUT = frozenset({"ctx", "op", "ops", "type_comment", "kind", "id", "attr", "arg", "name"})
_NO_NODES = frozenset({"names", "level", "module", "conversion", "is_async", "simple", "asname"})


def _fields(cls: type[ast.AST]) -> tuple[str, ...]:
    kept: tuple[str, ...] = tuple(f for f in cls._fields if f not in _LEFT_OUT | _NO_NODES)
    if issubclass(cls, ast.Import | ast.ImportFrom):
        return ("names",)
    return () if issubclass(cls, ast.Constant | ast.Name | ast.alias) else kept


_FIELDS: dict[type, tuple[str, ...]] = {}


def children(node: ast.AST) -> list[ast.AST]:
    """Nodes directly inside a node, in the order of its fields.

    Example:
        >>> [type(child).__name__ for child in children(ast.parse("x = a + 1").body[0])]
        ['Name', 'BinOp']
    """
    cls = node.__class__
    fields = _FIELDS.get(cls)
    if fields is None:
        fields = _FIELDS[cls] = _fields(cls)
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if value.__class__ is list:
            for entry in value:
                if isinstance(entry, ast.AST):
                    found.append(entry)
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def nodes_of(node: ast.AST) -> list[ast.AST]:
    """A node and everything inside it, level by level.

    Example:
        >>> [type(inner).__name__ for inner in nodes_of(ast.parse("-x", mode="eval").body)]
        ['UnaryOp', 'Name']
    """
    found = [node]
    for inner in found:  # grows while it is gone through
        found += children(inner)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Go through a node and everything inside it, level by level."""
    return iter(nodes_of(node))


def parents_of(node: ast.AST) -> dict[int, ast.AST]:
    """The node around each node inside a node, by identity of the inner one."""
    found: dict[int, ast.AST] = {}
    rest = [node]
    for parent in rest:
        inside = children(parent)
        for child in inside:
            found[id(child)] = parent
        rest += inside
    return found
