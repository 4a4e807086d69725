"""Rules of category SM1: what a function overwrites."""

import ast
import functools
from collections.abc import Collection, Iterator

from torch import nn

from safemodules.linting.clashes import Overwrites, Saved
from safemodules.linting.codes import OF_KIND
from safemodules.linting.contexts import SourceContext
from safemodules.linting.findings import Fix, Severity, Verdict
from safemodules.linting.likeness import Likeness, Likenesses
from safemodules.linting.mending import Mender
from safemodules.linting.outline import FunctionOutline, Outline
from safemodules.linting.reporting import Report
from safemodules.mutation import nodes
from safemodules.mutation.finder import describe, find
from safemodules.mutation.found import FoundSite, Obstacle
from safemodules.mutation.fresh_modules import Freshness, Freshnesses
from safemodules.mutation.freshness import analyse_text
from safemodules.mutation.resolution import is_self, resolve
from safemodules.mutation.sites import SiteKind

_SEVERITIES = {
    Verdict.HARMLESS: Severity.NOTE,
    Verdict.NEUTRAL: Severity.NOTE,
    Verdict.STATE: Severity.NOTE,
    Verdict.CLASH: Severity.ERROR,
    Verdict.UNKNOWN: Severity.WARNING,
}
#: Modules that overwrite only in training, and only if their rate is not 0.
_SOMETIMES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_MADE_HERE = frozenset("detach clone zeros ones empty rand randn full tensor linspace".split())


class InPlace:
    """The in-place rules, for one function.

    Args:
        outline: the outline of its file.
        function: the function.
        report: takes the findings.
    """

    def __init__(self, outline: Outline, function: FunctionOutline, report: Report) -> None:
        self.outline = outline
        self.function = function
        self.report = report
        self.context = SourceContext.of(outline, function)
        self.sites = find(function.node, self.context, references=False).sites

    @functools.cached_property
    def likeness(self) -> Likenesses:
        """Which expressions are likely tensors."""
        is_forward = self.function.node.name == "forward" and self.function.owner is not None
        return Likenesses(self.function, self.context, is_forward=is_forward)

    def run(self) -> Freshnesses | None:
        """Report, and hand on what is fresh."""
        self._switched_requires_grad()
        self._bound_data()
        sites = [site for site in self.sites if self._is_likely(site)]
        overwrites = Overwrites(self.context, self.function.scope, sites)
        if sites or self.outline.flagged:
            overwrites.run(self.function)
        for key, call in overwrites.calls.items():
            self._module_call(call, overwrites.found[key])
        if not sites:
            return None
        fresh = analyse_text(self.function.node, self.context, self.sites)
        neutral = {
            site.key: fresh.sites.get(site.key, Freshness.SHARED) >= Freshness.TENSOR
            for site in self.sites
        }
        function = self.function
        mender = Mender(
            self.outline.file, function.node, self.context, self.sites, function.parents
        )
        for site in sites:
            level = fresh.sites.get(site.key, Freshness.SHARED)
            verdict = self._verdict(site, level, overwrites.found.get(site.key))
            fix = None if verdict is Verdict.HARMLESS else mender.fix(site, neutral)
            self._site(site, verdict, overwrites.found.get(site.key), fix)
        return fresh

    # -- what is a site -----------------------------------------------------------------

    def _is_likely(self, site: FoundSite) -> bool:
        """Whether there is evidence that a tensor is written."""
        node = site.node
        if site.obstacle is Obstacle.BYPASS and "grad" in _attributes(self._written(site)):
            return False  # gradients are meant to be written
        if isinstance(node, ast.AugAssign):
            return self._is_likely_augmented(node)
        if isinstance(node, ast.Assign):
            assert isinstance(site.target, ast.Subscript)
            return self._is_likely_item(site.target)
        if site.kind is SiteKind.METHOD:
            assert isinstance(node.func, ast.Attribute)
            return self.likeness.of(node.func.value) is not Likeness.OTHER
        return True

    def _is_likely_augmented(self, node: ast.AugAssign) -> bool:
        value = self.likeness.of(node.value)
        if isinstance(node.value, ast.List | ast.Tuple | ast.ListComp | ast.JoinedStr):
            return False
        target = node.target
        if isinstance(target, ast.Subscript) and _is_text(target.slice):
            return value is Likeness.TENSOR
        guess = self.likeness.of(target)
        if guess is Likeness.OTHER:
            return False
        if guess is Likeness.UNKNOWN:
            return value is Likeness.TENSOR
        return guess is Likeness.TENSOR

    def _is_likely_item(self, target: ast.Subscript) -> bool:
        if _is_text(target.slice):
            return False
        guess = self.likeness.of(target.value)
        if self.likeness.may_be_container(target.value) and not _is_tensor_index(target.slice):
            return False
        if guess is Likeness.UNKNOWN:
            return _is_tensor_index(target.slice) and not self._uses_numpy
        return guess is Likeness.TENSOR

    @functools.cached_property
    def _uses_numpy(self) -> bool:
        return any(isinstance(n, ast.Name) and n.id in ("np", "numpy") for n in self.function.nodes)

    # -- what is known of it ------------------------------------------------------------

    def _verdict(self, site: FoundSite, level: Freshness, saved: Saved | None) -> Verdict:
        if saved is not None:
            return Verdict.CLASH
        if site.obstacle is Obstacle.STATE:
            return Verdict.STATE
        if site.obstacle is not None:
            return Verdict.UNKNOWN
        if level is Freshness.FILLED:
            return Verdict.HARMLESS
        return Verdict.NEUTRAL if level is Freshness.TENSOR else Verdict.UNKNOWN

    def _site(
        self, site: FoundSite, verdict: Verdict, saved: Saved | None, fix: Fix | None
    ) -> None:
        code = OF_KIND[site.kind]
        if site.obstacle is Obstacle.BYPASS and "data" in _attributes(self._written(site)):
            code, verdict = "SM108", Verdict.NONE
            message = "written through .data, which autograd does not see"
            severity = Severity.WARNING
        elif saved is not None and saved.collected:
            code, severity = "SM109", Severity.ERROR
            message = (
                f"`{self._name(site)}` was {saved.what} in line {saved.line}, and changes there "
                f"too by `{_operator(site)}`"
            )
            fix = None if fix is None else Fix(fix.edits, safe=False)
        else:
            severity = _SEVERITIES[verdict]
            message = f"`{_operator(site)}` {self._explained(site, verdict, saved)}"
        self.report.add(
            site.target if site.kind is SiteKind.ITEM and site.target is not None else site.node,
            code,
            severity,
            message,
            function=self.function,
            verdict=verdict,
            fix=fix,
            needs_reach=True,
        )

    def _explained(self, site: FoundSite, verdict: Verdict, saved: Saved | None) -> str:
        name = self._name(site)
        if saved is not None:
            return f"overwrites `{name}`, which {saved.what} (line {saved.line}) saved for backward"
        return {
            Verdict.HARMLESS: f"fills `{name}`, whose values nobody has read: harmless",
            Verdict.NEUTRAL: f"overwrites `{name}`, which nobody else holds: the same out of place",
            Verdict.STATE: f"updates `{name}`, which the module keeps",
        }.get(verdict) or (
            f"overwrites `{name}`"
            + (f": {site.obstacle}" if site.obstacle else ", which others may hold")
        )

    def _name(self, site: FoundSite) -> str:
        if site.place is not None and site.place.root is not None and not site.place.accessors:
            return site.place.root
        text = ast.unparse(self._written(site))
        return text if len(text) <= 40 else f"{text[:37]}..."

    def _written(self, site: FoundSite) -> ast.expr:
        """The expression that stands for the tensor."""
        node = site.node
        if isinstance(node, ast.AugAssign):
            return node.target
        if isinstance(node, ast.Assign):
            assert isinstance(site.target, ast.Subscript)
            return site.target.value
        if site.kind is SiteKind.OUT:
            assert site.target is not None
            return site.target
        if site.kind is SiteKind.METHOD:
            assert isinstance(node.func, ast.Attribute)
            return node.func.value
        return node.args[0] if node.args else node.func

    # -- other rules --------------------------------------------------------------------

    def _module_call(self, call: ast.Call, saved: Saved) -> None:
        name, written = ast.unparse(call.func), ast.unparse(call.args[0])
        if saved.collected:
            message = f"`{written}` was {saved.what} in line {saved.line}, and changes there too "
            message += f"by `{name}`, whose flag inplace is set"
        else:
            message = f"`{name}` has inplace=True and overwrites `{written}`, "
            message += f"which {saved.what} (line {saved.line}) saved for backward"
        sometimes = any(
            isinstance(module, _SOMETIMES)
            for module in resolve(call.func, self.function.scope, self.context)
        )
        self.report.add(
            call,
            "SM109" if saved.collected else "SM106",
            Severity.WARNING if sometimes else Severity.ERROR,
            message,
            function=self.function,
            verdict=Verdict.CLASH,
            needs_reach=True,
        )

    def _bound_data(self) -> None:
        """``x.data = y``."""
        for node in self.function.nodes:
            if not isinstance(node, ast.Assign):
                continue
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == "data":
                    if self._holds_tensor(target.value):
                        self.report.add(
                            node,
                            "SM108",
                            Severity.WARNING,
                            f"`{ast.unparse(target)}` is exchanged, which autograd does not see",
                            function=self.function,
                            needs_reach=True,
                        )

    def _holds_tensor(self, holder: ast.expr) -> bool:
        if isinstance(holder, ast.Name) and is_self(holder.id, self.function.scope, self.context):
            return False
        return self.likeness.of(holder) is Likeness.TENSOR

    def _switched_requires_grad(self) -> None:
        for node in self.function.nodes:
            holder = _switched(node)
            if holder is None or self._is_made_here(holder):
                continue
            self.report.add(
                node,
                "SM110",
                Severity.WARNING,
                f"requires_grad of `{ast.unparse(holder)}` is switched in the forward",
                function=self.function,
                needs_reach=True,
            )

    def _is_made_here(self, holder: ast.expr) -> bool:
        """A tensor that the function has made or cut off itself may be prepared as it likes."""
        if isinstance(holder, ast.Call):
            return True
        if not isinstance(holder, ast.Name):
            return False
        bindings = self.likeness.bound.get(holder.id, [])
        return bool(bindings) and all(
            isinstance(value, ast.Call) and bool(_MADE_HERE & set(_attributes(value)))
            for value, _ in bindings
        )


def may_write(function: FunctionOutline, names: Collection[str]) -> bool:
    """Whether anything in a function has the form of a write.

    Args:
        function: the function.
        names: attributes that hold a module with a flag, and names of in-place functions.
    """
    return any(
        _has_form_of_write(node)
        or (bool(names) and getattr(node, "attr", getattr(node, "id", "")) in names)
        for node in function.nodes
    )


def _has_form_of_write(node: ast.AST) -> bool:
    if isinstance(node, ast.AugAssign):
        return not isinstance(node.op, ast.MatMult)
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store)
    if isinstance(node, ast.Call):
        return any(keyword.arg in ("inplace", "out") for keyword in node.keywords) or any(
            isinstance(argument, ast.Constant) and argument.value is True for argument in node.args
        )
    if isinstance(node, ast.Attribute):
        if node.attr.endswith("_") and not node.attr.endswith("__"):
            return True
        return isinstance(node.ctx, ast.Store) and node.attr in ("data", "requires_grad")
    return isinstance(node, ast.Name) and node.id.endswith("_") and not node.id.endswith("__")


def _operator(site: FoundSite) -> str:
    """The operator in the words of the source."""
    return {SiteKind.ITEM: "[...] =", SiteKind.OUT: "out="}.get(site.kind) or describe(site)


def _switched(node: ast.AST) -> ast.expr | None:
    """The tensor whose ``requires_grad`` a statement or call switches."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
                return target.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "requires_grad_":
            return node.func.value
    return None


def _attributes(node: ast.AST) -> Iterator[str]:
    return (inner.attr for inner in nodes.walk(node) if isinstance(inner, ast.Attribute))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_tensor_index(node: ast.expr) -> bool:
    """Whether an index is of a form that lists and dictionaries do not take."""
    if isinstance(node, ast.Tuple):
        return any(map(_is_tensor_index, node.elts))
    return isinstance(node, ast.Slice) or (
        isinstance(node, ast.Constant) and node.value in (..., None)
    )
