"""What edited code calls at run time, by the names that edits use.

In place of in-place operations stand those of ``out_of_place``, see NOTE [ Exact by construction ]
there; here are their forms for places, and those that write through to the tensor itself.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from safemodules.mutation.operators import AUGMENTED_FUNCTIONS
from safemodules.rewriting.checkpoints import loop, mapped, outlined, outlining, rerouted
from safemodules.rewriting.flags import was_set
from safemodules.rewriting.out_of_place import (
    AUGMENTED_HELPERS,
    flagged,
    flagged_if,
    function,
    in_place_method,
    method,
    named,
    written_out,
)
from safemodules.rewriting.overlap import on_itself, overlap
from safemodules.rewriting.owned import own, views
from safemodules.rewriting.places import (
    KEY,
    Place,
    assign,
    assign_item,
    at,
    attribute,
    is_state,
    item,
    overwrite,
    root_of,
)

# -- copies for what backward has saved -----------------------------------------------------


def _through(
    in_place: Callable[..., Any],
    compute: Callable[..., Any],
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operator: Any,
) -> Any:
    """What overwrites a tensor, computed from copies, and written to the tensor itself."""
    if not isinstance(target, Tensor) or not torch.is_grad_enabled():
        return in_place(target, *args, **kwargs)
    if overlap(target, (*args, *kwargs.values()), operator):
        if done := on_itself(in_place, target, *args, **kwargs):
            return done[0]
    copied = {key: own(argument) for key, argument in kwargs.items()}
    return target.copy_(compute(own(target), *map(own, args), **copied))


def through(name: str) -> Callable[..., Any]:
    """``target.<name>(...)`` computed from copies, and written to the target itself."""
    if name in AUGMENTED_FUNCTIONS:
        in_place, compute = AUGMENTED_FUNCTIONS[name][1], AUGMENTED_HELPERS[name]
    else:
        in_place, compute = in_place_method(name), method(name)

    def written(target: Any, *args: Any, **kwargs: Any) -> Any:
        return _through(in_place, compute, target, args, kwargs, name)

    return named(written, name)


def through_function(call: Callable[..., Any], target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``F.elu_(target, ...)`` computed from copies, and written to the target itself."""
    return _through(call, functools.partial(function, call), target, args, kwargs, call)


def through_flagged(
    call: Callable[..., Any], slot: int | None, target: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """``F.relu(target, inplace=flag)`` computed from copies; written if the flag is set."""
    flag = kwargs.get("inplace", False) if slot is None else args[slot - 1]
    if not flag:
        return call(target, *args, **kwargs)
    return _through(call, functools.partial(flagged, call, slot), target, args, kwargs, call)


def through_call(module: Callable[..., Any], target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A call of a module that overwrites its input, on a copy, and written to the input."""
    if not isinstance(target, Tensor) or not torch.is_grad_enabled():
        return module(target, *args, **kwargs)
    copied = own(target)
    result = module(copied, *args, **kwargs)
    if result is not copied:  # it has overwritten nothing
        return result
    return target.copy_(result)


# -- places, see NOTE [ Places ] ------------------------------------------------------------


def set_item(value: Any, container: Place, key: Any) -> Any:
    """``container[key] = value`` out of place; the value comes first, as Python evaluates it."""
    return assign_item(container, key, value)


def set_item_late(container: Place, key: Any, value: Any) -> Any:
    """``container[key] = value`` out of place, where the order of evaluation cannot be seen."""
    return assign_item(container, key, value)


def augmented_at(name: str) -> Callable[[Place, Any], Any]:
    """``place op= value`` for a place behind a name; returns the name's new value."""
    compute, in_place = AUGMENTED_HELPERS[name], AUGMENTED_FUNCTIONS[name][1]

    def augmented(place: Place, value: Any) -> Any:
        return assign(place, (in_place if is_state(place) else compute)(place[0], value))

    return named(augmented, f"{name}_at")


def method_pair(name: str) -> Callable[..., list[Any]]:
    """``place.<name>(...)`` for an entry of a container; its value, and the name's new one."""
    compute = method(name)

    def call(place: Place, *args: Any, **kwargs: Any) -> list[Any]:
        if is_state(place):
            return [getattr(place[0], name)(*args, **kwargs), root_of(place)]
        value = compute(place[0], *args, **kwargs)
        return [value, overwrite(place, value)]

    return named(call, f"{name}pair")


def function_pair(call: Callable[..., Any], place: Place, /, *args: Any, **kw: Any) -> list[Any]:
    """``F.elu_(place, ...)`` for an entry of a container; its value, and the name's new one."""
    if is_state(place):
        return [call(place[0], *args, **kw), root_of(place)]
    value = function(call, place[0], *args, **kw)
    return [value, overwrite(place, value)]


def flagged_pair(
    call: Callable[..., Any], slot: int | None, place: Place, /, *args: Any, **kw: Any
) -> list[Any]:
    """``F.relu(place, inplace=True)`` for an entry; its value, and the name's new one."""
    if is_state(place):
        return [call(place[0], *args, **kw), root_of(place)]
    value = flagged(call, slot, place[0], *args, **kw)
    return [value, overwrite(place, value)]


def _root_only(pair: Callable[..., list[Any]], name: str) -> Callable[..., Any]:
    """The same for a statement, which has no use for the value."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return pair(*args, **kwargs)[1]

    return named(call, name)


# -- calls of edited functions --------------------------------------------------------------


def bind(call: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """A method of an object, from its function."""
    return functools.partial(call, holder)


def make_twin(table: dict[Callable[..., Any], Callable[..., Any]]) -> Callable[[Any], Any]:
    """Make the lookup by which edited functions call edited functions.

    Args:
        table: original function -> edited function.
    """

    def twin(call: Any) -> Any:
        if isinstance(call, MethodType):
            edited = table.get(call.__func__)
            return call if edited is None else functools.partial(edited, call.__self__)
        if isinstance(call, functools.partial) and call.func in table:
            return functools.partial(table[call.func], *call.args, **call.keywords)
        return table.get(call, call) if getattr(call, "__hash__", None) else call

    return twin


_FIXED: dict[str, Any] = {
    "function": function,
    "function_at": _root_only(function_pair, "function_at"),
    "function_pair": function_pair,
    "flagged": flagged,
    "flagged_if": flagged_if,
    "flagged_at": _root_only(flagged_pair, "flagged_at"),
    "flagged_pair": flagged_pair,
    "out": written_out,
    "own": own,
    "through_function": through_function,
    "through_flagged": through_flagged,
    "through_call": through_call,
    "was_set": was_set,
    "views": views,
    "key": KEY,
    "at": at,
    "item": item,
    "attribute": attribute,
    "set": set_item,
    "set_late": set_item_late,
    "bind": bind,
    "loop": loop,
    "mapped": mapped,
    "outlined": outlined,
    "outlining": outlining,
    "rerouted": rerouted,
}


@functools.cache
def helper(name: str) -> Any:
    """The run-time helper of a name that edits use, such as ``"iadd"`` or ``"m_relu_"``.

    Args:
        name: a name of the table above, an operator's (``"iadd"``, ``"iadd_at"``), or a
            method's behind ``m_`` for a name, ``ma_`` for a place in a statement, ``mp_`` for
            a place in an expression, ``t_`` for a write through to the target.

    Example:
        >>> helper("iadd")([1], (2,))
        [1, 2]
    """
    if name in _FIXED:
        return _FIXED[name]
    if name in AUGMENTED_HELPERS:
        return AUGMENTED_HELPERS[name]
    if name.endswith("_at") and name[:-3] in AUGMENTED_HELPERS:
        return augmented_at(name[:-3])
    kind, _, rest = name.partition("_")
    assert kind in ("m", "ma", "mp", "t"), name
    if kind == "t":
        return through(rest)
    if kind == "m":
        return method(rest)
    return method_pair(rest) if kind == "mp" else _root_only(method_pair(rest), f"{rest}at")
