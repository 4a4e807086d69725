"""Walking syntax trees, faster than :mod:`ast` does: nothing but statements and expressions.

Contexts (``ast.Load``) and operators (``ast.Add``) are left out; they make up half of the nodes
of a tree and are read off the nodes that have them.
"""

import ast
from collections.abc import Iterator

# Fields that hold contexts, operators, names and other plain values.
_PLAIN = frozenset(
    """arg asname attr conversion ctx id is_async kind kwd_attrs level lineno module name op ops
    rest simple tag type_comment""".split()
)
_NO_FIELDS = (ast.Constant, ast.Name, ast.alias, ast.MatchSingleton, ast.Global, ast.Nonlocal)


def _fields(cls: type[ast.AST]) -> tuple[str, ...]:
    """Fields of a class of nodes that hold nodes, lists of nodes, or ``None``."""
    if issubclass(cls, _NO_FIELDS):
        return ()
    return tuple(name for name in cls._fields if name not in _PLAIN)


class _Table(dict[type, tuple[str, ...]]):
    def __missing__(self, cls: type) -> tuple[str, ...]:
        self[cls] = found = _fields(cls)
        return found


_FIELDS = _Table()


def children(node: ast.AST) -> list[ast.AST]:
    """Nodes directly inside a node, in the order of its fields.

    Example:
        >>> [type(child).__name__ for child in children(ast.parse("x = a + 1").body[0])]
        ['Name', 'BinOp']
    """
    found: list[ast.AST | None] = []
    for name in _FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += value
        elif value is not None:
            found.append(value)
    return [child for child in found if child is not None]


def nodes_of(node: ast.AST) -> list[ast.AST]:
    """A node and everything inside it, level by level.

    Example:
        >>> [type(inner).__name__ for inner in nodes_of(ast.parse("-x", mode="eval").body)]
        ['UnaryOp', 'Name']
    """
    found = [node]
    fields, add = _FIELDS, found.append
    for inner in found:  # grows while it is gone through
        for name in fields[inner.__class__]:
            value = getattr(inner, name, None)
            if value.__class__ is list:
                for entry in value:
                    if entry is not None:
                        add(entry)
            elif value is not None:
                add(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Go through a node and everything inside it, level by level."""
    return iter(nodes_of(node))


def parents_of(node: ast.AST) -> dict[int, ast.AST]:
    """The node around each node inside a node, by identity of the inner one."""
    found: dict[int, ast.AST] = {}
    for parent in nodes_of(node):
        for child in children(parent):
            found[id(child)] = parent
    return found
