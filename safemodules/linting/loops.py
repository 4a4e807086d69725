"""Rules of category SM3: loops that keep more than they need."""

import ast
from collections.abc import Iterator

from torch import nn

from safemodules.linting.contexts import SourceContext, UserModule
from safemodules.linting.findings import Fix, Severity
from safemodules.linting.outline import FunctionOutline, Outline
from safemodules.linting.reporting import Report
from safemodules.mutation import nodes
from safemodules.rewriting.edits import Edit

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_CUT = frozenset({"item", "detach", "detach_", "data", "float", "int", "tolist", "numpy", "cpu_"})
_COLLECTING = frozenset({"append", "insert", "extend"})


def report_loops(
    outline: Outline, node: ast.AST, function: FunctionOutline | None, report: Report
) -> None:
    """Report loops in a function, or in a statement of the module."""
    seen: set[int] = set()
    for loop in _own_loops(node):
        _report_training(loop, node, outline, function, report, seen)
    if function is not None and function.self_name is not None:
        for loop in _own_loops(node):
            _report_kept(loop, outline, function, report, seen)
        _report_comprehensions(node, outline, function, report)


def _own_loops(node: ast.AST) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
    """Loops, inner ones first."""
    found = [inner for inner in nodes.walk(node) if isinstance(inner, _LOOPS)]
    yield from reversed(found)


# -- SM302, SM303 ---------------------------------------------------------------------------


def _report_training(
    loop: ast.For | ast.AsyncFor | ast.While,
    around: ast.AST,
    outline: Outline,
    function: FunctionOutline | None,
    report: Report,
    seen: set[int],
) -> None:
    backwards = [call for call in _calls(loop) if _method(call) == "backward"]
    losses: set[str] = set()
    for call in backwards:
        assert isinstance(call.func, ast.Attribute)
        if isinstance(call.func.value, ast.Name):
            losses.add(call.func.value.id)
        retained = any(
            keyword.arg == "retain_graph"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value is True
            for keyword in call.keywords
        )
        if retained and id(call) not in seen:
            seen.add(id(call))
            report.add(
                call,
                "SM303",
                Severity.WARNING,
                "retain_graph=True in a loop keeps the graph of every iteration alive; detach "
                "what is carried over instead",
                function=function,
            )
    if not losses:
        return
    used = {
        call.func.value.id
        for call in _calls(around)
        if _method(call) == "backward"
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
    }
    for statement in nodes.walk(loop):
        name, value = _summed(statement)
        if name is None or value is None or name in used or id(statement) in seen:
            continue
        if _keeps_graph(value, losses):
            seen.add(id(statement))
            edit = Edit(outline.file.end(value), outline.file.end(value), (".detach()",))
            report.add(
                statement,
                "SM302",
                Severity.WARNING,
                f"`{name}` keeps the graph of every `{ast.unparse(value)}`; add "
                f"`{ast.unparse(value)}.detach()`, or `.item()` for a number",
                function=function,
                fix=Fix((edit,), safe=False) if isinstance(value, ast.Name) else None,
            )


def _summed(node: ast.AST) -> tuple[str | None, ast.expr | None]:
    """Name and addend of ``total += loss`` and ``total = total + loss``, name of a list."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return ast.unparse(node.target), node.value
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        target = node.targets[0]
        if isinstance(node.value.op, ast.Add) and isinstance(node.value.left, ast.Name):
            if isinstance(target, ast.Name) and target.id == node.value.left.id:
                return target.id, node.value.right
    if isinstance(node, ast.Call) and _method(node) == "append" and len(node.args) == 1:
        assert isinstance(node.func, ast.Attribute)
        return ast.unparse(node.func.value), node.args[0]
    return None, None


def _keeps_graph(value: ast.expr, losses: set[str]) -> bool:
    """Whether a value is a loss itself, or a loss times something."""
    while isinstance(value, ast.BinOp):
        value = value.left
    return isinstance(value, ast.Name) and value.id in losses


# -- SM301 ----------------------------------------------------------------------------------


def _report_kept(
    loop: ast.For | ast.AsyncFor | ast.While,
    outline: Outline,
    function: FunctionOutline,
    report: Report,
    seen: set[int],
) -> None:
    if isinstance(loop, ast.While) or _is_over_modules(loop, outline, function):
        return
    results = {
        target.id: called
        for statement in nodes.walk(loop)
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
        for called in [_module_called(statement.value, outline, function)]
        if called is not None
    }
    for node in nodes.walk(loop):
        for value in _collected(node):
            called = _module_called(value, outline, function)
            if called is None and isinstance(value, ast.Name):
                called = results.get(value.id)
            if called is not None and id(node) not in seen:
                seen.add(id(node))
                _report_collected(node, called, function, report)


def _report_collected(
    node: ast.AST, called: str, function: FunctionOutline, report: Report
) -> None:
    report.add(
        node,
        "SM301",
        Severity.NOTE,
        f"every iteration of `{called}` stays alive until backward; call it through "
        "safemodules.checkpoint, or let AccumulatingLoop run the loop",
        function=function,
        needs_reach=True,
    )


def _report_comprehensions(
    node: ast.AST, outline: Outline, function: FunctionOutline, report: Report
) -> None:
    for inner in nodes.walk(node):
        if not isinstance(inner, ast.ListComp) or len(inner.generators) != 1:
            continue
        generator = inner.generators[0]
        if _is_over_modules(generator, outline, function):
            continue
        called = _module_called(inner.elt, outline, function)
        if called is not None:
            _report_collected(inner, called, function, report)


def _collected(node: ast.AST) -> Iterator[ast.expr]:
    """Values that a statement of a loop adds to what it has collected."""
    if isinstance(node, ast.Call) and _method(node) in _COLLECTING and node.args:
        yield node.args[-1]
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        if isinstance(node.value, ast.Tuple | ast.List):
            yield from node.value.elts
        else:
            yield node.value
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        yield node.value


def _module_called(value: ast.expr, outline: Outline, function: FunctionOutline) -> str | None:
    """The module ``self.<name>`` whose result a value is, if it is the same in every iteration."""
    if not isinstance(value, ast.Call) or _is_cut(value):
        return None
    called = value.func
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Call):
        return _module_called(called.value, outline, function)  # self.net(x).sum()
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return None
    if called.value.id != function.self_name or not _is_module(called.attr, outline, function):
        return None
    return f"self.{called.attr}"


def _is_module(name: str, outline: Outline, function: FunctionOutline) -> bool:
    """Whether an attribute is a module with parameters, as far as the class shows."""
    assert function.owner is not None
    context = SourceContext.of(outline, function)
    values = context.own(name)
    return bool(values) and all(
        (isinstance(value, UserModule) and _has_parameters(value, outline))
        or isinstance(value, nn.Linear | nn.Sequential | nn.RNNCellBase | nn.RNNBase)
        or (isinstance(value, nn.Module) and "Conv" in type(value).__name__)
        for value in values
    )


def _has_parameters(module: UserModule, outline: Outline) -> bool:
    """Whether a class of the file makes modules or parameters of its own."""
    cls = outline.classes[module.class_name]
    return any(
        isinstance(value, ast.Call)
        and b"nn." in outline.file.data[outline.file.start(value) : outline.file.end(value)]
        for base in outline.bases(cls)
        for values in base.own_attributes.values()
        for value, _ in values
    )


def _is_over_modules(
    loop: ast.For | ast.AsyncFor | ast.comprehension, outline: Outline, function: FunctionOutline
) -> bool:
    """Whether a loop goes through the model's own modules, whose number is fixed."""
    return any(
        isinstance(inner, ast.Attribute)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == function.self_name
        for inner in nodes.walk(loop.iter)
    )


def _is_cut(value: ast.expr) -> bool:
    return any(
        isinstance(inner, ast.Attribute) and inner.attr in _CUT for inner in nodes.walk(value)
    )


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in nodes.walk(node) if isinstance(inner, ast.Call))


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
