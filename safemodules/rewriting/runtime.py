"""What edited code calls at run time, in place of in-place operations.

NOTE [ Exact by construction ]: the result of an out-of-place operator is used only if it
has the dtype, shape, strides and device of the tensor that the original would have
overwritten; on the same kernels that is the same values, and backward computes from the same
ones. In every other case (a promoted dtype, broadcasting, a view with gaps, random numbers,
an error, a gradient with other rounding) the original in-place operator runs on a copy that
is laid out alike. So whatever the original does or refuses, the
copy does. It is the only operator that raises: what the other one raises is not heard.

Two refusals are lifted, since nothing is overwritten: that of an operand which overlaps
the target, and that of a leaf which requires grad.

Parameters are written in place as before: whoever overwrites a parameter means it.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from safemodules.mutation.operators import (
    AUGMENTED_FUNCTIONS,
    RANDOM_FUNCTIONS,
    function_twins,
    method_kind,
    method_twin,
)
from safemodules.rewriting.checkpoints import loop, mapped, outlined, outlining, rerouted
from safemodules.rewriting.copies import (
    is_alike,
    keeps_history,
    stand_in,
    written_in_place,
)
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

_OPERANDS = (Tensor, int, float, complex, torch.SymInt, torch.SymFloat)

# Tables stand here as plain dictionaries and sets, which torch.compile looks into.
TWINS = dict(function_twins())

# Random functions that draw in training only: where the flag stands, and its default.
TRAINING_SLOTS = {
    F.alpha_dropout: (2, False),
    F.dropout: (2, True),
    F.dropout1d: (2, True),
    F.dropout2d: (2, True),
    F.dropout3d: (2, True),
    F.feature_alpha_dropout: (2, False),
    F.rrelu: (3, False),
}

# In place, their backward computes from the result what it else computes from the input: the
# same but for rounding. (`derivatives.yaml`: elu_backward with is_result.)
RESULT_FUNCTIONS = frozenset({F.celu, F.elu, F.elu_, F.selu, torch.celu_, torch.selu_})


def _attempt(target: Tensor, compute: Callable[[], Any]) -> Any:
    """The result of an out-of-place operator if it can stand for the overwritten target."""
    if target.layout is not torch.strided or keeps_history(target):
        return None
    try:
        result = compute()
    except Exception:  # the in-place operator says it in its own words
        return None
    return result if result is target or is_alike(result, target) else None


def _augmented(name: str) -> Callable[[Any, Any], Any]:
    out_of_place, in_place = AUGMENTED_FUNCTIONS[name]

    def augmented(target: Any, value: Any) -> Any:
        if written_in_place(target):
            return in_place(target, value)
        if isinstance(value, _OPERANDS):
            result = _attempt(target, lambda: out_of_place(target, value))
            if result is not None:
                return result
        return in_place(stand_in(target), value)

    return _named(augmented, name)


def method(name: str) -> Callable[..., Any]:
    """The out-of-place form of ``target.<name>(...)``, for a tensor method ending in ``_``."""
    twin, overwrites = method_twin(name), method_kind(name) == "overwrite"

    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(target, fx.Proxy) and twin is not None:
            return getattr(target, twin)(*args, **kwargs)
        if written_in_place(target):
            return getattr(target, name)(*args, **kwargs)
        if twin is not None:
            result = _attempt(target, lambda: getattr(target, twin)(*args, **kwargs))
            if result is not None:
                return result
        return getattr(stand_in(target, overwritten=overwrites), name)(*args, **kwargs)

    return _named(call, name)


def function(call: Callable[..., Any], target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The out-of-place form of ``F.elu_(target, ...)`` or ``torch.relu_(target)``."""
    twin = TWINS.get(call)
    if isinstance(target, fx.Proxy) and twin is not None:
        return twin(target, *args, **kwargs)
    if written_in_place(target):
        return call(target, *args, **kwargs)
    if twin is not None and call not in RANDOM_FUNCTIONS and call not in RESULT_FUNCTIONS:
        result = _attempt(target, lambda: twin(target, *args, **kwargs))
        if result is not None:
            return result
    return call(stand_in(target), *args, **kwargs)


def flagged(
    call: Callable[..., Any], slot: int | None, target: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """``F.relu(target, inplace=True)`` out of place.

    Args:
        call: the function.
        slot: position of the flag among the function's arguments, ``None`` if a keyword.
        target: its first argument.
        *args: the others.
        **kwargs: the others.
    """
    if isinstance(target, fx.Proxy):
        return _with_flag(call, slot, False, target, args, kwargs)
    if written_in_place(target):
        return call(target, *args, **kwargs)
    # out of place, an accelerator draws other numbers
    if call not in RESULT_FUNCTIONS and not _draws(call, args, kwargs):
        result = _attempt(target, lambda: _with_flag(call, slot, False, target, args, kwargs))
        if result is not None:
            return result
    return _with_flag(call, slot, True, stand_in(target), args, kwargs)


def _draws(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if call not in RANDOM_FUNCTIONS:
        return False
    slot, default = TRAINING_SLOTS[call]
    return bool(args[slot - 1] if len(args) >= slot else kwargs.get("training", default))


def _with_flag(
    call: Callable[..., Any],
    slot: int | None,
    flag: bool,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if slot is None:
        return call(target, *args, **{**kwargs, "inplace": flag})
    return call(target, *args[: slot - 1], flag, *args[slot:], **kwargs)


def written_out(call: Callable[..., Any], /, *args: Any, out: Any, **kwargs: Any) -> Any:
    """``torch.add(a, b, out=target)`` into new memory that is laid out like the target."""
    if not written_in_place(out):
        out = stand_in(out, overwritten=True)
    return call(*args, out=out, **kwargs)


# -- copies for what backward has saved -----------------------------------------------------


def _through(
    in_place: Callable[..., Any],
    compute: Callable[..., Any],
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """What overwrites a tensor, computed from copies, and written to the tensor itself."""
    if not isinstance(target, Tensor) or not torch.is_grad_enabled():
        return in_place(target, *args, **kwargs)
    named = {key: own(argument) for key, argument in kwargs.items()}
    return target.copy_(compute(own(target), *map(own, args), **named))


def _in_place_method(name: str) -> Callable[..., Any]:
    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(target, name)(*args, **kwargs)

    return call


def through(name: str) -> Callable[..., Any]:
    """``target.<name>(...)`` computed from copies, and written to the target itself."""
    if name in AUGMENTED_FUNCTIONS:
        in_place, compute = AUGMENTED_FUNCTIONS[name][1], AUGMENTED_HELPERS[name]
    else:
        in_place, compute = _in_place_method(name), method(name)

    def written(target: Any, *args: Any, **kwargs: Any) -> Any:
        return _through(in_place, compute, target, args, kwargs)

    return _named(written, name)


def through_function(call: Callable[..., Any], target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``F.elu_(target, ...)`` computed from copies, and written to the target itself."""
    return _through(call, functools.partial(function, call), target, args, kwargs)


def through_flagged(
    call: Callable[..., Any], slot: int | None, target: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """``F.relu(target, inplace=flag)`` computed from copies; written if the flag is set."""
    flag = kwargs.get("inplace", False) if slot is None else args[slot - 1]
    if not flag:
        return call(target, *args, **kwargs)
    return _through(call, functools.partial(flagged, call, slot), target, args, kwargs)


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

    return _named(augmented, f"{name}_at")


def method_pair(name: str) -> Callable[..., list[Any]]:
    """``place.<name>(...)`` for an entry of a container; its value, and the name's new one."""
    compute = method(name)

    def call(place: Place, *args: Any, **kwargs: Any) -> list[Any]:
        if is_state(place):
            return [getattr(place[0], name)(*args, **kwargs), root_of(place)]
        value = compute(place[0], *args, **kwargs)
        return [value, overwrite(place, value)]

    return _named(call, f"{name}pair")


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

    return _named(call, name)


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


def _named(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    call.__name__ = call.__qualname__ = name
    return call


AUGMENTED_HELPERS = {name: _augmented(name) for name in AUGMENTED_FUNCTIONS}
_FIXED: dict[str, Any] = {
    "function": function,
    "function_at": _root_only(function_pair, "function_at"),
    "function_pair": function_pair,
    "flagged": flagged,
    "flagged_at": _root_only(flagged_pair, "flagged_at"),
    "flagged_pair": flagged_pair,
    "out": written_out,
    "own": own,
    "through_function": through_function,
    "through_flagged": through_flagged,
    "through_call": through_call,
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
