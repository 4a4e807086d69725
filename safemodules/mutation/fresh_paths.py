"""Texts whose paths are followed in the search for fresh tensors."""

import ast

__all__ = ["is_plain"]

_SEE_ALL_NAMES = frozenset("locals vars eval exec globals".split())


def is_plain(node: ast.AST) -> bool:
    """Whether all paths through a text are followed here.

    What leaves a loop or a block in the middle is not, nor what gives a tensor a second name
    without naming it (``+t`` is ``t``).
    """
    if isinstance(node, ast.Break | ast.Continue | ast.UAdd):
        return False
    if isinstance(node, ast.With):
        roots = [item.context_expr for item in node.items]
        return all(_root(root) == "torch" for root in roots)
    return not (isinstance(node, ast.Name) and node.id in _SEE_ALL_NAMES)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
