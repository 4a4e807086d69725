"""What is known of each local name, along the paths through a function's text."""

import ast
from collections.abc import Iterator, Mapping

from safemodules.mutation import nodes
from safemodules.mutation.found import FoundSite
from safemodules.mutation.fresh_modules import Freshness

Environment = dict[str, Freshness]
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef) + (
    (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
)


def captured_names(node: ast.AST) -> frozenset[str]:
    """Names that nested functions, lambdas and comprehensions mention."""
    return frozenset(
        name.id
        for nested in nodes.walk(node)
        if isinstance(nested, NESTED) and nested is not node
        for name in nodes.walk(nested)
        if isinstance(name, ast.Name)
    )


def held_sites(node: ast.AST, sites: Mapping[int, FoundSite]) -> frozenset[int]:
    """Sites whose tensor an expression around them has read already, as in ``h + h.relu_()``.

    Python keeps the left operand while it evaluates the right one: a second reference.
    """
    held: set[int] = set()
    for statement in nodes.walk(node):
        if isinstance(statement, ast.stmt) and not isinstance(statement, NESTED):
            for part in _evaluated_together(statement):
                held.update(_held_in(part, sites))
    return frozenset(held)


def _evaluated_together(statement: ast.stmt) -> list[ast.AST]:
    """A simple statement, or the head of a compound one."""
    if isinstance(statement, ast.If | ast.While):
        return [statement.test]
    if isinstance(statement, ast.For | ast.AsyncFor):
        return [statement.iter]
    if isinstance(statement, ast.With | ast.AsyncWith):
        return list(statement.items)
    return [] if isinstance(statement, ast.Try) else [statement]


def _held_in(part: ast.AST, sites: Mapping[int, FoundSite]) -> Iterator[int]:
    names = [name for name in nodes.walk(part) if isinstance(name, ast.Name)]
    for inner in nodes.walk(part):
        site = sites.get(id(inner))
        if site is None or site.place is None or site.place.root is None or inner is part:
            continue
        assert isinstance(inner, ast.expr)
        if any(
            name.id == site.place.root
            and (name.lineno, name.col_offset) < (inner.lineno, inner.col_offset)
            and (isinstance(part, ast.AugAssign) or isinstance(name.ctx, ast.Load))
            for name in names
        ):
            yield site.key


def leaves(block: list[ast.stmt]) -> bool:
    """Whether a block ends by leaving the function."""
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise)


def join(env: Environment, ends: list[Environment]) -> None:
    """Keep of each name the least that is known at the end of any path."""
    names = set(env).union(*ends)
    for name in names:
        env[name] = min((end.get(name, Freshness.SHARED) for end in ends), default=Freshness.SHARED)
