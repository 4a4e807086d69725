"""Beside each outlined region stands its text as it was, for where no graph is recorded.

NOTE [ Two forms ]: a region that is outlined into a lambda keeps all that it is given alive
until it returns: the caller's names hold it, and the arguments of the call. Where nothing is
recomputed, that is memory for nothing. So the compiled code asks first, and runs the region as
the author wrote it if it is not checkpointed::

    if _sm_outlining((f,)):
        x = _sm_outlined(7, lambda f, x: ((h := (f(x))), (x := (g(h))), x)[-1], f, x)
    else:
        h = f(x)
        x = g(h)

Both forms stand on the lines of the original, which text cannot say. So this is made of the
syntax tree; the edited text shows the first form alone.
"""

import ast
import copy
from typing import Any, Final, cast

from safemodules.rewriting.templates import PREFIX

__all__ = ["with_plain_forms"]

_OUTLINED: Final = f"{PREFIX}outlined"
_OUTLINING: Final = f"{PREFIX}outlining"


def with_plain_forms(statement: ast.stmt) -> ast.stmt:
    """A statement of edited code with both forms of each region in it.

    Args:
        statement: a top-level statement; it is not changed.
    """
    if not any(map(_is_outlined, ast.walk(statement))):
        return statement
    return cast(ast.stmt, _Forms().visit(copy.deepcopy(statement)))


def _is_outlined(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == _OUTLINED
    )


class _Forms(ast.NodeTransformer):
    """Takes the text of a region from the lambda that was made of it."""

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Consecutive assignments, which the lambda makes one after the other."""
        if _is_outlined(node.value):
            asked, call, region = _parts(node.value)
            plain = _assignments(node.targets, region)
            if plain:
                outlined = ast.copy_location(ast.Assign(node.targets, call), node)
                return ast.copy_location(ast.If(asked, [outlined], plain), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        """One expression."""
        if not _is_outlined(node):
            return self.generic_visit(node)
        asked, call, region = _parts(node)
        return ast.copy_location(ast.IfExp(asked, call, region), node)


def _parts(node: ast.expr) -> tuple[ast.Call, ast.Call, ast.expr]:
    """The question whether a region is checkpointed, the call if it is, and its own text."""
    assert isinstance(node, ast.Call)
    key, callees, outlined, *names = node.args
    assert isinstance(outlined, ast.Lambda)
    asking = ast.copy_location(ast.Name(_OUTLINING, ast.Load()), node)
    asked = ast.copy_location(ast.Call(asking, [callees], []), node)
    call = ast.copy_location(ast.Call(node.func, [key, outlined, *names], []), node)
    return asked, call, outlined.body


def _assignments(targets: list[ast.expr], region: ast.expr) -> list[ast.stmt]:
    """``((a := (…)), (b := (…)), b)[-1]`` as statements; none if it is of another form."""
    if not (isinstance(region, ast.Subscript) and isinstance(region.value, ast.Tuple)):
        return []
    *bindings, result = region.value.elts
    found: list[ast.stmt] = []
    for binding in bindings:
        if not isinstance(binding, ast.NamedExpr):
            return []
        found.append(ast.copy_location(ast.Assign([binding.target], binding.value), binding))
    return [*found, ast.copy_location(ast.Assign(targets, result), result)]
