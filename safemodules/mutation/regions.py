"""Find what a loop computes with modules, and calls of torch's own checkpointing."""

import ast
import enum
import functools
import inspect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch.utils.checkpoint as torch_checkpointing

from safemodules.mutation.nodes import children, walk
from safemodules.mutation.purity import Purity
from safemodules.mutation.resolution import Context
from safemodules.mutation.scopes import COMPREHENSIONS, FUNCTIONS, Scope, walk_scopes

_CHECKPOINTS: Final = (torch_checkpointing.checkpoint, torch_checkpointing.checkpoint_sequential)
# What torch's checkpoint takes for itself, and does not hand to the function.
CHECKPOINT_OPTIONS: Final = frozenset(
    name
    for name, parameter in inspect.signature(torch_checkpointing.checkpoint).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
_LOOPS = (ast.For, ast.While)


class RegionKind(str, enum.Enum):
    """What a region looks like in the source."""

    CALL = "module call in a loop"
    OUTLINED = "statements of a loop"
    MAPPED = "module mapped over items"
    REROUTED = "call of torch's checkpoint"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class FoundRegion:
    """One region in the text of a function.

    Attributes:
        kind: what it looks like.
        nodes: an expression, or consecutive assignments.
        parameters: local names that it reads, outlined.
        results: local names that it binds and that are read elsewhere.
        callees: what may be modules, where it can be told before the region runs.
    """

    kind: RegionKind
    nodes: tuple[ast.AST, ...]
    parameters: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    callees: tuple[ast.expr, ...] = ()

    @property
    def key(self) -> int:
        """Identity of the region in its text."""
        return id(self.nodes[0])

    def is_end(self, node: ast.AST) -> bool:
        """Whether a node is the last one."""
        return node is self.nodes[-1]

    @property
    def lineno(self) -> int:
        """First line, counted from 1."""
        return self.nodes[0].lineno  # type: ignore[attr-defined, no-any-return]


def find_regions(node: ast.AST, context: Context, sites: Collection[int]) -> list[FoundRegion]:
    """Find the regions of a function, in the order of the text.

    Args:
        node: the definition of the function.
        context: the function and the objects it runs on.
        sites: identities of the nodes that overwrite a tensor.
    """
    scopes = {id(inner): scope for inner, scope in walk_scopes(node)}
    purity = Purity(context, scopes, sites)
    finder = _Finder(node, purity)
    body = node.body if isinstance(node.body, list) else [node.body]  # type: ignore[attr-defined]
    finder.block(body, looped=False)
    found = [*finder.found, *_rerouted(node, purity)]
    return sorted(found, key=lambda region: (region.lineno, region.nodes[0].col_offset))  # type: ignore[attr-defined]


# -- references to torch's checkpoint --------------------------------------------------------


def _rerouted(node: ast.AST, purity: Purity) -> Iterator[FoundRegion]:
    for inner in walk(node):
        if id(inner) in purity.scopes:
            if isinstance(inner, ast.Name | ast.Attribute) and _is_checkpoint(inner, purity):
                yield FoundRegion(RegionKind.REROUTED, (inner,))
            elif isinstance(inner, ast.Call) and _may_be_checkpoint(inner.func, purity):
                yield FoundRegion(RegionKind.REROUTED, (inner.func,))


def _is_checkpoint(node: ast.Name | ast.Attribute, purity: Purity) -> bool:
    """Whether an expression is torch's checkpoint, however it was imported."""
    if not isinstance(node.ctx, ast.Load):
        return False
    if isinstance(node, ast.Attribute) and node.attr == "apply":
        owners = purity.resolve(node.value)
        return any(owner is torch_checkpointing.CheckpointFunction for owner in owners)
    return any(map(is_torch_checkpoint, purity.resolve(node)))


def _may_be_checkpoint(callee: ast.expr, purity: Purity) -> bool:
    """Whether something called has such a name, and is not known yet."""
    if not isinstance(callee, ast.Attribute) or "checkpoint" not in callee.attr.lower():
        return False
    return purity.resolve(callee) in ([], [None])


def runs_checkpoint(node: ast.AST, purity: Purity) -> bool:
    """Whether torch's checkpoint is called somewhere in a piece of text."""
    return any(True for _ in _rerouted(node, purity))


def is_torch_checkpoint(value: Any) -> bool:
    """Whether a value is torch's checkpoint, or a partial of it."""
    while isinstance(value, functools.partial):
        value = value.func
    return any(value is known for known in _CHECKPOINTS)


# -- loops ----------------------------------------------------------------------------------


@dataclass(eq=False)
class _Finder:
    function: ast.AST
    purity: Purity
    found: list[FoundRegion] = field(default_factory=list)

    def block(self, statements: Sequence[Any], *, looped: bool) -> None:
        """Look at a list of statements, or at an expression that stands for one."""
        run: list[ast.Assign] = []
        for statement in statements:
            if looped and self._is_outlinable(statement):
                run.append(statement)
                continue
            self._outline(run)
            run = []
            self._statement(statement, looped=looped)
        self._outline(run)

    def _statement(self, statement: ast.AST, *, looped: bool) -> None:
        if isinstance(statement, ast.ClassDef):
            return
        if isinstance(statement, FUNCTIONS):
            body = statement.body if isinstance(statement.body, list) else [statement.body]
            self.block(body, looped=False)
            return
        inner = looped or isinstance(statement, _LOOPS)
        for name, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.block(value, looped=inner and not (name == "orelse" and not looped))
            else:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.expr):
                        self._expression(child, looped=looped)
                    elif isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                        self._statement(child, looped=looped)

    def _expression(self, node: ast.expr, *, looped: bool) -> None:
        if isinstance(node, ast.JoinedStr) or id(node) not in self.purity.scopes:
            return
        if isinstance(node, ast.Lambda):
            self.block([node.body], looped=False)
            return
        if looped and self._region(node):
            return
        if isinstance(node, COMPREHENSIONS):
            self._comprehension(node, looped=looped)
            return
        if isinstance(node, ast.Call) and self.purity.resolve(node.func) == [map] and node.args:
            if self.purity.runs_module(ast.copy_location(ast.Call(node.args[0], [], []), node)):
                self.found.append(FoundRegion(RegionKind.MAPPED, (node.args[0],)))
        for child in children(node):
            child = child.value if isinstance(child, ast.keyword) else child
            if isinstance(node, ast.Call) and child is node.func:
                child = _object_of(child)
            if isinstance(child, ast.expr):
                self._expression(child, looped=looped)

    def _comprehension(self, node: Any, *, looped: bool) -> None:
        for generator in node.generators:
            self._expression(generator.iter, looped=looped)
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for element in elements:
            self._expression(element, looped=True)

    # -- regions ----------------------------------------------------------------------------

    def _candidates(self, node: ast.AST) -> list[ast.Call]:
        return [
            inner
            for inner in walk(node)
            if isinstance(inner, ast.Call)
            and id(inner) in self.purity.scopes
            and self.purity.runs_module(inner)
            and not runs_checkpoint(inner.func, self.purity)
            and not _may_be_checkpoint(inner.func, self.purity)
        ]

    def _is_outlinable(self, statement: ast.AST) -> bool:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return False
        scope = self.purity.scopes.get(id(target))
        own = scope is not None and scope.holder(target.id) is scope
        return (
            own
            and self.purity.is_pure(statement.value)
            and not runs_checkpoint(statement, self.purity)
        )

    def _outline(self, run: Sequence[ast.Assign]) -> None:
        """Make one region of consecutive assignments, as far as they compute something."""
        kept = list(run)
        while kept and not _computes(kept[0].value):
            kept.pop(0)
        while kept and not _computes(kept[-1].value):
            kept.pop()
        if not any(self._candidates(statement) for statement in kept):
            return
        if len(kept) == 1:
            self._region(kept[0].value)
            return
        bound = [statement.targets[0].id for statement in kept]  # type: ignore[attr-defined]
        parameters = self._names_read(kept)
        elsewhere = self._names_read_elsewhere(kept)
        results = dict.fromkeys(n for n in bound if n in elsewhere or n in parameters)
        if not results:
            return
        callees = self._callees(kept, frozenset(bound))
        self.found.append(
            FoundRegion(RegionKind.OUTLINED, tuple(kept), parameters, tuple(results), callees)
        )

    def _region(self, node: ast.expr) -> bool:
        """Make a region of an expression, if it runs a module; else tell that it is none."""
        candidates = self._candidates(node)
        if not candidates or runs_checkpoint(node, self.purity):
            return False
        alone = len(candidates) == 1 and not _computes_around(node)
        if alone and not _has_bare_generator(candidates[0]):
            self.found.append(FoundRegion(RegionKind.CALL, (candidates[0],)))
            return True
        if self.purity.is_pure(node):
            callees = self._callees([node], frozenset())
            read = self._names_read([node])
            self.found.append(FoundRegion(RegionKind.OUTLINED, (node,), read, (), callees))
            return True
        if not isinstance(node, ast.Call) or node not in candidates or _has_bare_generator(node):
            return False
        self.found.append(FoundRegion(RegionKind.CALL, (node,)))
        for child in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._expression(child, looped=True)
        return True

    def _callees(self, nodes: Sequence[ast.AST], bound: frozenset[str]) -> tuple[ast.expr, ...]:
        """What the candidates call, as far as evaluating it early is the same."""
        found = []
        for call in (call for node in nodes for call in self._candidates(node)):
            inner = list(walk(call.func))
            names = {name.id for name in inner if isinstance(name, ast.Name)}
            simple = not any(isinstance(part, ast.Call) for part in inner)
            if simple and not names & bound and call.func.lineno == call.func.end_lineno:
                found.append(call.func)
        return tuple(found)

    def _names_read(self, nodes: Sequence[ast.AST]) -> tuple[str, ...]:
        """Local names that nodes read before they bind them."""
        inside = {id(inner) for node in nodes for inner in walk(node)}
        bound: set[str] = set()
        found: dict[str, None] = {}
        for node in nodes:
            value = node.value if isinstance(node, ast.Assign) else node
            for inner in walk(value):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                    holder = self._holder(inner)
                    if holder is not None and id(holder.node) not in inside:
                        if inner.id not in bound:
                            found[inner.id] = None
            if isinstance(node, ast.Assign):
                bound.add(node.targets[0].id)  # type: ignore[attr-defined]
        return tuple(found)

    def _holder(self, name: ast.Name) -> Scope | None:
        scope = self.purity.scopes.get(id(name))
        return None if scope is None else scope.holder(name.id)

    def _names_read_elsewhere(self, nodes: Sequence[ast.AST]) -> set[str]:
        inside = {id(inner) for node in nodes for inner in walk(node)}
        everything = list(walk(self.function))
        updated = {id(node.target) for node in everything if isinstance(node, ast.AugAssign)}
        return {
            inner.id
            for inner in everything
            if isinstance(inner, ast.Name)
            and (not isinstance(inner.ctx, ast.Store) or id(inner) in updated)
            and id(inner) not in inside
        }


def _object_of(callee: ast.AST) -> ast.AST:
    """The object whose method is called; a method is no result that a region could return."""
    while isinstance(callee, ast.Attribute):
        callee = callee.value
    return callee


def _computes(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Call | ast.BinOp) for inner in walk(node))


def _computes_around(node: ast.AST) -> bool:
    """Whether an expression with one call computes anything else."""
    return sum(isinstance(inner, ast.Call | ast.BinOp) for inner in walk(node)) > 1


def _has_bare_generator(call: ast.Call) -> bool:
    return len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp)
