"""What is known of each local name, along the paths through a function's text."""

import ast

from safemodules.mutation.fresh_modules import Freshness

Environment = dict[str, Freshness]
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef) + (
    (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
)


def captured_names(node: ast.AST) -> frozenset[str]:
    """Names that nested functions, lambdas and comprehensions mention."""
    return frozenset(
        name.id
        for nested in ast.walk(node)
        if isinstance(nested, NESTED) and nested is not node
        for name in ast.walk(nested)
        if isinstance(name, ast.Name)
    )


def leaves(block: list[ast.stmt]) -> bool:
    """Whether a block ends by leaving the function."""
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise)


def join(env: Environment, ends: list[Environment]) -> None:
    """Keep of each name the least that is known at the end of any path."""
    names = set(env).union(*ends)
    for name in names:
        env[name] = min((end.get(name, Freshness.SHARED) for end in ends), default=Freshness.SHARED)
