"""What edited code calls at run time, in place of in-place operations.

NOTE [ Exact by construction ]: the result of an out-of-place operator is used only if it
has the dtype, shape, strides and device of the tensor that the original would have
overwritten; on the same kernels that is the same values. In every other case (a promoted
dtype, broadcasting, a view with gaps, an error) the original in-place operator runs on a
copy that is laid out alike. So whatever the original does or refuses, the copy does.

Parameters are written in place as before: whoever overwrites a parameter means it.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, fx, nn

from safemodules.mutation.operators import (
    AUGMENTED_FUNCTIONS,
    RANDOM_FUNCTIONS,
    function_twins,
    method_kind,
    method_twin,
)

_OPERANDS = (Tensor, int, float, complex, torch.SymInt, torch.SymFloat)
_TWINS = dict(function_twins())  # a plain table: the compiler would warn of a cached function
ValueOfPlace = tuple[Any, Any, Any, bool]


def _written_in_place(target: Any) -> bool:
    return not isinstance(target, Tensor) or isinstance(target, nn.Parameter)


def copy_alike(tensor: Tensor) -> Tensor:
    """Copy a tensor, strides included.

    Raises:
        RuntimeError: the tensor overlaps itself; the in-place operators refuse it likewise.
    """
    if tensor.layout is not torch.strided:
        return tensor.clone()
    copy = tensor.clone()
    if copy.stride() == tensor.stride():
        return copy
    return empty_alike(tensor).copy_(tensor)


def empty_alike(tensor: Tensor) -> Tensor:
    """Unfilled memory in the shape, strides, dtype and on the device of a tensor."""
    if tensor.layout is not torch.strided:
        return torch.empty_like(tensor)
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def _alike(result: Any, target: Tensor) -> bool:
    return (
        type(result) is type(target)
        and result.layout is torch.strided
        and result.dtype is target.dtype
        and result.shape == target.shape
        and result.device == target.device
        and result.stride() == target.stride()
    )


def _augmented(name: str) -> Callable[[Any, Any], Any]:
    out_of_place, in_place = AUGMENTED_FUNCTIONS[name]

    def augmented(target: Any, value: Any) -> Any:
        if _written_in_place(target):
            return in_place(target, value)
        if isinstance(value, _OPERANDS) and target.layout is torch.strided:
            result = out_of_place(target, value)
            if _alike(result, target):
                return result
        return in_place(copy_alike(target), value)

    return _named(augmented, name)


def method(name: str) -> Callable[..., Any]:
    """The out-of-place form of ``target.<name>(...)``, for a tensor method ending in ``_``."""
    twin, overwrites = method_twin(name), method_kind(name) == "overwrite"

    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(target, fx.Proxy) and twin is not None:
            return getattr(target, twin)(*args, **kwargs)
        if _written_in_place(target):
            return getattr(target, name)(*args, **kwargs)
        if twin is not None and target.layout is torch.strided:
            result = getattr(target, twin)(*args, **kwargs)
            if _alike(result, target):
                return result
        copy = empty_alike(target) if overwrites else copy_alike(target)
        return getattr(copy, name)(*args, **kwargs)

    return _named(call, name)


def function(call: Callable[..., Any], target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The out-of-place form of ``F.elu_(target, ...)`` or ``torch.relu_(target)``."""
    twin = _TWINS.get(call)
    if isinstance(target, fx.Proxy) and twin is not None:
        return twin(target, *args, **kwargs)
    if _written_in_place(target):
        return call(target, *args, **kwargs)
    if twin is not None and target.layout is torch.strided and call not in RANDOM_FUNCTIONS:
        result = twin(target, *args, **kwargs)
        if _alike(result, target):
            return result
    return call(copy_alike(target), *args, **kwargs)


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
    if _written_in_place(target):
        return call(target, *args, **kwargs)
    result = _with_flag(call, slot, False, target, args, kwargs)
    if result is target or _alike(result, target):
        return result
    if call in RANDOM_FUNCTIONS:  # not a second time: that would draw other numbers
        return empty_alike(target).copy_(result)
    return _with_flag(call, slot, True, copy_alike(target), args, kwargs)


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
    if _written_in_place(out):
        return call(*args, out=out, **kwargs)
    return call(*args, out=empty_alike(out), **kwargs)


class _Key:
    """``KEY[1:, ::2]`` is the index ``(slice(1, None), slice(None, None, 2))``."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        return key


KEY = _Key()

# NOTE [ Places ]: `name[i].attr[k]` is evaluated once, from the name outwards, as a chain of
# (value, place of the container, key, whether the key is an attribute). Storing a new value
# goes inwards again: a tensor that contains it is copied and the copy stored in its own
# place, anything else takes the value as an entry. What is stored for the name is returned.


def at(root: Any) -> ValueOfPlace:
    """The place of a local name."""
    return root, None, None, False


def item(place: ValueOfPlace, key: Any) -> ValueOfPlace:
    """The place of ``place[key]``."""
    return place[0][key], place, key, False


def attribute(place: ValueOfPlace, name: str) -> ValueOfPlace:
    """The place of ``place.name``."""
    return getattr(place[0], name), place, name, True


def _store(place: ValueOfPlace, value: Any) -> Any:
    _, container, key, is_attribute = place
    if container is None:
        return value
    if is_attribute:
        setattr(container[0], key, value)
        return _root(container)
    return _set(container, key, value)


def _set(container: ValueOfPlace, key: Any, value: Any) -> Any:
    """``container[key] = value``; returns what the name at the root stands for afterwards."""
    holder = container[0]
    if _written_in_place(holder):
        holder[key] = value
        return _root(container)
    copy = copy_alike(holder)
    copy[key] = value
    return _store(container, copy)


def _root(place: ValueOfPlace) -> Any:
    while place[1] is not None:
        place = place[1]
    return place[0]


def set_item(value: Any, container: ValueOfPlace, key: Any) -> Any:
    """``container[key] = value`` out of place; the value comes first, as Python evaluates it."""
    return _set(container, key, value)


def set_item_late(container: ValueOfPlace, key: Any, value: Any) -> Any:
    """``container[key] = value`` out of place, where the order of evaluation cannot be seen."""
    return _set(container, key, value)


def augmented_at(name: str) -> Callable[[ValueOfPlace, Any], Any]:
    """``place op= value`` for a place behind a name; returns the name's new value."""
    compute = AUGMENTED_HELPERS[name]

    def augmented(place: ValueOfPlace, value: Any) -> Any:
        return _store(place, compute(place[0], value))

    return _named(augmented, f"{name}_at")


def _shares_memory(key: Any) -> bool:
    """Whether ``tensor[key]`` is a view: only integers, slices, ``None`` and ``...`` are used."""
    if isinstance(key, tuple):
        return all(_shares_memory(part) for part in key)
    if isinstance(key, Tensor):
        return key.dim() == 0 and not key.is_floating_point() and key.dtype is not torch.bool
    return key is None or key is Ellipsis or isinstance(key, slice) or _is_index(key)


def _is_index(key: Any) -> bool:
    return not isinstance(key, bool) and hasattr(key, "__index__")


def _stored(place: ValueOfPlace, value: Any) -> Any:
    """Store what a method or function has made of an entry; the name's new value."""
    entry, container, key, _ = place
    if value is entry or container is None:
        return value if container is None else _root(place)
    holder = container[0]
    if isinstance(holder, Tensor) and not _shares_memory(key):
        return _root(place)  # advanced indexing makes a copy: the original wrote to that
    if isinstance(holder, tuple):
        entries = list(holder)
        entries[key] = value
        made = tuple(entries) if type(holder) is tuple else type(holder)._make(entries)  # type: ignore[attr-defined]
        return _store(container, made)
    return _store(place, value)


def method_at(name: str) -> Callable[..., Any]:
    """``place.<name>(...)`` for an entry of a container; returns the name's new value."""
    compute = method(name)

    def call(place: ValueOfPlace, *args: Any, **kwargs: Any) -> Any:
        return _stored(place, compute(place[0], *args, **kwargs))

    return _named(call, f"{name}at")


def function_at(call: Callable[..., Any], place: ValueOfPlace, /, *args: Any, **kw: Any) -> Any:
    """``F.elu_(place, ...)`` for an entry of a container; returns the name's new value."""
    return _stored(place, function(call, place[0], *args, **kw))


def flagged_at(
    call: Callable[..., Any], slot: int | None, place: ValueOfPlace, /, *args: Any, **kw: Any
) -> Any:
    """``F.relu(place, inplace=True)`` for an entry of a container."""
    return _stored(place, flagged(call, slot, place[0], *args, **kw))


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
    "function_at": function_at,
    "flagged": flagged,
    "flagged_at": flagged_at,
    "out": written_out,
    "key": KEY,
    "at": at,
    "item": item,
    "attribute": attribute,
    "set": set_item,
    "set_late": set_item_late,
    "bind": bind,
}


@functools.cache
def helper(name: str) -> Any:
    """The run-time helper of a name that edits use, such as ``"iadd"`` or ``"m_relu_"``.

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
    assert kind in ("m", "ma"), name
    return method(rest) if kind == "m" else method_at(rest)
