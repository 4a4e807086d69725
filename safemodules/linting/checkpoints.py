"""Rules of category SM2: calls of ``torch.utils.checkpoint``."""

import ast
from collections.abc import Iterator

from torch.utils import checkpoint as torch_checkpoint

from safemodules.linting.contexts import SourceContext
from safemodules.linting.findings import Fix, Severity
from safemodules.linting.outline import FunctionOutline, Outline
from safemodules.linting.reporting import Report
from safemodules.mutation import nodes
from safemodules.mutation.resolution import resolve
from safemodules.mutation.scopes import Scope
from safemodules.rewriting.edits import Edit

_CHECKPOINTS = {
    id(torch_checkpoint.checkpoint): "checkpoint",
    id(torch_checkpoint.checkpoint_sequential): "checkpoint_sequential",
}
_ADVICE = "pass use_reentrant=False, or call safemodules.checkpoint"
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def report_checkpoints(
    outline: Outline, node: ast.AST, function: FunctionOutline | None, report: Report
) -> None:
    """Report the calls in a function, or in a statement of the module."""
    scope = Scope(ast.Module([], []), None) if function is None else function.scope
    context = SourceContext.of(outline, function)
    inside = nodes.nodes_of(node) if function is None else function.nodes
    for call in inside:
        if not isinstance(call, ast.Call):
            continue
        values = resolve(call.func, scope, context)
        if len(values) != 1:
            continue
        if id(values[0]) in _CHECKPOINTS:
            parents = nodes.parents_of(node) if function is None else function.parents
            _report_call(call, _CHECKPOINTS[id(values[0])], outline, function, report)
            _report_closure(call, parents, outline, function, report)
        elif getattr(values[0], "name", "") in ("safemodules.checkpoint",):
            continue
        elif _is_function_apply(call, scope, context):
            report.add(
                call,
                "SM201",
                Severity.WARNING,
                f"CheckpointFunction.apply is reentrant checkpointing; {_ADVICE}",
                function=function,
            )


def _is_function_apply(call: ast.Call, scope: Scope, context: SourceContext) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "apply":
        return False
    return resolve(call.func.value, scope, context) == [torch_checkpoint.CheckpointFunction]


def _report_call(
    call: ast.Call,
    name: str,
    outline: Outline,
    function: FunctionOutline | None,
    report: Report,
) -> None:
    if any(keyword.arg is None for keyword in call.keywords):
        return  # use_reentrant may be among them
    given = next((k.value for k in call.keywords if k.arg == "use_reentrant"), None)
    file = outline.file
    if given is None:
        if name == "checkpoint_sequential" and len(call.args) > 3:
            return
        edit = _insertion(call, outline)
        report.add(
            call,
            "SM202",
            Severity.WARNING,
            f"`{name}` without use_reentrant is the reentrant one; {_ADVICE}",
            function=function,
            fix=None if edit is None else Fix((edit,), safe=False),
        )
    elif isinstance(given, ast.Constant) and given.value is True:
        edit = Edit(file.start(given), file.end(given), ("False",))
        report.add(
            call,
            "SM201",
            Severity.WARNING,
            f"`{name}` with use_reentrant=True; {_ADVICE}",
            function=function,
            fix=Fix((edit,), safe=False),
        )


def _insertion(call: ast.Call, outline: Outline) -> Edit | None:
    """``use_reentrant=False`` behind the last argument."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not values:
        return None
    file = outline.file
    end = file.end(call) - 1
    tail = file.data[file.end(values[-1]) : end]
    if isinstance(values[-1], ast.GeneratorExp) or b"#" in tail:
        return None
    position = file.end(values[-1]) + tail.rfind(b")") + 1
    return Edit(position, position, (", use_reentrant=False",))


# -- SM203 ----------------------------------------------------------------------------------


def _report_closure(
    call: ast.Call,
    parents: dict[int, ast.AST],
    outline: Outline,
    function: FunctionOutline | None,
    report: Report,
) -> None:
    if not call.args:
        return
    loops = list(_loops_around(call, parents))
    if not loops:
        return
    varying = {name for loop in loops for name in _bound_in(loop)}
    closure = _closure(call.args[0], loops)
    if closure is None:
        return
    late = sorted((_free_names(closure) & varying) - {getattr(closure, "name", "")})
    if not late:
        return
    names = ", ".join(f"`{name}`" for name in late)
    report.add(
        call.args[0],
        "SM203",
        Severity.ERROR,
        f"the recomputation sees the last value of {names}, which the loop binds anew; pass "
        "it as an argument or a default, or call safemodules.checkpoint",
        function=function,
        fix=_bound_by_default(closure, late, outline),
    )


def _loops_around(node: ast.AST, parents: dict[int, ast.AST]) -> Iterator[ast.AST]:
    current = parents.get(id(node))
    while current is not None:
        if isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return  # its own cells are made anew with each call
        if isinstance(current, _LOOPS):
            yield current
        current = parents.get(id(current))


def _bound_in(loop: ast.AST) -> Iterator[str]:
    """Names that an iteration binds anew."""
    rest: list[ast.AST] = [loop]
    while rest:
        node = rest.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        rest += nodes.children(node)


def _closure(argument: ast.expr, loops: list[ast.AST]) -> ast.Lambda | ast.FunctionDef | None:
    """The function that is checkpointed, if it is written in the loop."""
    if isinstance(argument, ast.Lambda):
        return argument
    if isinstance(argument, ast.Name):
        for loop in loops:
            for node in nodes.walk(loop):
                if isinstance(node, ast.FunctionDef) and node.name == argument.id:
                    return node
    return None


def _free_names(closure: ast.Lambda | ast.FunctionDef) -> set[str]:
    arguments = closure.args
    own = {a.arg for a in nodes.walk(arguments) if isinstance(a, ast.arg)}
    body = closure.body if isinstance(closure.body, list) else [closure.body]
    names = [n for part in body for n in nodes.walk(part) if isinstance(n, ast.Name)]
    own |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return {name.id for name in names} - own


def _bound_by_default(
    closure: ast.Lambda | ast.FunctionDef, late: list[str], outline: Outline
) -> Fix | None:
    """``lambda t: f(t, k)`` becomes ``lambda t, k=k: f(t, k)``."""
    arguments = closure.args
    plain = not (arguments.kwonlyargs or arguments.kwarg or arguments.vararg)
    if not isinstance(closure, ast.Lambda) or not plain or not arguments.args:
        return None
    last = (arguments.defaults or arguments.args)[-1]
    position = outline.file.end(last)
    text = "".join(f", {name}={name}" for name in late)
    return Fix((Edit(position, position, (text,)),), safe=False)
