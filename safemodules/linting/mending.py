"""Edits in idiomatic form: ``x += y`` becomes ``x = x + y``.

The edits of a conversion call helpers that keep dtype, strides and random numbers whatever
the operands are. Here plain code must do, so an edit is safe only if nobody else holds the
tensor and the operands cannot promote its dtype: numbers, and operators that take nothing
else. Where backward of the in-place form rounds otherwise, or random numbers are drawn, the
edit is not safe either.
"""

import ast
import functools
from collections.abc import Mapping, Sequence

from safemodules.linting.findings import Fix
from safemodules.mutation import nodes
from safemodules.mutation.found import FoundSite
from safemodules.mutation.operators import (
    AUGMENTED_SYMBOLS,
    RANDOM_FUNCTIONS,
    function_twins,
    method_twin,
)
from safemodules.mutation.resolution import Context, is_hashable, resolve
from safemodules.mutation.scopes import Scope
from safemodules.mutation.sites import SiteKind
from safemodules.mutation.source import SourceFile
from safemodules.mutation.values import kind_of
from safemodules.rewriting.edits import Edit
from safemodules.rewriting.out_of_place import RESULT_FUNCTIONS

#: Methods whose backward rounds otherwise, or that draw numbers.
_NOT_EXACT = frozenset({"celu_", "elu_", "selu_", "rrelu_", "dropout_", "bernoulli_"})
#: Methods that take a tensor which decides nothing but where to write.
_MASKED = frozenset({"masked_fill_"})
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List, ast.Tuple)
_TIGHT = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult, ast.Pow)


class Mender:
    """Makes the fixes of the sites of one function.

    Args:
        file: the file.
        node: the definition of the function.
        context: what is known of it.
        sites: its sites.
        parents: the node around each node.
    """

    def __init__(
        self,
        file: SourceFile,
        node: ast.AST,
        context: Context,
        sites: Sequence[FoundSite],
        parents: Mapping[int, ast.AST],
    ) -> None:
        self.file = file
        self.node = node
        self.context = context
        self.sites: Mapping[int, FoundSite] = {id(site.node): site for site in sites}
        self.parents = parents

    def fix(self, site: FoundSite, neutral: Mapping[int, bool]) -> Fix | None:
        """How a site is mended, ``None`` if it is not.

        Args:
            site: a site.
            neutral: for each site by key, whether nobody else holds its tensor.
        """
        chain = self._chain(site)
        edits: list[Edit] = []
        safe = True
        for link in chain:
            found = self._own_edits(link)
            if found is None:
                return None
            edits += found
            safe = safe and neutral.get(link.key, False) and self._keeps_dtype(link)
            safe = safe and not self._is_without_gradients(link)
        outermost = chain[-1]
        if outermost.kind is not SiteKind.AUGMENTED:
            rebinding = self._rebinding(outermost)
            if rebinding is None:
                return None
            edits += rebinding
        return Fix(tuple(edits), safe)

    def _chain(self, site: FoundSite) -> list[FoundSite]:
        """In-place methods called one on the result of the other, from the inside out."""
        chain = [site]
        while chain[0].kind is SiteKind.METHOD:
            inner = self.sites.get(id(chain[0].node.func.value))  # type: ignore[union-attr]
            if inner is None or not isinstance(inner.node, ast.Call):
                break
            chain.insert(0, inner)
        while True:
            attribute = self.parents.get(id(chain[-1].node))
            outer = self.sites.get(id(self.parents.get(id(attribute))))
            if outer is None or outer.kind is not SiteKind.METHOD or outer is chain[-1]:
                return chain
            if getattr(outer.node, "func", None) is not attribute:
                return chain
            chain.append(outer)

    # -- edits --------------------------------------------------------------------------

    def _own_edits(self, site: FoundSite) -> list[Edit] | None:
        """What changes at the operator itself."""
        if site.place is None or site.place.accessors:
            return None
        if site.kind is SiteKind.AUGMENTED:
            return self._augmented(site)
        assert isinstance(site.node, ast.Call)
        if site.kind is SiteKind.METHOD:
            return self._renamed(site.node) if method_twin(site.op) is not None else None
        if site.kind is SiteKind.FUNCTION:
            is_attribute = isinstance(site.node.func, ast.Attribute)
            return self._renamed(site.node) if is_attribute and self._has_twin(site.node) else None
        if site.kind is SiteKind.FUNCTION_FLAG and isinstance(site.target, ast.Constant):
            return _listed(remove_argument(self.file, site.node, site.target))
        if site.kind is SiteKind.OUT and isinstance(site.parent, ast.Expr):
            return _listed(remove_argument(self.file, site.node, site.target))
        return None

    def _has_twin(self, node: ast.Call) -> bool:
        assert isinstance(node.func, ast.Attribute)
        holders = resolve(node.func.value, self._scope_of(node), self.context)
        return len(holders) == 1 and hasattr(holders[0], node.func.attr[:-1])

    def _scope_of(self, node: ast.Call) -> Scope:
        return self.sites[id(node)].scope

    def _augmented(self, site: FoundSite) -> list[Edit]:
        node = site.node
        assert isinstance(node, ast.AugAssign) and site.place is not None
        symbol = AUGMENTED_SYMBOLS[site.op]
        start = self.file.data.index(symbol.encode(), self.file.end(node.target))
        end = start + len(symbol)
        edits = [Edit(start, end, (f"= {site.place.root} {symbol[:-1]}",))]
        first, last = self.file.start(node.value), self.file.end(node)
        bracketed = b"(" in self.file.data[end:first]
        if not bracketed and _needs_brackets(node.op, node.value):
            edits += [Edit(first, first, ("(",)), Edit(last, last, (")",))]
        return edits

    def _renamed(self, node: ast.Call) -> list[Edit]:
        """Leave the underscore out."""
        end = self.file.end(node.func)
        return [Edit(end - 1, end, ("",))]

    def _rebinding(self, site: FoundSite) -> list[Edit] | None:
        """What binds the written name to the result."""
        assert site.place is not None
        name, parent = site.place.root, self.parents.get(id(site.node))
        start = self.file.start(site.node)
        if name is None:
            return [] if not isinstance(parent, ast.Expr) else None
        if isinstance(parent, ast.Expr):
            return [Edit(start, start, (f"{name} = ",))]
        if isinstance(parent, ast.Return):
            return []
        if isinstance(parent, ast.Assign):
            targets = [target for target in parent.targets if isinstance(target, ast.Name)]
            if len(targets) == len(parent.targets):
                if any(target.id == name for target in targets) or self._is_last_use(site, name):
                    return []
                return [Edit(start, start, (f"{name} = ",))]
        return [] if self._is_last_use(site, name) else None

    def _is_last_use(self, site: FoundSite, name: str) -> bool:
        """Whether nothing behind a site, or earlier in a loop around it, mentions a name."""
        position = site.node.end_lineno or 0, site.node.end_col_offset or 0
        current: ast.AST | None = site.node
        while current is not None and current is not self.node:
            if isinstance(current, ast.For | ast.While | ast.AsyncFor | ast.Try | ast.Lambda):
                return False
            if isinstance(current, ast.comprehension | ast.ListComp | ast.GeneratorExp):
                return False
            current = self.parents.get(id(current))
        return not any(
            isinstance(inner, ast.Name)
            and inner.id == name
            and (inner.lineno, inner.col_offset) >= position
            for inner in nodes.walk(self.node)
        )

    # -- what is safe -------------------------------------------------------------------

    def _keeps_dtype(self, site: FoundSite) -> bool:
        """Whether the result has the dtype of the tensor, and backward the same bits."""
        node = site.node
        if isinstance(node, ast.AugAssign):
            return self._is_number(node.value, site)
        assert isinstance(node, ast.Call)
        if site.kind is SiteKind.METHOD:
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if site.op in _MASKED:
                arguments = arguments[1:]
            return site.op not in _NOT_EXACT and all(self._is_number(a, site) for a in arguments)
        called = resolve(node.func, site.scope, self.context)
        function = called[0] if len(called) == 1 and is_hashable(called[0]) else None
        if function is None or function in RESULT_FUNCTIONS or function in RANDOM_FUNCTIONS:
            return False
        if site.kind is SiteKind.FUNCTION:
            return function in function_twins() and all(
                self._is_number(argument, site)
                for argument in [*node.args[1:], *(keyword.value for keyword in node.keywords)]
            )
        return site.kind is SiteKind.FUNCTION_FLAG and function.__name__ != "threshold"

    def _is_without_gradients(self, site: FoundSite) -> bool:
        """Whether gradients may be off at a site, where an overwritten tensor keeps its graph.

        Out of place, the result of an operator under ``no_grad`` has none.
        """
        current = self.parents.get(id(site.node))
        while current is not None:
            if isinstance(current, ast.With | ast.AsyncWith):
                if not all(_keeps_gradients(item.context_expr) for item in current.items):
                    return True
            current = self.parents.get(id(current))
        return self._switches_gradients

    @functools.cached_property
    def _switches_gradients(self) -> bool:
        return any(
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "set_grad_enabled"
            for node in self.parents.values()
        )

    def _is_number(self, node: ast.expr, site: FoundSite) -> bool:
        if isinstance(node, ast.Constant):
            return isinstance(node.value, bool | int | float | str | type(None))
        return kind_of(node, site.scope, self.context) == "number"


def _keeps_gradients(context: ast.expr) -> bool:
    """Whether a context is one that is known to leave gradients as they are."""
    if not isinstance(context, ast.Call):
        return False
    name = getattr(context.func, "attr", getattr(context.func, "id", ""))
    return name in ("autocast", "record_function", "profile", "sdpa_kernel")


def _needs_brackets(op: ast.operator, value: ast.expr) -> bool:
    """Whether ``x op value`` needs brackets around the value."""
    if isinstance(value, ast.Constant):
        return False
    if isinstance(value, ast.UnaryOp):
        return not isinstance(op, ast.Add | ast.Sub) or isinstance(value.op, ast.Not)
    if isinstance(value, _ATOMS):
        return isinstance(value, ast.Tuple)
    is_sum = isinstance(op, ast.Add | ast.Sub)
    return not (is_sum and isinstance(value, ast.BinOp) and isinstance(value.op, _TIGHT))


def _listed(edit: Edit | None) -> list[Edit] | None:
    return None if edit is None else [edit]


def remove_argument(file: SourceFile, node: ast.Call, value: ast.expr | None) -> Edit | None:
    """Leave an argument of a call out; where that tears lines apart, a flag becomes ``False``."""
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    starts = [file.start(each) for each in (*node.args, *node.keywords)]
    index = next(i for i, argument in enumerate(values) if argument is value)
    start, end = starts[index], file.end(values[index])
    is_keyword, is_last = index >= len(node.args), index == len(values) - 1
    off = Edit(file.start(values[index]), end, ("False",))
    if not is_keyword and not is_last:
        return off
    if index == 0:  # the comma behind it goes with it
        first = file.data.index(b"(", file.end(node.func)) + 1
        last = file.end(node) - 1 if is_last else starts[1]
    else:
        first, last = file.end(values[index - 1]), end
        closing = file.data.rfind(b")", first, start)  # of brackets around the argument before
        first = first if closing < 0 else closing + 1
    span = file.data[first:last]
    if b"\n" in span or b"#" in span or b"\r" in span:
        return off if isinstance(value, ast.Constant) else None
    return Edit(first, last, ("",))
