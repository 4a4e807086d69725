"""What a recorder keeps of an operation: addresses, versions and lines, never a tensor."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from safemodules.mutation import internals
from safemodules.mutation.frames import Where
from safemodules.mutation.operators import flagged_functions

__all__ = [
    "UNDECLARED",
    "Backward",
    "Call",
    "Failure",
    "Operand",
    "Operation",
    "Write",
    "changed",
    "describe",
    "hidden_writes",
    "may_write",
    "new_bases",
    "state_tensors",
    "storage_of",
    "tensors_in",
    "version_of",
    "versions_of",
    "with_bases",
]


class Operand(NamedTuple):
    """A tensor as an operation saw it.

    Attributes:
        storage: identity of its storage; 0 where it has none.
        version: its version after the operation.
        shape: its sizes.
        dtype: its dtype.
        parameter: it is a leaf that requires grad.
        requires_grad: it requires grad.
        token: an empty tensor that shares its version counter, where one was asked for.
    """

    storage: int
    version: int
    shape: torch.Size
    dtype: torch.dtype
    parameter: bool
    requires_grad: bool
    token: Tensor | None = None


class Call(NamedTuple):
    """A call that can be repeated on tensors without data.

    Attributes:
        func: the function.
        args: positional arguments, with an :class:`Operand` for each tensor.
        kwargs: keyword arguments, likewise.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Operation(NamedTuple):
    """One operation that was recorded.

    Attributes:
        name: its name, such as ``"sigmoid"`` or ``"add_"``.
        where: the line and module.
        time: its number; later operations have larger ones.
        inputs: tensors it was given.
        outputs: tensors it returned.
        hooked: saved-tensor hooks were active, so torch makes no check of its own.
        call: how to repeat it, where that may be needed.
    """

    name: str
    where: Where
    time: int
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    hooked: bool = False
    call: Call | None = None


class Write(NamedTuple):
    """One write to a storage.

    Attributes:
        operation: what wrote.
        target: the tensor afterwards.
        recording: gradients were on.
        declared: it moved the version counter of the tensor; batch norm's statistics move
            none, and a tensor made by ``.data`` has a counter of its own.
    """

    operation: Operation
    target: Operand
    recording: bool
    declared: bool = True


@dataclass(frozen=True)
class Backward:
    """A backward that ran.

    Attributes:
        where: the line that called it.
        time: its number among operations.
        outputs: the tensors it started from, where it raised.
    """

    where: Where
    time: int
    outputs: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Failure:
    """An operation that raised.

    Attributes:
        operation: the operation.
        error: what it raised.
        made: what had made its first input, if that was recorded.
    """

    operation: Operation
    error: BaseException
    made: Operation | None


# NOTE [ Undeclared writes ]: operations that overwrite a tensor without moving its version,
# and the positions of what they overwrite. Source: the schema of `native_batch_norm` marks no
# argument as written, although it updates the running statistics in training mode.
# `instance_norm` is not listed: it updates them by `copy_`, which moves the version. Nor do
# the fused optimizers (`_fused_adam_` and so on) move the versions of the parameters, which
# they take as their first list (measured, torch 2.14.1).
_STATISTICS = ("running_mean", "running_var")
UNDECLARED: dict[Callable[..., Any], tuple[str, ...]] = {
    F.batch_norm: ("input", *_STATISTICS, "weight", "bias", "training"),
    torch.batch_norm: ("input", "weight", "bias", *_STATISTICS, "training"),
    torch.native_batch_norm: ("input", "weight", "bias", *_STATISTICS, "training"),
}


def storage_of(tensor: Tensor) -> int:
    """Identity of a tensor's storage, 0 where it has none.

    Not the address of its data: empty tensors and those on ``meta`` all share one.
    """
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError, AttributeError):  # sparse, functional and so on
        return 0


def version_of(tensor: Tensor) -> int:
    """A tensor's version, 0 for an inference tensor, which has none."""
    return 0 if tensor.is_inference() else tensor._version


def describe(tensor: Tensor, token: bool = False) -> Operand:
    """Describe a tensor as it is now.

    Args:
        tensor: any tensor.
        token: also follow its version, at no cost in memory.
    """
    needs = tensor.requires_grad
    try:
        leaf = needs and tensor.is_leaf
    except RuntimeError:  # a view that was written where autograd cannot follow
        leaf = False
    return Operand(
        storage_of(tensor),
        version_of(tensor),
        tensor.shape,
        tensor.dtype,
        leaf,
        needs,
        _token(tensor) if token else None,
    )


def _token(tensor: Tensor) -> Tensor | None:
    """An empty tensor that shares a tensor's version counter."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.is_inference():
        return None
    try:
        token = tensor.detach()
        token.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    except (RuntimeError, NotImplementedError):  # sparse, functorch
        return None
    return token


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Tensors among values and in lists and tuples among them."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [entry for entry in value if isinstance(entry, Tensor)]
    return found


def with_bases(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors, and those of which they are views."""
    return [*tensors, *(tensor._base for tensor in tensors if tensor._base is not None)]


def new_bases(results: list[Tensor], given: list[Tensor]) -> list[Tensor]:
    """Tensors of which the results are views, and which the operation made itself."""
    bases = [result._base for result in results if result._base is not None]
    if not bases:
        return bases
    old = {id(tensor if tensor._base is None else tensor._base) for tensor in given}
    return [base for base in bases if id(base) not in old]


def may_write(name: str, func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation is of a form that may overwrite what it is given."""
    if name.endswith("_"):
        inner = name.startswith("__")
        return not inner or name in ("__setitem__", "__set__") or name.startswith("__i")
    return name.startswith("_fused_") or "out" in kwargs or func in flagged_functions()


def hidden_writes(
    name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterable[Tensor]:
    """Tensors that are overwritten without moving a version."""
    if name == "__set__":
        if getattr(func, "__self__", None) is internals.DATA and isinstance(args[1], Tensor):
            return (args[0],)  # a leaf that a node has saved is read again from here
    elif name.startswith("_fused_") and name.endswith("_"):
        return tensors_in(args[:1])  # the parameters
    elif func in UNDECLARED:
        given = {**dict(zip(UNDECLARED[func], args, strict=False)), **kwargs}
        if given.get("training"):
            return [t for t in map(given.get, _STATISTICS) if isinstance(t, Tensor)]
    return ()


def versions_of(tensors: list[Tensor], plain: bool) -> list[int]:
    """Versions of tensors, 0 for inference tensors, which have none."""
    if plain:
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    with internals.as_plain_tensors():
        return list(map(version_of, tensors))


def changed(tensors: list[Tensor], before: list[int], now: list[int]) -> list[Tensor]:
    """Tensors whose versions moved, each once."""
    moved = zip(tensors, before, now, strict=True)
    return list({id(tensor): tensor for tensor, old, new in moved if old != new}.values())


def state_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and tensors in plain attributes, with dotted names."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        tables = (module._parameters, module._buffers, module.__dict__)
        for table in tables:
            for name, value in table.items():
                if isinstance(value, Tensor):
                    yield prefix + name, value
                elif isinstance(value, list | tuple) and table is module.__dict__:
                    for index, entry in enumerate(value):
                        if isinstance(entry, Tensor):
                            yield f"{prefix}{name}[{index}]", entry
