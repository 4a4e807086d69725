"""What the finder finds in the text of a function: sites, what they write, what is called."""

import ast
import enum
from dataclasses import dataclass, field
from typing import Any

from safemodules.mutation.operators import method_kind
from safemodules.mutation.scopes import Scope
from safemodules.mutation.sites import SiteKind


class Obstacle(enum.Enum):
    """Why a site cannot be rewritten where it stands."""

    STATE = "state kept on the module keeps its identity"
    ATTRIBUTE = "the tensor is an attribute of another object, which keeps its identity"
    BYPASS = "written around autograd on purpose (.data, .grad)"
    VIEW = "written through a view, for the sake of the tensor it views"
    CHOICE = "which of several tensors is written is decided at run time"
    NAME = "the name is not local here, or cannot be rebound in this expression"
    KEYS = "the index has effects of its own, so it cannot be evaluated again"
    INNER = "acts on the copy that the inner operation has made"
    ARGUMENTS = "the tensor is not the first plain argument"
    FLAG = "whether it is in place is decided at run time"
    TARGET = "the assignment has a form that is not rewritten (loop or with target)"
    ELSEWHERE = "it is not known beforehand that the forward runs the function"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class Place:
    """What a site writes: a local name, with the subscripts and attributes behind it.

    Attributes:
        root: the name; ``None`` where the tensor is a temporary value without a name.
        accessors: subscripts and attributes from the name outwards.
    """

    root: str | None
    accessors: tuple[ast.Subscript | ast.Attribute, ...] = ()


@dataclass(frozen=True, eq=False)
class FoundSite:
    """One site in the text of a function.

    Attributes:
        node: the statement or call.
        kind: what it looks like.
        op: method, function or operator name.
        place: what it writes, ``None`` where there is an obstacle.
        obstacle: why it cannot be rewritten, if so.
        parent: the node around it.
        scope: where it stands.
        slot: for a flagged function, position or keyword of the flag; for ``out``, ``"out"``.
        target: the assignment's target, the flag, or the ``out`` argument.
    """

    node: ast.AugAssign | ast.Assign | ast.Call
    kind: SiteKind
    op: str
    scope: Scope
    place: Place | None = None
    obstacle: Obstacle | None = None
    parent: ast.AST | None = None
    slot: int | str | None = None
    target: ast.expr | None = None

    @property
    def key(self) -> int:
        """Identity of the site in its text; one assignment statement may hold several."""
        return id(self.target if self.kind == SiteKind.ITEM else self.node)

    @property
    def lineno(self) -> int:
        """Line of the site, counted from 1."""
        return self.node.lineno

    @property
    def copies(self) -> bool:
        """Whether a swap costs a copy that the in-place form does not make."""
        written_through = self.place is not None and bool(self.place.accessors)
        return (
            written_through
            or self.kind in (SiteKind.ITEM, SiteKind.OUT)
            or (self.kind == SiteKind.METHOD and method_kind(self.op) == "overwrite")
        )


@dataclass(frozen=True, eq=False)
class Reference:
    """An expression that may be a function: called, or handed on.

    Attributes:
        node: the expression.
        values: what it may refer to.
        scope: where it stands.
        is_super: it is ``super().name``.
    """

    node: ast.expr
    scope: Scope
    values: tuple[Any, ...] = ()
    is_super: bool = False


@dataclass
class Findings:
    """All sites and references of one function."""

    sites: list[FoundSite] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)
