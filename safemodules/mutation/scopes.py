"""Which names are local where, and what each was bound to, inside one function's text."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from safemodules.mutation import nodes

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Binding = ast.expr | ast.alias | None


@dataclass
class Scope:
    """One function, lambda or comprehension, and the names bound in it.

    Attributes:
        node: the definition.
        parent: the enclosing scope, ``None`` for the outermost function.
        names: names that are local here.
        outside: names declared ``global`` here.
        nonlocals: names declared ``nonlocal`` here.
        bindings: what each name is bound to, once per binding; ``None`` where that is no
            plain assignment (a parameter, a loop variable, part of a tuple).
        in_iterable: inside the iterable of a comprehension, where ``:=`` is not allowed.
    """

    node: ast.AST
    parent: "Scope | None"
    names: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    in_iterable: bool = False

    @property
    def is_comprehension(self) -> bool:
        """Whether this is a comprehension's own scope."""
        return isinstance(self.node, COMPREHENSIONS)

    def holder(self, name: str) -> "Scope | None":
        """The scope within the outermost function in which a name is local, if any."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.outside:
                return None
            if name in scope.names and name not in scope.nonlocals:
                return scope
            scope = scope.parent
        return None

    def rebindable(self, name: str) -> bool:
        """Whether ``(name := ...)`` written here would bind the name that is read here."""
        scope: Scope | None = self
        while scope is not None and scope.is_comprehension:
            if scope.in_iterable or name in scope.names:
                return False
            scope = scope.parent
        if scope is None or scope.in_iterable or name in scope.outside:
            return False
        return name in scope.names or name in scope.nonlocals

    def bind(self, name: str, value: Binding) -> None:
        """Note a binding of a name in this scope."""
        self.names.add(name)
        self.bindings.setdefault(name, []).append(value)


def _bind_target(scope: Scope, target: ast.expr, value: Binding) -> None:
    if isinstance(target, ast.Name):
        scope.bind(target.id, value)
    elif isinstance(target, ast.Starred):
        _bind_target(scope, target.value, None)
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            _bind_target(scope, element, None)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run in the scope of ``node`` itself; ``:=`` in comprehensions included."""
    for child in nodes.children(node):
        yield child
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            arguments = getattr(child, "args", None)
            outside = list(getattr(child, "decorator_list", []))
            if arguments is not None:
                outside += [*arguments.defaults, *(d for d in arguments.kw_defaults if d)]
            for expression in outside:
                yield expression
                yield from _own_nodes(expression)
        else:
            yield from _own_nodes(child)


def _inside_comprehensions(node: ast.AST) -> set[int]:
    """Identities of loop targets of comprehensions, which bind in scopes of their own."""
    return {
        id(name)
        for inner in nodes.walk(node)
        if isinstance(inner, ast.comprehension)
        for name in nodes.walk(inner.target)
    }


def function_scope(node: ast.AST, parent: Scope | None) -> Scope:
    """Collect the names bound in a function or lambda.

    Example:
        >>> tree = ast.parse("def f(x): y = x + 1; return [z for z in y]")
        >>> sorted(function_scope(tree.body[0], None).names)
        ['x', 'y']
    """
    scope = Scope(node, parent)
    arguments: ast.arguments = node.args  # type: ignore[attr-defined]
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += [star for star in (arguments.vararg, arguments.kwarg) if star is not None]
    for parameter in parameters:
        scope.bind(parameter.arg, None)
    body = node.body if isinstance(node.body, list) else [node.body]  # type: ignore[attr-defined]
    own = ast.Module(body, type_ignores=[])
    foreign = _inside_comprehensions(own)
    plain: set[int] = set()
    for inner in _own_nodes(own):
        _collect(scope, inner, plain)
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            if id(inner) not in foreign and id(inner) not in plain:
                scope.bind(inner.id, None)
    scope.names -= scope.outside | scope.nonlocals
    return scope


def _collect(scope: Scope, node: ast.AST, plain: set[int]) -> None:
    """Note what one node binds, other than a bare name in some other target position."""
    if isinstance(node, ast.Global):
        scope.outside.update(node.names)
    elif isinstance(node, ast.Nonlocal):
        scope.nonlocals.update(node.names)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope.bind(node.name, None)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        scope.bind(node.name, None)
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        scope.bind(node.name, None)
    elif isinstance(node, ast.MatchMapping) and node.rest:
        scope.bind(node.rest, None)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            scope.bind(alias.asname or alias.name.partition(".")[0], alias)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            _bind_target(scope, target, node.value)
            plain.update(id(name) for name in nodes.walk(target))
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name):
        if node.value is not None:
            scope.bind(node.target.id, node.value)
        plain.add(id(node.target))
        scope.names.add(node.target.id)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        scope.names.add(node.target.id)
        plain.add(id(node.target))


def comprehension_scope(node: Comprehension, parent: Scope) -> Scope:
    """The scope of a comprehension's own variables."""
    scope = Scope(node, parent)
    for generator in node.generators:
        for name in nodes.walk(generator.target):
            if isinstance(name, ast.Name):
                scope.bind(name.id, None)
    return scope


def walk_scopes(node: ast.AST, scope: Scope | None = None) -> Iterator[tuple[ast.AST, Scope]]:
    """Every node of a function's body, nested functions included, with its scope.

    Nested classes and f-strings are left out: the positions inside an f-string are not
    those of the file before Python 3.12.

    Args:
        node: the definition of the function.
        scope: its own scope, where that is known.
    """
    scope = function_scope(node, None) if scope is None else scope
    body = node.body if isinstance(node.body, list) else [node.body]  # type: ignore[attr-defined]
    for child in body:
        yield from _walk(child, scope)


def _walk(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    if isinstance(node, ast.JoinedStr | ast.ClassDef):
        return
    yield node, scope
    if isinstance(node, FUNCTIONS):
        arguments = node.args
        for default in [*arguments.defaults, *(d for d in arguments.kw_defaults if d)]:
            yield from _walk(default, scope)
        for decorator in getattr(node, "decorator_list", []):
            yield from _walk(decorator, scope)
        inner = function_scope(node, scope)
        for child in node.body if isinstance(node.body, list) else [node.body]:
            yield from _walk(child, inner)
    elif isinstance(node, COMPREHENSIONS):
        inner = comprehension_scope(node, scope)
        iterable = Scope(node, scope, in_iterable=True)
        for index, generator in enumerate(node.generators):
            # the first iterable is evaluated outside, but `:=` is barred from it all the same
            outer = iterable if index == 0 else Scope(node, inner, in_iterable=True)
            yield from _walk(generator.iter, outer)
            for condition in generator.ifs:
                yield from _walk(condition, inner)
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for element in elements:
            yield from _walk(element, inner)
    else:
        for inner_node in nodes.children(node):
            yield from _walk(inner_node, scope)
