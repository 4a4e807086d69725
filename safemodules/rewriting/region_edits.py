"""The edit for each kind of checkpointed region."""

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from safemodules.mutation.regions import FoundRegion, RegionKind
from safemodules.mutation.source import SourceFile
from safemodules.rewriting.edits import Breaks, Edit, Kept, Part
from safemodules.rewriting.templates import OUTLINED, PREFIX

__all__ = ["RegionEdits", "key_of"]


def key_of(file: SourceFile, region: FoundRegion) -> int:
    """The number by which edited code names a region of its file."""
    return file.start(region.nodes[0])


@dataclass(frozen=True)
class RegionEdits:
    """Makes the edits of one source file.

    Attributes:
        file: the file.
    """

    file: SourceFile

    def edit(self, region: FoundRegion) -> Edit:
        """The edit that checkpoints a region."""
        # What copies the value of an expression goes around the region that computes it.
        return replace(_MAKERS[region.kind](self, region), rank=1)

    def call(self, region: FoundRegion) -> Edit:
        """``layer(x)`` becomes ``_sm_loop(7, layer, x)``."""
        (node,) = region.nodes
        assert isinstance(node, ast.Call)
        start, end = self.file.start(node), self.file.end(node)
        callee = Kept(self.file.start(node.func), self.file.end(node.func))
        bracket = self.file.find(b"(", callee.end)
        gap = (Breaks(callee.end, bracket),) if callee.end < bracket else ()
        opening = f"{PREFIX}loop({key_of(self.file, region)}, "
        return Edit(start, end, (opening, callee, ", ", *gap, Kept(bracket + 1, end - 1), ")"))

    def rerouted(self, region: FoundRegion) -> Edit:
        """``checkpoint(f, x)`` becomes ``_sm_rerouted(checkpoint)(f, x)``."""
        return self._wrapped(region, "rerouted(")

    def mapped(self, region: FoundRegion) -> Edit:
        """``map(layer, xs)`` becomes ``map(_sm_mapped(7, layer), xs)``."""
        return self._wrapped(region, f"mapped({key_of(self.file, region)}, ")

    def _wrapped(self, region: FoundRegion, opening: str) -> Edit:
        (node,) = region.nodes
        start, end = self.file.start(node), self.file.end(node)
        return Edit(start, end, (PREFIX + opening, Kept(start, end), ")"))

    def outlined(self, region: FoundRegion) -> Edit:
        """``f(g(x))`` becomes ``_sm_outlined(7, (f, g), lambda f, g, x: (f(g(x))), f, g, x)``."""
        first, last = region.nodes[0], region.nodes[-1]
        start, end = self.file.start(first), self.file.end(last)
        callees = "".join(f"{self._text(callee)}, " for callee in region.callees)
        names = ", ".join(region.parameters)
        given = ", ".join((*region.parameters, f"*{OUTLINED}"))
        opening = f"{PREFIX}outlined({key_of(self.file, region)}, ({callees}), lambda {given}: "
        closing = f", {names})" if names else ")"
        if isinstance(first, ast.expr):
            return Edit(start, end, (opening + "(", Kept(start, end), f"){closing}"))
        results = ", ".join(region.results)
        parts: list[Part] = [f"{results} = {opening}("]
        position = start
        for statement in region.nodes:
            assert isinstance(statement, ast.Assign)
            (target,) = statement.targets
            assert isinstance(target, ast.Name)
            value_start, value_end = (
                self.file.start(statement.value),
                self.file.end(statement.value),
            )
            parts += [f"({target.id} := (", Breaks(position, value_start)]
            parts += [Kept(value_start, value_end), ")), "]
            position = value_end
        if position < end:
            parts.append(Breaks(position, end))
        outcome = f"({results})" if len(region.results) > 1 else results
        return Edit(start, end, (*parts, f"{outcome})[-1]{closing}"))

    def _text(self, node: ast.expr) -> str:
        return self.file.data[self.file.start(node) : self.file.end(node)].decode()


_MAKERS: Final[dict[RegionKind, Callable[[RegionEdits, FoundRegion], Edit]]] = {
    RegionKind.CALL: RegionEdits.call,
    RegionKind.OUTLINED: RegionEdits.outlined,
    RegionKind.MAPPED: RegionEdits.mapped,
    RegionKind.REROUTED: RegionEdits.rerouted,
}
