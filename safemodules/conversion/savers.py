"""Copies for the saver: what mends a clash where the overwrite has to stay.

Where a load-bearing site, or one that writes state of a module, overwrites what backward
needs, the operation that has saved the tensor gets a copy of its own, at its line: of its
operand, or of its result. A site that is itself the saver, as `h *= g` may be, computes from
copies and writes the result through.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from safemodules.conversion.clashes import VIEWS, SavedAndOverwritten
from safemodules.conversion.survey import AnySite, SourceSite, Survey
from safemodules.mutation.finder import has_effects
from safemodules.mutation.frames import Line
from safemodules.mutation.operators import AUGMENTED_FUNCTIONS
from safemodules.mutation.reach import Reached
from safemodules.mutation.resolution import resolve
from safemodules.mutation.scopes import Scope, walk_scopes
from safemodules.mutation.sites import SiteKind
from safemodules.mutation.source import SourceFile
from safemodules.rewriting.edits import Edit
from safemodules.rewriting.templates import Templates

_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow",
    ast.MatMult: "matmul", ast.FloorDiv: "floor_divide", ast.Mod: "remainder", ast.USub: "neg",
}  # fmt: skip
_NAMES = {"true_divide": "div", "truediv": "div", "rpow": "pow", "rsub": "sub"}
_RESULT = "its result is copied for the rest of the forward"
_OPERAND = "its operand is copied for the rest of the forward"
_VIEWS = "its views are made one by one"
_WRITTEN = "computed from copies, and written through"
_OTHERS = (SiteKind.ITEM, SiteKind.OUT)


@dataclass(frozen=True, eq=False)
class SaverCopy:
    """An edit by which an operation saves a copy.

    Attributes:
        line: the operation's line.
        what: what is copied there.
        file: the file.
        edits: the edits.
        owner: the swapped site whose result is copied by its own edit.
    """

    line: Line
    what: str
    file: SourceFile
    edits: tuple[Edit, ...]
    owner: SourceSite | None = None

    @property
    def key(self) -> tuple[str, tuple[Edit, ...], SourceSite | None]:
        """Equal for equal copies."""
        return self.file.filename, self.edits, self.owner

    def is_in(self, reached: Reached) -> bool:
        """Whether a function's text holds the edits."""
        source = reached.source
        if source is None or source.file.filename != self.file.filename:
            return False
        start, end = source.file.start(source.node), source.file.end(source.node)
        return any(start <= edit.start and edit.end <= end for edit in self.edits)

    def __str__(self) -> str:
        return f"{self.line}: {self.what}"


@dataclass(frozen=True, eq=False)
class _Candidate:
    """An expression on the saver's line, and where it stands."""

    node: ast.expr
    scope: Scope
    reached: Reached

    @property
    def name(self) -> str | None:
        """The operation's name, ``None`` where a module or something unknown is called."""
        if isinstance(self.node, ast.BinOp | ast.UnaryOp):
            return _OPERATORS.get(type(self.node.op))
        assert isinstance(self.node, ast.Call)
        func = self.node.func
        values = resolve(func, self.scope, self.reached.context)
        if any(isinstance(value, nn.Module) for value in values):
            return None
        for value in values:
            return getattr(value, "__name__", None)
        return func.attr if isinstance(func, ast.Attribute) else None

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that are called, whose operations have this line."""
        if not isinstance(self.node, ast.Call):
            return []
        values = resolve(self.node.func, self.scope, self.reached.context)
        return [value for value in values if isinstance(value, nn.Module)]

    def operands(self) -> list[ast.expr]:
        """The expressions that the operation is given."""
        if isinstance(self.node, ast.BinOp):
            return [self.node.left, self.node.right]
        if isinstance(self.node, ast.UnaryOp):
            return [self.node.operand]
        assert isinstance(self.node, ast.Call)
        found = [*self.node.args, *(keyword.value for keyword in self.node.keywords)]
        func = self.node.func
        if isinstance(func, ast.Attribute) and not self.modules:
            values = resolve(func.value, self.scope, self.reached.context)
            if not values or any(isinstance(value, torch.Tensor) for value in values):
                found.insert(0, func.value)  # a method of a tensor
        return [node for node in found if not isinstance(node, ast.Constant | ast.Starred)]


def saver_copies(
    survey: Survey, clash: SavedAndOverwritten, swapped: Collection[AnySite], *, wide: bool
) -> list[SaverCopy]:
    """Copies that may mend a clash.

    Args:
        survey: the model.
        clash: the clash.
        swapped: sites that are out of place.
        wide: take every operation on the line, not only the one that fits by its name.
    """
    here = saver_sites(survey, clash)
    owners = [site for site in here if site in swapped] if clash.saves_result else []
    if owners:
        return [SaverCopy(clash.saver, _RESULT, site.file, (), site) for site in owners]
    through = [site for site in here if site not in swapped]
    if through:
        return [_through(site, clash) for site in through]
    if clash.role == VIEWS:
        return list(_single_views(survey, clash))
    in_place = {id(site.found.node) for site in survey.sources if site not in swapped}
    candidates = [c for c in _candidates(survey, clash.saver) if id(c.node) not in in_place]
    flags = {id(flag.module) for flag in survey.flags if flag not in swapped}
    calls = [each for each in candidates if flags.intersection(map(id, each.modules))]
    if calls and clash.saves_result:
        return [_through_call(call, clash) for call in calls]
    candidates = [each for each in candidates if each not in calls]
    matching = [each for each in candidates if each.name == _plain_name(clash.op)]
    matching = matching or [each for each in candidates if each.modules]
    if wide or not matching:
        matching = candidates
    found = (_copy(each, clash, swapped, wide=wide) for each in matching)
    return [copy for copy in found if copy.edits]


def saver_sites(survey: Survey, clash: SavedAndOverwritten) -> list[SourceSite]:
    """In-place sites that are themselves what has saved the tensor."""
    return [site for site in survey.sources if _is_saver(site, clash)]


def _single_views(survey: Survey, clash: SavedAndOverwritten) -> Iterator[SaverCopy]:
    """Views made one by one: of a call, or of what a loop or an unpacking iterates over."""
    calls = [c for c in _candidates(survey, clash.saver) if c.name == _plain_name(clash.op)]
    for reached, node, _ in _on_line(survey, clash.saver):
        iterated = None
        if isinstance(node, ast.For):
            iterated = node.iter
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
            iterated = node.value
        if iterated is not None and not calls:
            yield _view_copy(reached, iterated, clash)
    for call in calls:
        yield _view_copy(call.reached, call.node, clash)


def _templates(reached: Reached) -> Templates:
    assert reached.source is not None
    return Templates(reached.source.file)


def _view_copy(reached: Reached, node: ast.expr, clash: SavedAndOverwritten) -> SaverCopy:
    templates = _templates(reached)
    return SaverCopy(clash.saver, _VIEWS, templates.file, (templates.views(node),))


def _is_saver(site: SourceSite, clash: SavedAndOverwritten) -> bool:
    """Whether a site is what has saved the tensor."""
    node = site.found.node
    if site.site.filename != clash.saver.filename or site.found.kind in _OTHERS:
        return False
    if isinstance(node, ast.AugAssign) and has_effects(node.target):
        return False
    within = node.lineno <= clash.saver.lineno <= (node.end_lineno or node.lineno)
    names = {site.site.op, *_IN_PLACE.get(site.site.op, ())}
    if clash.saves_result:  # a swapped site has run the operator without the underscore
        return within and _plain_name(clash.op) in map(_plain_name, names)
    return within and clash.op in names


# Names that torch gives to augmented assignments.
_IN_PLACE = {
    name: (f"__{name}__", f"{_NAMES.get(name[1:], name[1:])}_", f"{name[1:]}_")
    for name in AUGMENTED_FUNCTIONS
}


def _plain_name(op: str) -> str:
    name = op.strip("_")
    return _NAMES.get(name, name[1:] if name in ("radd", "rmul") else name)


def _through(site: SourceSite, clash: SavedAndOverwritten) -> SaverCopy:
    edit = Templates(site.file).through(site.found)
    return SaverCopy(clash.saver, _WRITTEN, site.file, (edit,))


def _through_call(call: _Candidate, clash: SavedAndOverwritten) -> SaverCopy:
    assert isinstance(call.node, ast.Call)
    templates = _templates(call.reached)
    return SaverCopy(clash.saver, _WRITTEN, templates.file, (templates.through_call(call.node),))


def _on_line(survey: Survey, line: Line) -> Iterator[tuple[Reached, ast.AST, Scope]]:
    """Syntax nodes that stand on a line."""
    for reached in survey.reach.all():
        source = reached.source
        if source is None or source.file.filename != line.filename:
            continue
        for node, scope in walk_scopes(source.node):
            first = getattr(node, "lineno", 0)
            if first and first <= line.lineno <= (getattr(node, "end_lineno", None) or first):
                yield reached, node, scope


def _candidates(survey: Survey, line: Line) -> Iterator[_Candidate]:
    """Operations that stand on a line."""
    for reached, node, scope in _on_line(survey, line):
        if isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp):
            candidate = _Candidate(node, scope, reached)
            if not (candidate.name or "").endswith("_"):  # a copy would be written instead
                yield candidate


def _copy(
    candidate: _Candidate,
    clash: SavedAndOverwritten,
    swapped: Collection[AnySite],
    *,
    wide: bool,
) -> SaverCopy:
    templates = _templates(candidate.reached)
    nodes: list[ast.expr] = []
    if clash.saves_result or wide:
        nodes.append(candidate.node)
    if not clash.saves_result or wide:
        operands = candidate.operands()
        nodes += operands[:1] if clash.role in ("self", "input") and not wide else operands
    edited = {id(site.found.node) for site in swapped if isinstance(site, SourceSite)}
    edits = tuple(templates.own(node) for node in nodes if id(node) not in edited)
    what = _RESULT if clash.saves_result else _OPERAND
    return SaverCopy(clash.saver, what, templates.file, edits)
