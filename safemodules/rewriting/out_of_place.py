"""In-place operators out of place: an operator, a method, a function, a flag, ``out=``.

NOTE [ Exact by construction ]: the result of an out-of-place operator is used only if it
has the dtype, shape, strides and device of the tensor that the original would have
overwritten; on the same kernels that is the same values, and backward computes from the same
ones. In every other case (a promoted dtype, broadcasting, a view with gaps, random numbers,
an error, a gradient with other rounding) the original in-place operator runs on a copy that
is laid out alike. So whatever the original does or refuses, the copy does. It is the only
operator that raises: what the other one raises is not heard.

Two refusals are lifted, since nothing is overwritten: that of an operand which overlaps
the target, and that of a leaf which requires grad. An overlap that torch does not refuse is
left to it, see NOTE [ Overlap ].

Parameters are written in place as before: whoever overwrites a parameter means it. So is any
leaf that requires grad where no graph is recorded, as a parameter that a forward makes.
"""

from collections.abc import Callable
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
from safemodules.rewriting.copies import is_alike, keeps_history, stand_in, written_in_place
from safemodules.rewriting.overlap import on_itself, overlap

# What an operator raises of its arguments. Others are not its own: a checkpoint ends its
# recomputation with an exception that is raised where an operator saves its last tensor.
_REFUSALS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
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
    except _REFUSALS:  # the in-place operator says it in its own words
        return None
    return result if result is target or is_alike(result, target) else None


def _augmented(name: str) -> Callable[[Any, Any], Any]:
    out_of_place, in_place = AUGMENTED_FUNCTIONS[name]

    def augmented(target: Any, value: Any) -> Any:
        if written_in_place(target):
            return in_place(target, value)
        if isinstance(value, _OPERANDS):
            if overlap(target, (value,)) and (done := on_itself(in_place, target, value)):
                return done[0]
            result = _attempt(target, lambda: out_of_place(target, value))
            if result is not None:
                return result
        return in_place(stand_in(target), value)

    return named(augmented, name)


def method(name: str) -> Callable[..., Any]:
    """The out-of-place form of ``target.<name>(...)``, for a tensor method ending in ``_``."""
    twin, overwrites = method_twin(name), method_kind(name) == "overwrite"
    in_place = in_place_method(name)

    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(target, fx.Proxy) and twin is not None:
            return getattr(target, twin)(*args, **kwargs)
        if written_in_place(target):
            return getattr(target, name)(*args, **kwargs)
        if overlap(target, (*args, *kwargs.values()), name):
            if done := on_itself(in_place, target, *args, **kwargs):
                return done[0]
        if twin is not None:
            result = _attempt(target, lambda: getattr(target, twin)(*args, **kwargs))
            if result is not None:
                return result
        return getattr(stand_in(target, overwritten=overwrites), name)(*args, **kwargs)

    return named(call, name)


def in_place_method(name: str) -> Callable[..., Any]:
    """``target.<name>(...)`` as a function."""

    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(target, name)(*args, **kwargs)

    return call


def function(call: Callable[..., Any], target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The out-of-place form of ``F.elu_(target, ...)`` or ``torch.relu_(target)``."""
    twin = TWINS.get(call)
    if isinstance(target, fx.Proxy) and twin is not None:
        return twin(target, *args, **kwargs)
    if written_in_place(target):
        return call(target, *args, **kwargs)
    if overlap(target, (*args, *kwargs.values()), call):
        if done := on_itself(call, target, *args, **kwargs):
            return done[0]
    if twin is not None and call not in RANDOM_FUNCTIONS and call not in RESULT_FUNCTIONS:
        result = _attempt(target, lambda: twin(target, *args, **kwargs))
        if result is not None:
            return result
    return call(stand_in(target), *args, **kwargs)


def flagged(
    call: Callable[..., Any], slot: int | None, target: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """``F.relu(target, inplace=True)`` out of place; it is not asked whether the flag is set.

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
        return _with_flag(call, slot, True, target, args, kwargs)
    # out of place, an accelerator draws other numbers
    if call not in RESULT_FUNCTIONS and not _draws(call, args, kwargs):
        result = _attempt(target, lambda: _with_flag(call, slot, False, target, args, kwargs))
        if result is not None:
            return result
    return _with_flag(call, slot, True, stand_in(target), args, kwargs)


def flagged_if(
    call: Callable[..., Any],
    flag: Any,
    slot: int | None,
    target: Any,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``F.relu(target, inplace=flag)`` out of place, if the flag is set.

    A flag of ``None`` stands among the arguments only, since evaluating it may have effects.
    """
    if flag is None:
        flag = kwargs.get("inplace", False) if slot is None else args[slot - 1]
    if not flag:
        return call(target, *args, **kwargs)
    return flagged(call, slot, target, *args, **kwargs)


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
    if written_in_place(out):
        return call(*args, out=out, **kwargs)
    if overlap(out, (*args, *kwargs.values()), call):
        if done := on_itself(call, *args, out=out, **kwargs):
            return done[0]
    return call(*args, out=stand_in(out, overwritten=True), **kwargs)


def named(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A helper under the name of what it stands for."""
    call.__name__ = call.__qualname__ = name
    return call


AUGMENTED_HELPERS = {name: _augmented(name) for name in AUGMENTED_FUNCTIONS}
