"""Sites whose tensor is plainly a fresh result that nothing else refers to.

This decides, without running anything, the sites that can be swapped whatever else the
model does: the overwritten tensor was made in the same function by an operator known to
return new memory, has one name only, and that name is rebound by the swap. Whatever is not
plain is not fresh.
"""

import ast
from collections.abc import Iterable, Iterator

from torch import nn

from safemodules.mutation import nodes
from safemodules.mutation.environments import (
    NESTED,
    Environment,
    captured_names,
    held_sites,
    join,
    leaves,
)
from safemodules.mutation.found import FoundSite
from safemodules.mutation.fresh_modules import (
    Freshness,
    Freshnesses,
    is_sequential,
    result_of,
    returns_input,
)
from safemodules.mutation.fresh_paths import is_plain
from safemodules.mutation.fresh_tables import (
    FACTORIES,
    FRESH_FUNCTIONS,
    FRESH_METHODS,
    READING_ATTRIBUTES,
    READING_CALLS,
)
from safemodules.mutation.operators import method_kind
from safemodules.mutation.resolution import Context, is_hashable, resolve
from safemodules.mutation.sites import SiteKind
from safemodules.mutation.source import FunctionNode

_INERT = (ast.Pass, ast.Break, ast.Continue, ast.Import, ast.ImportFrom)
_CHILD_METHODS = frozenset(
    {"_modules", "children", "modules", "named_children", "named_modules", "get_submodule"}
)


class _Walker:
    """Runs a function's text over what is known of each local name."""

    def __init__(self, node: FunctionNode, context: Context, sites: Iterable[FoundSite]) -> None:
        self.context = context
        self.node = node
        self.scope = context.scope_of(node)
        self.sites = {id(site.node): site for site in sites}
        self.verdicts: dict[int, Freshness] = {}
        self.flags: dict[int, bool] = {}
        self.called, self.exposed = set[int](), set[int]()
        self.captured = captured_names(self.node)
        self.held = held_sites(self.node, self.sites)
        for nested in self.captured_modules():
            self.exposed.update(id(module) for module in nested.modules())

    def captured_modules(self) -> Iterator[nn.Module]:
        """Modules used in nested functions and comprehensions, whose order is not known."""
        for nested in nodes.walk(self.node):
            if isinstance(nested, NESTED) and nested is not self.node:
                for inner in nodes.walk(nested):
                    if isinstance(inner, ast.Attribute):
                        values = resolve(inner, self.scope, self.context)
                        yield from (value for value in values if isinstance(value, nn.Module))

    # -- statements ---------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt], env: Environment) -> None:
        for statement in statements:
            self.statement(statement, env)

    def statement(self, node: ast.stmt, env: Environment) -> None:
        if isinstance(node, ast.Assign):
            self.assign(node, env)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.store(node.target, self.bound_value(node.value, node.target, env), env)
        elif isinstance(node, ast.AugAssign):
            self.read(node.value, env)
            self.site(self.sites.get(id(node)), env)
            if not isinstance(node.target, ast.Name):
                self.alias(node.value, env)
        elif isinstance(node, ast.Expr):
            self.read(node.value, env)
        elif isinstance(node, ast.Return):
            if node.value is not None:
                self.bound_value(node.value, None, env)
        elif isinstance(node, ast.If):
            self.read(node.test, env)
            self.branches([node.body, node.orelse], env)
        elif isinstance(node, ast.For | ast.While | ast.AsyncFor):
            self.loop(node, env)
        elif isinstance(node, ast.With):
            for entry in node.items:
                self.alias(entry.context_expr, env)
                if entry.optional_vars is not None:
                    self.store(entry.optional_vars, Freshness.SHARED, env)
            self.block(node.body, env)
        elif isinstance(node, ast.Assert):
            self.read(node.test, env)
        elif not isinstance(node, _INERT):
            self.opaque(node, env)

    def assign(self, node: ast.Assign, env: Environment) -> None:
        target = node.targets[0] if len(node.targets) == 1 else None
        site = self.sites.get(id(node))
        if site is not None and target is site.target:
            self.read(node.value, env)  # an entry of a tensor is written: values, no reference
            self.alias_names_in_containers(site, node.value, env)
            self.site(site, env)
            return
        value = self.bound_value(node.value, target, env)
        for each in node.targets:
            self.store(each, value if target is not None else Freshness.SHARED, env)

    def alias_names_in_containers(self, site: FoundSite, value: ast.expr, env: Environment) -> None:
        root = site.place.root if site.place is not None else None
        if env.get(root or "", Freshness.SHARED) < Freshness.TENSOR:
            self.alias(value, env)  # perhaps a list, which keeps what it is given

    def bound_value(self, value: ast.expr, target: ast.expr | None, env: Environment) -> Freshness:
        """Evaluate what is bound to a target; a site may write the very name that is bound."""
        if isinstance(value, ast.Call):
            return self.call(value, env, target)
        return self.alias(value, env)

    def store(self, target: ast.expr, value: Freshness, env: Environment) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self.store(element, Freshness.SHARED, env)
        elif isinstance(target, ast.Starred):
            self.store(target.value, Freshness.SHARED, env)

    def branches(self, blocks: Iterable[list[ast.stmt]], env: Environment) -> None:
        ends = []
        for block in blocks:
            branch = dict(env)
            self.block(block, branch)
            if not leaves(block):
                ends.append(branch)
        join(env, ends)

    def loop(self, node: ast.For | ast.While | ast.AsyncFor, env: Environment) -> None:
        for _ in range(len(Freshness)):  # each pass lowers what a later iteration would find
            inner = dict(env)
            if isinstance(node, ast.While):
                self.read(node.test, inner)
            else:
                self.alias(node.iter, inner)
                self.store(node.target, Freshness.SHARED, inner)
            self.block(node.body, inner)
            join(env, [dict(env), inner])
        self.block(node.orelse, env)

    def opaque(self, node: ast.AST, env: Environment) -> None:
        """Anything else: nothing is known of any name that occurs in it, nor of its sites."""
        for inner in nodes.walk(node):
            if isinstance(inner, ast.Name):
                env[inner.id] = Freshness.SHARED
            if id(inner) in self.sites:
                self.verdicts[id(inner)] = Freshness.SHARED
            if isinstance(inner, ast.expr):
                self.expose(inner)

    # -- expressions --------------------------------------------------------------------

    def read(self, node: ast.expr, env: Environment) -> Freshness:
        """Evaluate an expression whose value is looked at, and kept by nobody."""
        if isinstance(node, ast.Name):
            level = self.level(node.id, env)
            if level is Freshness.FILLED:  # whoever reads it may keep it for backward
                env[node.id] = Freshness.TENSOR
            return level
        if isinstance(node, ast.Constant):
            return Freshness.VALUE
        if isinstance(node, ast.BinOp):
            return self.operator([node.left, node.right], env)
        if isinstance(node, ast.UnaryOp):
            return self.operator([node.operand], env)
        if isinstance(node, ast.Compare):
            return self.operator([node.left, *node.comparators], env)
        if isinstance(node, ast.BoolOp):
            for operand in node.values:
                self.alias(operand, env)
            return Freshness.SHARED
        self.expose(node)
        if isinstance(node, ast.Subscript | ast.Attribute | ast.Slice | ast.JoinedStr):
            for child in nodes.children(node):
                if isinstance(child, ast.expr):
                    self.read(child, env)
            return Freshness.SHARED
        if isinstance(node, ast.Call):
            return self.call(node, env, None)
        return self.alias(node, env)

    def expose(self, node: ast.expr) -> None:
        """A module that is not called but looked at, iterated or handed on."""
        if isinstance(node, ast.Name | ast.Attribute):
            for value in resolve(node, self.scope, self.context):
                if isinstance(value, nn.Module):
                    self.exposed.update(id(module) for module in value.modules())
            if isinstance(node, ast.Attribute) and node.attr in _CHILD_METHODS:
                for module in self.context.objects:
                    self.exposed.update(id(inner) for inner in module.modules())

    def operator(self, operands: list[ast.expr], env: Environment) -> Freshness:
        known = max(self.read(operand, env) for operand in operands)
        return Freshness.TENSOR if known >= Freshness.TENSOR else Freshness.VALUE

    def alias(self, node: ast.expr, env: Environment) -> Freshness:
        """Evaluate an expression whose value gets another name, or is kept somewhere."""
        self.expose(node)
        if isinstance(node, ast.Name):
            env[node.id] = Freshness.SHARED
            return Freshness.SHARED
        if isinstance(node, ast.Constant | ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call):
            return self.read(node, env)
        if isinstance(node, ast.Attribute) and node.attr in READING_ATTRIBUTES:
            return self.read(node, env)
        if isinstance(node, ast.NamedExpr):
            self.store(node.target, self.alias(node.value, env), env)
            return self.alias(node.target, env)
        if isinstance(node, ast.Lambda):
            return Freshness.SHARED
        self.opaque_calls(node, env)
        return Freshness.SHARED

    def opaque_calls(self, node: ast.expr, env: Environment) -> None:
        for child in nodes.children(node):
            if isinstance(child, ast.expr):
                self.alias(child, env)
            else:
                self.opaque(child, env)

    def call(self, node: ast.Call, env: Environment, target: ast.expr | None) -> Freshness:
        site = self.sites.get(id(node))
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        values = resolve(node.func, self.scope, self.context)
        function = values[0] if len(values) == 1 else None
        if site is not None:
            return self.in_place_call(node, site, arguments, env, target)
        if values and all(isinstance(value, nn.Module) for value in values):
            return self.modules(node, values, arguments, env, target)
        if isinstance(function, nn.Module) or not is_hashable(function):
            function = None
        reads = isinstance(node.func, ast.Name) and node.func.id in READING_CALLS
        if function in FRESH_FUNCTIONS or reads:
            return self.fresh_call(node, arguments, env, getattr(function, "__name__", ""))
        if isinstance(node.func, ast.Attribute) and not values:
            name = node.func.attr
            if name in FRESH_METHODS or name in READING_ATTRIBUTES:
                self.read(node.func.value, env)
                return self.fresh_call(node, arguments, env, name)
            if method_kind(name) is None:
                self.alias(node.func.value, env)
        if isinstance(node.func, ast.Attribute):
            self.expose(node.func)
        for argument in arguments:
            self.alias(argument, env)
        return Freshness.SHARED

    def fresh_call(
        self, node: ast.Call, arguments: list[ast.expr], env: Environment, name: str
    ) -> Freshness:
        for argument in arguments:
            elements = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
            for element in elements:
                self.read(element, env)
        if any(keyword.arg == "out" for keyword in node.keywords):
            return Freshness.SHARED
        return Freshness.FILLED if name in FACTORIES else Freshness.TENSOR

    def in_place_call(
        self,
        node: ast.Call,
        site: FoundSite,
        arguments: list[ast.expr],
        env: Environment,
        target: ast.expr | None,
    ) -> Freshness:
        written = node.func.value if isinstance(node.func, ast.Attribute) else None
        if site.kind is not SiteKind.METHOD:
            written = node.args[0] if node.args else None
        for argument in arguments:
            if argument is not written:
                self.read(argument, env)
        level = Freshness.SHARED
        if isinstance(written, ast.Name):
            level = self.level(written.id, env)
        elif isinstance(written, ast.Call) and site.place is not None and site.place.root:
            level = self.call(written, env, ast.Name(site.place.root))  # a chain on one name
        elif written is not None:
            level = self.read(written, env)
        if site.place is not None and site.place.root is not None:
            self.site(site, env)
            name = getattr(target, "id", None)
            if name != site.place.root and not isinstance(site.parent, ast.Expr):
                env[site.place.root] = Freshness.SHARED  # the result is a second name
                return Freshness.SHARED
            return level
        self.verdicts[id(node)] = min(level, self.verdicts.get(id(node), level))
        return level

    def modules(
        self,
        node: ast.Call,
        values: list[nn.Module],
        arguments: list[ast.expr],
        env: Environment,
        target: ast.expr | None,
    ) -> Freshness:
        """A call of a submodule of the model, one per living object."""
        self.called.update(map(id, values))
        known = all(result_of(value, Freshness.TENSOR) for value in values)
        if len(arguments) != 1 or not known:
            for argument in arguments:
                self.alias(argument, env)
            self.note_flags(values, fresh=False)
            return Freshness.SHARED
        argument = arguments[0]
        given = self.read(argument, env)
        same_name = (
            isinstance(argument, ast.Name)
            and isinstance(target, ast.Name)
            and argument.id == target.id
        )
        returned = target is None and self.returned(node)
        nameless = returned or not isinstance(argument, ast.Name)
        self.note_flags(values, fresh=given > Freshness.SHARED and (same_name or nameless))
        result = min(result_of(value, given) for value in values)
        if result is not Freshness.TENSOR or any(map(returns_input, values)):
            if isinstance(argument, ast.Name) and not same_name:
                env[argument.id] = Freshness.SHARED
                return Freshness.SHARED
        return result

    def returned(self, node: ast.Call) -> bool:
        return any(
            isinstance(statement, ast.Return) and statement.value is node
            for statement in nodes.walk(self.node)
        )

    def note_flags(self, values: list[nn.Module], fresh: bool) -> None:
        for value in values:
            first = value
            while is_sequential(first) and len(first._modules):  # what is passed in goes on
                first = next(first.children())
            for module in {id(value): value, id(first): first}.values():
                self.flags[id(module)] = self.flags.get(id(module), True) and fresh

    def level(self, name: str, env: Environment) -> Freshness:
        return Freshness.SHARED if name in self.captured else env.get(name, Freshness.SHARED)

    def site(self, site: FoundSite | None, env: Environment) -> None:
        if site is None or site.place is None or site.place.root is None:
            return
        level = Freshness.SHARED if site.key in self.held else self.level(site.place.root, env)
        if site.place.accessors and level < Freshness.TENSOR:
            level = Freshness.SHARED
        self.verdicts[site.key] = min(level, self.verdicts.get(site.key, level))


def analyse_text(node: FunctionNode, context: Context, sites: Iterable[FoundSite]) -> Freshnesses:
    """Find what is plainly fresh in the text of one function.

    Args:
        node: its definition.
        context: the function and what is known of the objects it runs on.
        sites: the sites in it.
    """
    if not all(map(is_plain, ast.walk(node))):
        return Freshnesses({}, {}, set(), set())
    walker = _Walker(node, context, sites)
    body = walker.node.body
    if isinstance(body, list):
        walker.block(body, {})
    else:
        walker.bound_value(body, None, {})
    return Freshnesses(walker.verdicts, walker.flags, walker.called, walker.exposed)
