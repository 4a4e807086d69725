"""Find, in the text of one function, where tensors are overwritten and what is called.

The finder says what stands there and whether it *can* be rewritten; whether it *should* be
is decided elsewhere.
"""

import ast
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from safemodules.mutation import nodes
from safemodules.mutation.found import Findings, FoundSite, Obstacle, Place, Reference
from safemodules.mutation.operators import (
    AUGMENTED,
    AUGMENTED_SYMBOLS,
    flagged_functions,
    function_twins,
    method_kind,
)
from safemodules.mutation.resolution import (
    Context,
    is_hashable,
    is_self,
    next_in_mro,
    resolve,
)
from safemodules.mutation.scopes import Scope, walk_scopes
from safemodules.mutation.sites import SiteKind
from safemodules.mutation.values import holds_entries, is_plain_value

# Attributes and methods that hand out the same storage: what is written there is meant to be
# seen through the tensor they were taken from, which no name of ours could be rebound to.
VIEW_ATTRIBUTES = frozenset({"T", "H", "mT", "mH", "real", "imag"})
VIEW_METHODS = frozenset(
    """adjoint as_strided chunk conj contiguous cpu cuda detach diagonal double dsplit expand
    expand_as flatten float half hsplit long moveaxis movedim narrow permute ravel reshape
    reshape_as select slice_scatter split split_with_sizes squeeze swapaxes swapdims t
    tensor_split to transpose type type_as unbind unflatten unfold unsqueeze unsafe_chunk
    unsafe_split view view_as vsplit""".split()
)
BYPASS_ATTRIBUTES = frozenset({"data", "grad"})


def find(node: ast.AST, context: Context, *, references: bool = True) -> Findings:
    """Find sites and references in a function.

    Args:
        node: the definition of the function, nested functions included.
        context: the function and the objects it runs on.
        references: look for what may be a function, too.

    Returns:
        Sites in the order of the text, and everything that may be a function.
    """
    return _Finder(context, references).run(node)


def _super_call(node: ast.expr, scope: Scope) -> ast.Call | None:
    """The call of ``super`` that an expression is, or that a name is bound to."""
    if isinstance(node, ast.Name):
        holder = scope.holder(node.id)
        bindings = holder.bindings.get(node.id, []) if holder is not None else []
        if len(bindings) != 1 or not isinstance(bindings[0], ast.Call):
            return None
        return _super_call(bindings[0], scope)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
        return node
    return None


class _Finder:
    def __init__(self, context: Context, references: bool) -> None:
        self.context = context
        self.references = references
        self.found = Findings()
        self.in_place: dict[int, FoundSite] = {}

    def run(self, node: ast.AST) -> Findings:
        parents = nodes.parents_of(node)
        visited = list(walk_scopes(node, self.context.scope_of(node)))
        # inner calls first: an outer one asks whether its receiver is itself in place
        for current, scope in sorted(visited, key=lambda pair: _position(pair[0])):
            if isinstance(current, ast.AugAssign):
                self._augmented(current, scope)
            elif isinstance(current, ast.Assign):
                self._assign(current, scope)
            elif isinstance(current, ast.Call):
                self._call(current, scope, parents.get(id(current)))
            elif isinstance(current, ast.Subscript) and isinstance(current.ctx, ast.Store):
                self._other_target(current, scope, parents)
            if self.references and isinstance(current, ast.Name | ast.Attribute):
                self._reference(current, scope, parents)
        self.found.sites.sort(key=lambda site: (site.node.lineno, site.node.col_offset))
        return self.found

    def _add(self, site: FoundSite) -> None:
        self.found.sites.append(site)
        self.in_place[id(site.node)] = site

    # -- statements ---------------------------------------------------------------------

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        op = AUGMENTED.get(type(node.op))
        if op is None or is_plain_value(node, scope, self.context):
            return
        place = self._place(node.target, scope, rebind=True, attributes=True)
        self._add(_site(node, SiteKind.AUGMENTED, op, scope, place, target=node.target))

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        for target in node.targets:
            # no tensor takes a list, a tuple or a dict for its elements
            if isinstance(target, ast.Subscript) and holds_entries(node.value, scope, self.context):
                continue
            for item in _item_targets(target):
                if is_plain_value(item, scope, self.context):
                    continue
                place = self._place(item, scope, rebind=True, attributes=True)
                if _is_bound_later(item, node):
                    place = Obstacle.TARGET
                self._add(_site(node, SiteKind.ITEM, "setitem", scope, place, target=item))

    def _other_target(self, node: ast.Subscript, scope: Scope, parents: dict[int, ast.AST]) -> None:
        """Item assignments by ``for``, ``with`` or an annotated assignment: seen, not rewritten."""
        around: ast.AST | None = parents.get(id(node))
        while isinstance(around, ast.Tuple | ast.List | ast.Starred):
            around = parents.get(id(around))
        if isinstance(around, ast.Assign | ast.AugAssign) or around is None:
            return
        if not isinstance(around, ast.For | ast.AsyncFor | ast.withitem | ast.AnnAssign):
            return
        assign = ast.copy_location(ast.Assign([node], ast.Constant(None)), node)
        self._add(_site(assign, SiteKind.ITEM, "setitem", scope, Obstacle.TARGET, target=node))

    # -- calls --------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: Scope, parent: ast.AST | None) -> None:
        values = resolve(node.func, scope, self.context)
        function = values[0] if len(values) == 1 and is_hashable(values[0]) else None
        if function is not None and function in function_twins():
            place = self._first_argument(node, scope)
            name = getattr(function, "__name__", "function")
            self._add(_site(node, SiteKind.FUNCTION, name, scope, place, parent=parent))
        elif function is not None and function in flagged_functions():
            self._flagged(node, scope, parent, function, flagged_functions()[function])
        elif any(keyword.arg == "out" for keyword in node.keywords):
            self._out(node, scope, parent, values)
        elif isinstance(node.func, ast.Attribute) and method_kind(node.func.attr) is not None:
            if not self._not_a_tensor(node.func.value, scope):
                place = self._place(node.func.value, scope, rebind=not _is_statement(parent))
                self._add(_site(node, SiteKind.METHOD, node.func.attr, scope, place, parent=parent))

    def _not_a_tensor(self, receiver: ast.expr, scope: Scope) -> bool:
        """Whether the receiver is known to be something else: ``nn.init``, a module, a list."""
        values = resolve(receiver, scope, self.context)
        return bool(values) and not any(isinstance(value, torch.Tensor) for value in values)

    def _flagged(
        self, node: ast.Call, scope: Scope, parent: ast.AST | None, function: Any, position: int
    ) -> None:
        flag: ast.expr | None = None
        slot: int | str = "inplace"
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            return
        if len(node.args) > position:
            flag, slot = node.args[position], position
        for keyword in node.keywords:
            if keyword.arg == "inplace":
                flag = keyword.value
        if flag is None or (isinstance(flag, ast.Constant) and flag.value is not True):
            return
        place = self._first_argument(node, scope)
        if not isinstance(flag, ast.Constant) and not isinstance(place, Obstacle):
            values = resolve(flag, scope, self.context)
            if values and not any(values):
                return  # the flag of every living module is off
            if place.root is not None and (
                not isinstance(flag, ast.Name | ast.Attribute) or node.lineno != node.end_lineno
            ):
                place = Obstacle.FLAG
        name = f"{function.__name__}_"
        kind = SiteKind.FUNCTION_FLAG
        self._add(_site(node, kind, name, scope, place, parent=parent, slot=slot, target=flag))

    def _out(self, node: ast.Call, scope: Scope, parent: ast.AST | None, values: list[Any]) -> None:
        owners = {_top_module(value) for value in values}
        if not values or owners - {"torch"}:
            return
        out = next(keyword.value for keyword in node.keywords if keyword.arg == "out")
        if isinstance(out, ast.Constant):
            return
        place: Place | Obstacle
        if isinstance(out, ast.Tuple | ast.List):
            place = Obstacle.ARGUMENTS
        else:
            place = self._place(out, scope, rebind=True)
        if isinstance(place, Place) and (place.root is None or place.accessors):
            place = Obstacle.ARGUMENTS
        name = getattr(values[0], "__name__", "function")
        self._add(
            _site(node, SiteKind.OUT, name, scope, place, parent=parent, slot="out", target=out)
        )

    def _first_argument(self, node: ast.Call, scope: Scope) -> "Place | Obstacle":
        if not node.args or isinstance(node.args[0], ast.Starred):
            return Obstacle.ARGUMENTS
        return self._place(node.args[0], scope, rebind=True)

    # -- what is written ----------------------------------------------------------------

    def _place(
        self, node: ast.expr, scope: Scope, *, rebind: bool, attributes: bool = False
    ) -> "Place | Obstacle":
        """What an expression in the place of the written tensor stands for.

        Args:
            node: the receiver, first argument or assignment target.
            scope: where it stands.
            rebind: the result is used where it stands, so subscripts are evaluated again.
            attributes: attributes may be assigned to, as in an assignment statement.
        """
        accessors: list[ast.Subscript | ast.Attribute] = []
        current = node
        while isinstance(current, ast.Subscript | ast.Attribute):
            accessors.insert(0, current)
            current = current.value
        if isinstance(current, ast.NamedExpr) and not accessors:
            current = current.target
        if isinstance(current, ast.Name):
            return self._named_place(current.id, accessors, scope, rebind, attributes)
        if any(isinstance(a, ast.Attribute) and a.attr in BYPASS_ATTRIBUTES for a in accessors):
            return Obstacle.BYPASS
        if accessors:
            return Obstacle.VIEW
        return self._temporary(current)

    def _named_place(
        self,
        name: str,
        accessors: list[ast.Subscript | ast.Attribute],
        scope: Scope,
        rebind: bool,
        attributes: bool,
    ) -> "Place | Obstacle":
        names = [a.attr for a in accessors if isinstance(a, ast.Attribute)]
        obstacle = None
        if BYPASS_ATTRIBUTES.intersection(names):
            obstacle = Obstacle.BYPASS
        elif is_self(name, scope, self.context):
            obstacle = Obstacle.STATE
        elif VIEW_ATTRIBUTES.intersection(names):
            obstacle = Obstacle.VIEW
        elif names and not attributes:
            obstacle = Obstacle.ATTRIBUTE
        elif not scope.rebindable(name):
            obstacle = Obstacle.NAME
        elif accessors and rebind and not attributes and not all(map(_is_pure_key, accessors)):
            obstacle = Obstacle.KEYS
        return obstacle or Place(name, tuple(accessors))

    def _temporary(self, node: ast.expr) -> "Place | Obstacle":
        """A value without a name: in-place chains have that of the inner site's tensor."""
        inner = self.in_place.get(id(node))
        if inner is not None:
            if inner.place is None or inner.place.accessors:
                return inner.obstacle or Obstacle.INNER
            return inner.place
        if isinstance(node, ast.IfExp | ast.BoolOp):
            return Obstacle.CHOICE
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in VIEW_METHODS:
                return Obstacle.VIEW
        return Place(None)

    # -- what is called -----------------------------------------------------------------

    def _reference(
        self, node: ast.Name | ast.Attribute, scope: Scope, parents: dict[int, ast.AST]
    ) -> None:
        parent = parents.get(id(node))
        if not isinstance(node.ctx, ast.Load):
            return
        if isinstance(node, ast.Attribute):
            self.found.attributes.add(node.attr)
            call = _super_call(node.value, scope)
            if call is not None:
                self.found.references.append(self._super_reference(node, call, scope))
                return
        if isinstance(parent, ast.Attribute):
            return
        values = resolve(node, scope, self.context)
        if values and not any(isinstance(value, torch.Tensor | nn.Module) for value in values):
            self.found.references.append(Reference(node, scope, tuple(values)))
        elif not values and isinstance(node, ast.Attribute):
            self.found.references.append(Reference(node, scope))

    def _super_reference(self, node: ast.Attribute, call: ast.Call, scope: Scope) -> Reference:
        """``super().name``; with the name of another class, the function that it finds."""
        if not call.args:
            return Reference(node, scope, is_super=True)
        if self.context.function is None:  # source alone
            return Reference(node, scope)
        function, owner = self.context.function, self.context.owner
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        after = resolve(call.args[0], scope, self.context)
        if len(after) != 1 or not isinstance(after[0], type) or owner is None:
            return Reference(node, scope)
        if "__class__" in cells and after[0] is cells["__class__"].cell_contents:
            return Reference(node, scope, is_super=True)
        target = next_in_mro(owner, after[0], node.attr)
        return Reference(node, scope, () if target is None else (target,))


def _site(
    node: ast.AugAssign | ast.Assign | ast.Call,
    kind: SiteKind,
    op: str,
    scope: Scope,
    place: Place | Obstacle,
    **rest: Any,
) -> FoundSite:
    if isinstance(place, Obstacle):
        return FoundSite(node, kind, op, scope, None, place, **rest)
    return FoundSite(node, kind, op, scope, place, None, **rest)


def _position(node: ast.AST) -> tuple[int, int, int, int]:
    """Sort key that puts inner expressions before those that contain them."""
    if not hasattr(node, "end_lineno"):
        return (0, 0, 0, 0)
    return (node.end_lineno, node.end_col_offset, -node.lineno, -node.col_offset)  # type: ignore[attr-defined]


def _item_targets(target: ast.expr) -> Iterator[ast.Subscript]:
    if isinstance(target, ast.Subscript):
        yield target
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _item_targets(element)
    elif isinstance(target, ast.Starred):
        yield from _item_targets(target.value)


def _is_bound_later(item: ast.Subscript, node: ast.Assign) -> bool:
    """Whether an assignment, behind ``x[i]``, binds a name in it: ``x[i], i = 1, 2``."""
    read = {inner.id for inner in nodes.walk(item) if isinstance(inner, ast.Name)}
    position = item.lineno, item.col_offset
    return any(
        isinstance(name, ast.Name)
        and isinstance(name.ctx, ast.Store)
        and name.id in read
        and (name.lineno, name.col_offset) > position
        for target in node.targets
        for name in nodes.walk(target)
    )


def _is_statement(parent: ast.AST | None) -> bool:
    return isinstance(parent, ast.Expr)


def has_effects(node: ast.AST) -> bool:
    """Whether evaluating an expression twice, or at another time, could be noticed."""
    effects = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return any(isinstance(inner, effects) for inner in nodes.walk(node))


def _is_pure_key(accessor: ast.Subscript | ast.Attribute) -> bool:
    return isinstance(accessor, ast.Attribute) or not has_effects(accessor.slice)


def _top_module(value: Any) -> str:
    module = getattr(value, "__module__", None)
    if not isinstance(module, str):  # built-in functions of torch give none
        known = getattr(torch, getattr(value, "__name__", ""), None) is value
        return "torch" if known else "unknown"
    return module.partition(".")[0]


def describe(site: FoundSite) -> str:
    """The operator in the words of the source."""
    return AUGMENTED_SYMBOLS.get(site.op, site.op)
