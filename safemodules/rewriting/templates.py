"""The edit for each kind of site, and for calls that lead to edited functions."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from safemodules.mutation.finder import has_effects
from safemodules.mutation.found import FoundSite, Place
from safemodules.mutation.resolution import mangled
from safemodules.mutation.sites import SiteKind
from safemodules.mutation.source import SourceFile
from safemodules.rewriting.edits import Breaks, Edit, Kept, Part

PREFIX = "_sm_"
# A parameter of every lambda that an edit adds.
OUTLINED = f"{PREFIX}outlined_here"


@dataclass(frozen=True)
class Templates:
    """Makes the edits of one source file.

    Attributes:
        file: the file.
        owned: what a site computes is copied, since backward has saved it.
    """

    file: SourceFile
    owned: bool = False

    def edit(self, site: FoundSite, class_name: str | None) -> list[Edit]:
        """Edits that make one site out of place.

        Args:
            site: a site without an obstacle.
            class_name: the class whose private names are mangled there.
        """
        assert site.place is not None
        return list(_MAKERS[site.kind](self, site, site.place, class_name))

    def twin(self, node: ast.expr) -> Edit:
        """Wrap a callee in the lookup of its edited twin."""
        start, end = self.file.start(node), self.file.end(node)
        return Edit(start, end, (f"{PREFIX}twin(", Kept(start, end), ")"))

    def own(self, node: ast.expr) -> Edit:
        """Copy the value of an expression."""
        return self._wrapped("own", node)

    def views(self, node: ast.expr) -> Edit:
        """Make views that can be written, where an expression has made several at once."""
        return self._wrapped("views", node)

    def _wrapped(self, helper: str, node: ast.expr) -> Edit:
        start, end = self.file.start(node), self.file.end(node)
        return Edit(start, end, (f"{PREFIX}{helper}(", Kept(start, end), ")"))

    def through(self, site: FoundSite) -> Edit:
        """Compute what a site writes from copies, and write it: the tensor stays the same one."""
        node, start, end = site.node, self.file.start(site.node), self.file.end(site.node)
        if isinstance(node, ast.AugAssign):
            target, value = self._kept(node.target), self._kept(node.value)
            gap = self._gap(target.end, value.start)
            opening = f" = {PREFIX}t_{site.op}("
            return Edit(start, end, (target, opening, target, ", (", *gap, value, "))"))
        assert isinstance(node, ast.Call)
        if site.kind is SiteKind.FUNCTION:
            return self.through_call(node, "function")
        if site.kind is SiteKind.FUNCTION_FLAG:
            slot = site.slot if isinstance(site.slot, int) else None
            return self.through_call(node, "flagged", f"{slot}, ")
        assert isinstance(node.func, ast.Attribute)
        receiver, opening_at = node.func.value, self._opening(node)
        gap = self._gap(self.file.end(receiver), opening_at)
        comma = ", " if node.args or node.keywords else ""
        rest = Kept(opening_at + 1, end - 1)
        call = f"{PREFIX}t_{site.op}(("
        return Edit(start, end, (call, self._kept(receiver), ")", *gap, comma, rest, ")"))

    def through_call(self, node: ast.Call, helper: str = "call", extra: str = "") -> Edit:
        """Let a call overwrite a copy of its first argument, and write that to the argument."""
        start, end, opening = self.file.start(node), self.file.end(node), self._opening(node)
        head = (f"{PREFIX}through_{helper}(", self._kept(node.func), f", {extra}")
        gap = self._gap(self.file.end(node.func), opening)
        return Edit(start, end, (*head, *gap, Kept(opening + 1, end - 1), ")"))

    def super_call(self, node: ast.Attribute, self_name: str) -> Edit:
        """Replace ``super().name`` by the next class's edited function, bound."""
        start, end = self.file.start(node), self.file.end(node)
        call = f"{PREFIX}super_{node.attr}, {self_name})"
        return Edit(start, end, (f"{PREFIX}bind(", Breaks(start, end), call))

    # -- pieces -------------------------------------------------------------------------

    def _kept(self, node: ast.AST) -> Kept:
        return Kept(self.file.start(node), self.file.end(node))

    def _gap(self, start: int, end: int) -> tuple[Part, ...]:
        return (Breaks(start, end),) if start < end else ()

    def _place(self, place: Place, class_name: str | None) -> tuple[Part, ...]:
        """The expression that evaluates a place from its name outwards."""
        parts: list[Part] = [f"{PREFIX}at({place.root})"]
        for accessor in place.accessors:
            if isinstance(accessor, ast.Attribute):
                name = mangled(accessor.attr, class_name)
                parts = [f"{PREFIX}attribute(", *parts, f', "{name}")']
            else:
                parts = [f"{PREFIX}item(", *parts, ", ", *self._key(accessor), ")"]
        return tuple(parts)

    def _key(self, accessor: ast.Subscript) -> tuple[Part, ...]:
        """``_sm_key[...]`` with the text between the brackets."""
        start, end = self.file.end(accessor.value), self.file.end(accessor)
        opening = self.file.find(b"[", start)
        return (*self._gap(start, opening), f"{PREFIX}key", Kept(opening, end))

    # -- one maker per kind of site -----------------------------------------------------

    def augmented(self, site: FoundSite, place: Place, class_name: str | None) -> Iterator[Edit]:
        """``x += v`` becomes ``x = _sm_iadd(x, (v))``."""
        node = site.node
        assert isinstance(node, ast.AugAssign)
        start, end = self.file.start(node), self.file.end(node)
        value = self._kept(node.value)
        if place.accessors:
            opening = f"{place.root} = {PREFIX}{site.op}_at("
            target = self._place(place, class_name)
        else:
            opening, target = f"{place.root} = {PREFIX}{site.op}(", (str(place.root),)
        gap = self._gap(self.file.end(node.target), value.start)
        closing = "))"
        if self.owned and not place.accessors:
            opening, closing = opening.replace("= ", f"= {PREFIX}own(", 1), ")))"
        rest = (", (", *gap, value, *self._gap(value.end, end), closing)
        yield Edit(start, end, (opening, *target, *rest))

    def item(self, site: FoundSite, place: Place, class_name: str | None) -> Iterator[Edit]:
        """``x[k] = v`` becomes ``x = _sm_set((v), _sm_at(x), _sm_key[k])``."""
        node, target = site.node, site.target
        assert isinstance(node, ast.Assign) and isinstance(target, ast.Subscript)
        container = Place(place.root, place.accessors[:-1])
        holder = self._place(container, class_name)
        key = self._key(target)
        start, end = self.file.start(node), self.file.end(node)
        if node.targets != [target]:
            yield from self._item_of_many(node, target, place, holder, key)
            return
        value = self._kept(node.value)
        after = self._gap(value.end, end)
        before = self._gap(self.file.end(target), value.start)
        accessors = [a for a in place.accessors if isinstance(a, ast.Subscript)]
        if any(has_effects(a.slice) for a in accessors) or _may_bind(node.value, place.root):
            template = (f"{place.root} = {PREFIX}set((", value, "), ", *holder, ", ", *key, ")")
        else:
            template = (
                *(f"{place.root} = {PREFIX}set_late(", *holder, ", ", *key, ", ("),
                *(*before, value, *after, "))"),
            )
        yield Edit(start, end, template)

    def _item_of_many(
        self,
        node: ast.Assign,
        target: ast.Subscript,
        place: Place,
        holder: tuple[Part, ...],
        key: tuple[Part, ...],
    ) -> Iterator[Edit]:
        """One of several targets gets a name of its own, and is stored in a second statement."""
        end = self.file.end(node)
        name = f"{PREFIX}value_{self.file.start(target)}"
        yield Edit(self.file.start(target), self.file.end(target), (name,))
        store = (f"; {place.root} = {PREFIX}set({name}, ", *holder, ", ", *key, f"); del {name}")
        yield Edit(end, end, store, rank=self.file.start(target))

    def method(self, site: FoundSite, place: Place, class_name: str | None) -> Iterator[Edit]:
        """``h.mul_(v)`` becomes ``(h := _sm_m_mul_(h, v))``."""
        node = site.node
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        receiver = node.func.value
        opening = self._opening(node)
        rest = Kept(opening + 1, self.file.end(node) - 1)
        gap = self._gap(self.file.end(receiver), opening)
        comma = ", " if node.args or node.keywords else ""
        first: tuple[Part, ...] = (self._kept(receiver),)
        if not isinstance(receiver, ast.Name):
            first = ("(", *first, ")")
        name = f"{PREFIX}m_{site.op}"
        if place.accessors:
            kind = "ma" if isinstance(site.parent, ast.Expr) else "mp"
            first, name = self._place(place, class_name), f"{PREFIX}{kind}_{site.op}"
        call: tuple[Part, ...] = (f"{name}(", *first, *gap, comma, rest, ")")
        yield self._rebinding(site, place, call, class_name)

    def function(self, site: FoundSite, place: Place, class_name: str | None) -> Iterator[Edit]:
        """``F.elu_(h)`` becomes ``(h := _sm_function(F.elu_, h))``."""
        yield self._with_first_argument(site, place, class_name, "function", ())

    def flag(self, site: FoundSite, place: Place, class_name: str | None) -> Iterator[Edit]:
        """``F.relu(h, inplace=True)`` becomes ``(h := _sm_flagged(F.relu, None, h, ...))``."""
        slot = site.slot if isinstance(site.slot, int) else None
        constant = isinstance(site.target, ast.Constant)
        if not constant and isinstance(site.parent, ast.Expr):
            site = replace(site, parent=None)  # a conditional expression cannot hold a statement
        helper, extra = "flagged", f"{slot}, "
        if not constant and place.root is None:
            helper, extra = "flagged_if", f"{self._flag(site)}, {slot}, "
        edit = self._with_first_argument(site, place, class_name, helper, (extra,))
        if constant or place.root is None:
            yield edit
            return
        # only where the flag is set has the name been written
        node = site.node
        original = (f" if ({self._flag(site)}) else ", self._kept(node))
        yield Edit(edit.start, edit.end, ("(", *edit.template, *original, ")"))

    def _flag(self, site: FoundSite) -> str:
        """The text of a flag, or ``None``; one that a conversion has switched off was set."""
        target = site.target
        if not isinstance(target, ast.Name | ast.Attribute) or target.lineno != target.end_lineno:
            return "None"
        if isinstance(target, ast.Attribute) and target.attr == "inplace":
            return f"{PREFIX}was_set({self._text(target.value)}, {self._text(target)})"
        return self._text(target)

    def _text(self, node: ast.AST) -> str:
        return self.file.data[self.file.start(node) : self.file.end(node)].decode()

    def out(self, site: FoundSite, place: Place, class_name: str | None) -> Iterator[Edit]:
        """``torch.add(a, b, out=c)`` becomes ``(c := _sm_out(torch.add, a, b, out=c))``."""
        node = site.node
        assert isinstance(node, ast.Call)
        call = (
            *(f"{PREFIX}out(", self._kept(node.func), ", "),
            *(Kept(self._opening(node) + 1, self.file.end(node) - 1), ")"),
        )
        yield self._rebinding(site, place, call, class_name)

    def _with_first_argument(
        self,
        site: FoundSite,
        place: Place,
        class_name: str | None,
        helper: str,
        extra: tuple[Part, ...],
    ) -> Edit:
        node = site.node
        assert isinstance(node, ast.Call)
        opening, end = self._opening(node), self.file.end(node)
        arguments: tuple[Part, ...] = (Kept(opening + 1, end - 1),)
        if place.accessors:
            helper += "_at" if isinstance(site.parent, ast.Expr) else "_pair"
            behind = self._behind_first(node)
            arguments = (
                *(Breaks(opening, behind), *self._place(place, class_name)),
                Kept(behind, end - 1),
            )
        call: tuple[Part, ...] = (
            *(f"{PREFIX}{helper}(", self._kept(node.func), ", ", *extra, *arguments, ")"),
        )
        return self._rebinding(site, place, call, class_name)

    def _behind_first(self, node: ast.Call) -> int:
        """Offset of the comma after the first argument, or of the closing bracket."""
        end = self.file.end(node) - 1
        if len(node.args) + len(node.keywords) == 1:
            return end
        return self.file.find(b",", self.file.end(node.args[0]))

    def _opening(self, node: ast.Call) -> int:
        """Offset of the bracket that opens the arguments of a call."""
        return self.file.find(b"(", self.file.end(node.func))

    def _rebinding(
        self, site: FoundSite, place: Place, call: tuple[Part, ...], class_name: str | None
    ) -> Edit:
        """Bind the result of a call to the name that the original has written."""
        start, end = self.file.start(site.node), self.file.end(site.node)
        if self.owned and not place.accessors:
            call = (f"{PREFIX}own(", *call, ")")
        if place.root is None:
            return Edit(start, end, call)
        if isinstance(site.parent, ast.Expr):
            return Edit(start, end, (f"{place.root} = ", *call))
        if _is_target(site.parent, place):
            return Edit(start, end, call)
        if not place.accessors:
            return Edit(start, end, (f"({place.root} := ", *call, ")"))
        pair = f"{PREFIX}pair"  # the value and what the name stands for; empty afterwards
        opening, closing = f"(({place.root} := ({pair} := ", f").pop()), {pair}.pop())[1]"
        return Edit(start, end, (opening, *call, closing))


def _is_target(parent: ast.AST | None, place: Place) -> bool:
    """Whether the value is assigned to the written name anyway: ``x = F.relu_(x)``."""
    return (
        isinstance(parent, ast.Assign)
        and not place.accessors
        and [getattr(target, "id", None) for target in parent.targets] == [place.root]
    )


def _may_bind(node: ast.expr, name: str | None) -> bool:
    """Whether an expression binds a name, or may do so once a site in it is edited."""
    named = any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node))
    return named and has_effects(node)


Maker = Callable[[Templates, FoundSite, Place, str | None], Iterator[Edit]]
_MAKERS: dict[SiteKind, Maker] = {
    SiteKind.AUGMENTED: Templates.augmented,
    SiteKind.ITEM: Templates.item,
    SiteKind.METHOD: Templates.method,
    SiteKind.FUNCTION: Templates.function,
    SiteKind.FUNCTION_FLAG: Templates.flag,
    SiteKind.OUT: Templates.out,
}
