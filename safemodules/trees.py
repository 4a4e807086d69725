"""Tensors in nested inputs and outputs.

Models take and return tensors in lists, named tuples, mappings (``transformers``' outputs
are one), dataclasses and plain objects. :func:`flatten_tensors` lists them under readable
paths, :func:`map_tensors` rebuilds the whole with other tensors, and :func:`clone_inputs`
makes the copies on which a model may run without touching the caller's data.
"""

import copy
import dataclasses
import enum
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

__all__ = [
    "CallArguments",
    "clone_inputs",
    "clone_tensor",
    "describe_structure",
    "flatten_tensors",
    "map_tensors",
]

T = TypeVar("T")

_PRIMITIVES: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
)

# Objects with a __dict__ that is no part of a value, or that must not be copied.
_OPAQUE: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.GeneratorType,
    nn.Module,
    *_PRIMITIVES,
)


class CallArguments(NamedTuple):
    """The arguments of one call; its tensors have paths like ``inputs[0]`` or ``kwargs["m"]``.

    Args:
        inputs: Positional arguments.
        kwargs: Keyword arguments.
    """

    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Item(NamedTuple):
    path: str
    value: object
    is_container: bool


def _attributes(obj: object) -> dict[str, object]:
    """Return what an object keeps in its ``__dict__`` and ``__slots__``."""
    found: dict[str, object] = {}
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                found[name] = getattr(obj, name)
    namespace = getattr(obj, "__dict__", None)
    if isinstance(namespace, dict):
        found.update(namespace)
    return found


def _key(key: object) -> str:
    return f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"


def _children(obj: object) -> list[tuple[str, object]] | None:
    """Return (path suffix, child) pairs of a container, None for a leaf."""
    if isinstance(obj, (Tensor, *_OPAQUE)):
        return None
    if isinstance(obj, Mapping):
        return [(_key(key), obj[key]) for key in obj]
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return [(f".{name}", getattr(obj, name)) for name in obj._fields]
    if isinstance(obj, (list, tuple, deque)):
        return [(f"[{index}]", child) for index, child in enumerate(obj)]
    if isinstance(obj, (set, frozenset)):
        tensors = [child for child in obj if isinstance(child, Tensor)]
        return [(f"{{{i}}}", child) for i, child in enumerate(tensors)] or None
    attributes = _attributes(obj)
    if not attributes and not dataclasses.is_dataclass(obj):
        return None
    return [(f".{name}", child) for name, child in attributes.items()]


def _walk(obj: object, root: str) -> Iterator[_Item]:
    """Yield every container and leaf, depth first, in the order of the containers."""
    open_ids: set[int] = set()  # containers on the path from the root: a cycle ends there
    seen_objects: set[int] = set()  # plain objects form webs, so each is entered once
    keep: list[object] = []  # children made on the fly must outlive the ids noted here

    def visit(value: object, path: str) -> Iterator[_Item]:
        children = _children(value)
        if children is None:
            yield _Item(path, value, is_container=False)
            return
        if id(value) in open_ids or id(value) in seen_objects:
            return
        keep.append(children)
        if not isinstance(value, (Mapping, list, tuple, deque, set, frozenset)):
            seen_objects.add(id(value))
        open_ids.add(id(value))
        yield _Item(path, value, is_container=True)
        for suffix, child in children:
            yield from visit(child, (path + suffix) if path else suffix.removeprefix("."))
        open_ids.discard(id(value))

    yield from visit(obj, root)


def flatten_tensors(obj: object, root: str = "out") -> list[tuple[str, Tensor]]:
    """List every tensor in a nested value with the path that leads to it.

    Lists, tuples, named tuples, mappings, dataclasses and objects with attributes are
    entered; an ``nn.Module``, a class or a function is not. A tensor that occurs twice is
    listed twice.

    Args:
        obj: Any value.
        root: Name of the value itself, the start of every path.

    Returns:
        (path, tensor) pairs in the order of the containers.

    Example:
        >>> import torch
        >>> from safemodules.trees import flatten_tensors
        >>> value = {"feats": [torch.zeros(1), torch.zeros(2)], "n": 3}
        >>> [path for path, _ in flatten_tensors(value)]
        ['out["feats"][0]', 'out["feats"][1]']
    """
    return [(item.path, item.value) for item in _walk(obj, root) if isinstance(item.value, Tensor)]


def describe_structure(obj: object, root: str = "out") -> dict[str, str]:
    """Describe everything in a nested value that is not a tensor.

    Args:
        obj: Any value.
        root: Name of the value itself.

    Returns:
        For each path the type of a container or the value of a leaf. An object without a
        stable printed form stands as the name of its type.

    Example:
        >>> from safemodules.trees import describe_structure
        >>> describe_structure([1, (None,)])
        {'out': 'list of 2', 'out[0]': '1', 'out[1]': 'tuple of 1', 'out[1][0]': 'None'}
    """
    described: dict[str, str] = {}
    for path, value, is_container in _walk(obj, root):
        if isinstance(value, Tensor):
            continue
        name = type(value).__qualname__
        if is_container:
            size = len(_children(value) or ())
            described[path] = f"{name} of {size}"
        else:
            described[path] = repr(value) if isinstance(value, _PRIMITIVES) else name
    return described


def _is_copyable(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        # Whatever a foreign __deepcopy__ or __reduce__ raises: the object stays itself.
        return False
    return True


def map_tensors(fn: Callable[[Tensor], object], obj: T) -> T:
    """Rebuild a nested value with every tensor replaced by ``fn(tensor)``.

    Containers and objects are new; a tensor met twice is replaced by one and the same
    result, so what was shared stays shared. Values without tensors are deep-copied. An
    ``nn.Module``, and what cannot be copied (a lock, a file, a generator), is handed on as
    it is.

    Args:
        fn: Called once for each distinct tensor.
        obj: Any value; it is not changed.

    Returns:
        The rebuilt value, of the same types.

    Example:
        >>> import torch
        >>> from safemodules.trees import map_tensors
        >>> t = torch.ones(2)
        >>> mapped = map_tensors(lambda t: t + 1, {"a": t, "b": [t, 7]})
        >>> mapped["a"], mapped["a"] is mapped["b"][0], mapped["b"][1]
        (tensor([2., 2.]), True, 7)
    """
    # deepcopy knows how to rebuild every kind of container; a memo filled beforehand makes
    # it take our tensors instead of copying the old ones.
    memo: dict[int, Any] = {}
    keep: list[object] = []
    for _, value, is_container in _walk(obj, "out"):
        if is_container or isinstance(value, _PRIMITIVES) or id(value) in memo:
            continue
        keep.append(value)
        if isinstance(value, Tensor):
            memo[id(value)] = fn(value)
        elif isinstance(value, nn.Module) or not _is_copyable(value):
            memo[id(value)] = value
    return copy.deepcopy(obj, memo)


def clone_tensor(tensor: Tensor) -> Tensor:
    """Copy a tensor, differentiably, keeping its strides.

    ``Tensor.clone`` makes a dense copy of a tensor with gaps (``x[:, ::2]``); this one
    keeps the gaps. Only an expanded dimension (stride 0) is copied once and expanded again.

    Args:
        tensor: Any tensor.

    Returns:
        A tensor with its own memory and the same shape, strides, dtype and device.

    Example:
        >>> import torch
        >>> from safemodules.trees import clone_tensor
        >>> x = torch.arange(8.0).reshape(2, 4)[:, ::2]
        >>> x.clone().stride(), clone_tensor(x).stride()
        ((2, 1), (4, 2))
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.clone()
    dense = tensor.clone()
    if dense.stride() == tensor.stride():
        return dense
    core = tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            core = core.narrow(dim, 0, 1)
    try:
        copied = torch.empty_strided(
            core.shape, core.stride(), dtype=tensor.dtype, device=tensor.device
        ).copy_(core)
    except RuntimeError:
        return dense  # overlapping windows (as_strided): no copy has such strides
    return copied.expand(tensor.shape) if core is not tensor else copied


def clone_inputs(
    obj: T, *, requires_grad: bool, root: str = "inputs"
) -> tuple[T, dict[str, Tensor]]:
    """Copy inputs so that a model may be run on them, and written into.

    With ``requires_grad`` each floating or complex tensor is handed over as a non-leaf copy
    of a fresh leaf: the model may overwrite it (a leaf may not be overwritten), and the
    gradient arrives at the leaf. A tensor that occurs twice stays one tensor; two views of
    one memory become independent.

    Args:
        obj: Any nested value.
        requires_grad: Whether gradients for the inputs are wanted.
        root: Name of the value itself, the start of every path.

    Returns:
        The copy, and the leaves by path (empty without ``requires_grad``).

    Example:
        >>> import torch
        >>> from safemodules.trees import clone_inputs
        >>> copied, leaves = clone_inputs([torch.ones(2), 1], requires_grad=True)
        >>> copied[0].is_leaf, list(leaves)
        (False, ['inputs[0]'])
    """
    paths: dict[int, str] = {}
    for path, tensor in flatten_tensors(obj, root):
        paths.setdefault(id(tensor), path)
    leaves: dict[str, Tensor] = {}

    def copy_one(tensor: Tensor) -> Tensor:
        leaf = clone_tensor(tensor.detach()).detach()
        if not requires_grad or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        leaves[paths[id(tensor)]] = leaf.requires_grad_()
        return clone_tensor(leaf)

    with torch.inference_mode(False), torch.enable_grad():
        return map_tensors(copy_one, obj), leaves
