"""SM106: modules that are made with ``inplace=True``."""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from safemodules.linting.contexts import (
    called_class,
    flag_position,
    inplace_flag,
    own_values,
    stand_in,
)
from safemodules.linting.findings import Fix, Severity, Verdict
from safemodules.linting.mending import remove_argument
from safemodules.linting.outline import ClassOutline, FunctionOutline, Outline
from safemodules.linting.reporting import Report
from safemodules.mutation import nodes
from safemodules.mutation.fresh_modules import Freshnesses, fresh_in_sequentials
from safemodules.mutation.operators import INPLACE_MODULES

#: Classes whose backward has the same bits out of place, and that draw no numbers.
_SWITCHES = re.compile(rb"no_grad|inference_mode|set_grad_enabled")
_EXACT = frozenset(
    {nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.Mish, nn.ReLU, nn.ReLU6, nn.SiLU}
)


def report_flags(
    outline: Outline,
    places: Iterable[tuple[ast.AST, FunctionOutline | None]],
    report: Report,
    fresh_of: Any,
) -> None:
    """Report constructors that are given the flag.

    Args:
        outline: the outline of the file.
        places: functions and statements that may hold such calls, with the function.
        report: takes the findings.
        fresh_of: gives what is fresh in a method of a class of the file.
    """
    for node, function in places:
        inside = nodes.nodes_of(node) if function is None else function.nodes
        for call in inside:
            if isinstance(call, ast.Call) and _may_set_flag(call):
                parents = nodes.parents_of(node) if function is None else function.parents
                _report_call(call, outline, function, parents, report, fresh_of)


def _report_call(
    call: ast.Call,
    outline: Outline,
    function: FunctionOutline | None,
    parents: dict[int, ast.AST],
    report: Report,
    fresh_of: Any,
) -> None:
    cls, partial = called_class(call, outline, function), False
    if cls is not None and getattr(cls, "__name__", "") == "partial" and call.args:
        inner = ast.Call(call.args[0], call.args[1:], call.keywords)
        cls, partial = called_class(inner, outline, function), True
    if not isinstance(cls, type) or cls not in INPLACE_MODULES:
        return
    if inplace_flag(call, cls) is not True:
        return
    if function is not None and function.owner is not None:
        outline.flagged.update(_attributes_that_hold(call, function.owner))
    neutral = not partial and _is_neutral(call, outline, function, parents, fresh_of)
    edit = remove_argument(outline.file, call, _flag_value(call, cls))
    report.add(
        call,
        "SM106",
        Severity.NOTE if neutral else Severity.WARNING,
        f"`nn.{cls.__name__}` overwrites what it is given"
        + (", which nobody else holds: the same out of place" if neutral else ""),
        function=function,
        verdict=Verdict.NEUTRAL if neutral else Verdict.UNKNOWN,
        fix=None if edit is None else Fix((edit,), safe=neutral and cls in _EXACT),
    )


def _may_set_flag(call: ast.Call) -> bool:
    return any(
        isinstance(value, ast.Constant) and value.value is True
        for value in (*call.args, *(k.value for k in call.keywords if k.arg == "inplace"))
    )


def _flag_value(call: ast.Call, cls: Any) -> ast.expr:
    for keyword in call.keywords:
        if keyword.arg == "inplace":
            return keyword.value
    return call.args[flag_position(cls)]


def _is_neutral(
    call: ast.Call,
    outline: Outline,
    function: FunctionOutline | None,
    parents: dict[int, ast.AST],
    fresh_of: Any,
) -> bool:
    """Whether the module is always given a tensor that nobody else holds."""
    parent = parents.get(id(call))
    if isinstance(parent, ast.Call) and called_class(parent, outline, function) is nn.Sequential:
        if call in parent.args[1:] and not parent.keywords:
            return _is_fresh_inside(parent, call, outline, function)
    if function is None or function.owner is None:
        return False
    names = _attributes_that_hold(call, function.owner)
    return bool(names) and all(
        _is_fresh_attribute(n, call, outline, function, fresh_of) for n in names
    )


def _is_fresh_inside(
    sequential: ast.Call, call: ast.Call, outline: Outline, function: FunctionOutline | None
) -> bool:
    outline.made.pop(id(call), None)
    made = stand_in(sequential, outline, function)
    if made is None:
        return False
    fresh = fresh_in_sequentials([made])
    modules = outline.made.get(id(call), [])
    return bool(modules) and all(fresh.get(id(module), False) for module in modules)


def _attributes_that_hold(call: ast.Call, owner: ClassOutline) -> list[str]:
    return [
        name
        for name, values in owner.own_attributes.items()
        for value, _ in values
        if value is not None and any(inner is call for inner in _choices(value))
    ]


def _choices(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _choices(value.body)
        yield from _choices(value.orelse)
    else:
        yield value


def _is_fresh_attribute(
    name: str, call: ast.Call, outline: Outline, function: FunctionOutline, fresh_of: Any
) -> bool:
    """Whether every call of ``self.<name>`` in the file gives it a fresh tensor."""
    assert function.owner is not None
    called = False
    for member in outline.family(function.owner):
        values = own_values(outline, member, name)
        modules = outline.made.get(id(call), [])
        if not any(value is module for value in values for module in modules):
            return False
        mention = f"{name}".encode()
        for method in member.methods.values():
            text = outline.file.data[
                outline.file.start(method.node) : outline.file.end(method.node)
            ]
            if mention not in text or method.node.name == "__init__":
                continue
            if _SWITCHES.search(text):
                return False  # an overwritten tensor keeps its graph where gradients are off
            fresh: Freshnesses = fresh_of(method)
            for module in modules:
                if id(module) in fresh.exposed:
                    return False
                if id(module) in fresh.called:
                    called = True
                    if not fresh.flags.get(id(module), False):
                        return False
    return called
