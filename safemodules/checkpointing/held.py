"""Tensors that a recomputation is given: as they were when the forward met them.

==================  ====================================  ===================================
kept as             which tensors                         the recomputation gets
==================  ====================================  ===================================
:class:`Kept`       parameters                            the tensor itself
:class:`Saved`      other inputs and activations          an alias, saved as autograd saves
                                                          (so that outer hooks see it)
:class:`Copied`     what requires no gradient and is      a fresh copy of the values
                    small or known to be written
==================  ====================================  ===================================

What a region was seen to overwrite is copied from then on, whatever it is; so is, the first
time, whatever else it might. One that was overwritten without a copy is replaced by
:class:`Overwritten`, which raises as soon as it is read: what nobody reads may change.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from safemodules.checkpointing.versions import Token
from safemodules.errors import CheckpointError
from safemodules.mutation.internals import copy_all, save_tensor

__all__ = ["Copied", "Held", "Kept", "Overwritten", "Saved", "copies_of", "is_parameter"]

# What may be asked of a tensor without reading its values.
_METADATA: Final = frozenset(
    {
        *(getattr(Tensor, name).__get__ for name in ("dtype", "device", "layout", "shape", "ndim")),
        *(getattr(Tensor, name).__get__ for name in ("requires_grad", "is_leaf", "is_cuda")),
        Tensor.dim,
        Tensor.size,
        Tensor.numel,
        Tensor.is_floating_point,
        Tensor.is_complex,
    }
)


class Overwritten(Tensor):
    """Stands for a tensor whose values are gone; reading it raises."""

    _message: str

    @staticmethod
    def instead_of(token: Token, message: str) -> Tensor:
        """A stand-in with the same sizes."""
        found = token.placeholder().as_subclass(Overwritten)
        found._message = message
        return found

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: "dict[str, Any] | None" = None,
    ) -> Any:
        """Raise, unless only sizes, dtype or device are asked for."""
        if func in _METADATA:
            return super().__torch_function__(  # type: ignore[no-untyped-call]
                func, types, args, kwargs or {}
            )
        flat = [*args, *(kwargs or {}).values()]
        flat += [inner for value in flat if isinstance(value, (list, tuple)) for inner in value]
        for value in flat:
            if isinstance(value, Overwritten):
                raise CheckpointError(value._message)
        return super().__torch_function__(  # type: ignore[no-untyped-call]
            func, types, args, kwargs or {}
        )


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter; ``isinstance`` asks a metaclass, which takes longer."""
    return type(tensor) is not Tensor and isinstance(tensor, nn.Parameter)


class Held:
    """A tensor as the forward met it.

    Args:
        tensor: the tensor.
        path: where it was met; ``str`` of it is for messages.
    """

    __slots__ = ("_copy", "_is_parameter", "_requires_grad", "path", "token")

    token: Token

    def __init__(self, tensor: Tensor, path: object) -> None:
        self.path = path
        self._requires_grad = tensor.requires_grad
        self._is_parameter = is_parameter(tensor)
        self._copy: Tensor | None = None

    @property
    def copy(self) -> Tensor | None:
        """The values that the forward met, if somebody has copied them."""
        return self._copy

    def adopt(self, copy: Tensor) -> None:
        """Take a copy that was made before the region ran, and rely on it."""
        self._copy = copy

    def get(self, region: object) -> Tensor:
        """What a recomputation of a region is given, where there is no copy."""
        if self.token.is_stale:
            return Overwritten.instead_of(self.token, self._message(region))
        return self._unchanged()

    def dress(self, fresh: Tensor) -> Tensor:
        """Make a fresh copy of the values what the original was to autograd."""
        if self._is_parameter:
            return nn.Parameter(fresh, self._requires_grad)
        if not self._requires_grad:
            return fresh
        with torch.enable_grad():  # not a leaf, which could not be overwritten
            return fresh.requires_grad_().clone()

    def _unchanged(self) -> Tensor:
        raise NotImplementedError

    def _message(self, region: object) -> str:
        return (
            f"{self.path} of the checkpointed region {region} has been modified by an inplace "
            f"operation since the region was entered: {self.token} is at version "
            f"{self.token.found}, it had version {self.token.version}. Its former values are "
            f"gone, so the region cannot be computed again. Write the new values to a new "
            f"tensor, or have the region make a copy first and overwrite that."
        )


class Kept(Held):
    """A parameter: alive anyway, and given as it is."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor, path: object) -> None:
        super().__init__(tensor, path)
        self.token = Token(tensor)
        self._tensor = tensor

    def _unchanged(self) -> Tensor:
        return self._tensor


class Saved(Held):
    """An activation or an input, saved as an operation would save it.

    Detached, so that neither its graph nor a cycle through it is kept alive.
    """

    __slots__ = ("_saved",)

    def __init__(self, tensor: Tensor, path: object) -> None:
        super().__init__(tensor, path)
        self.token = Token(tensor)
        self._saved = save_tensor(tensor.detach())

    def adopt(self, copy: Tensor) -> None:
        """Take a copy, and let go of the tensor."""
        super().adopt(copy)
        self._saved = None

    def _unchanged(self) -> Tensor:
        # Under an outer checkpoint this computes the outer region again.
        found: Tensor = self._saved.unpack()
        return found.detach().requires_grad_(self._requires_grad)


class Copied(Held):
    """State that the region may write, or something so small that a copy costs nothing.

    The copies of a region are made all at once, by :func:`copies_of`; it has no token, since
    it is never looked at again.
    """

    __slots__ = ()


def _memory(tensor: Tensor) -> object:
    """What tells the memory of one tensor from another's."""
    if type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta and tensor.numel():
        return tensor.untyped_storage().data_ptr()
    return object()


def copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies with the sizes and strides of their originals, and with their sharing of memory.

    Args:
        tensors: any number of tensors, of any dtypes and devices.
    """
    owners: dict[object, list[int]] = {}
    for index, tensor in enumerate(tensors):
        owners.setdefault(_memory(tensor), []).append(index)
    found: list[Tensor] = list(tensors)
    alone: list[int] = []
    with torch.no_grad():
        for group in owners.values():
            if len(group) == 1 and tensors[group[0]].is_contiguous():
                alone += group
                continue
            storage = tensors[group[0]].untyped_storage().clone()  # type: ignore[no-untyped-call]
            for index in group:
                tensor = tensors[index]
                view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                found[index] = view.set_(
                    storage, tensor.storage_offset(), tensor.size(), tensor.stride()
                )
        fresh = [torch.empty_like(tensors[index]) for index in alone]
        copy_all(fresh, [tensors[index] for index in alone])
    for index, copy in zip(alone, fresh, strict=True):
        found[index] = copy
    return found
