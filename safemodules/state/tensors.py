"""Snapshots of single tensors, and of the memory behind them.

NOTE [ Parameters Are Watched, Not Copied ]
A forward does not write parameters, and a second set of them may not fit. A parameter is
therefore watched: by its version counter, and, since ``.data`` writes past the counter, by
sums over its bit patterns and values (nothing else is kept). A run that did write
one is an error that names it.

NOTE [ Restoring Does Not Count As A Write ]
Values are written through ``tensor.data``, whose version counter is its own. The tensor
ends with the bits that it had, so a graph that saved it before the snapshot stays valid;
batch norm's own writes do not move the counter either.
"""

from typing import Final

import torch
from torch import Tensor

__all__ = ["TensorRecord", "tensor_bits"]

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensor_bits(tensor: Tensor) -> Tensor:
    """View a strided tensor's bit patterns as integers, so that NaN and -0.0 compare.

    Args:
        tensor: A strided tensor of any dtype.

    Returns:
        An integer view: the same shape, or two integers per element for complex numbers.
    """
    tensor = tensor.detach().as_subclass(Tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.resolve_neg().view(_INTEGERS[tensor.element_size()])


def _is_plain(tensor: Tensor) -> bool:
    """Tell whether the tensor has memory of its own to read and to write."""
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested


def _core(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that has one memory cell per element."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _fingerprint(tensor: Tensor) -> tuple[int, str] | None:
    """Sum the bit patterns and the values: sees any write but a mere reordering.

    The bit patterns are summed with wrap-around, where two flipped signs cancel; the sum
    of the values sees those.
    """
    if not _is_plain(tensor) or tensor.numel() == 0:
        return None
    bits = tensor_bits(tensor)
    values = tensor.float() if tensor.element_size() == 1 else tensor
    return int(bits.sum(dtype=bits.dtype).item()), repr(values.sum().item())


def _same_memory(a: Tensor, b: Tensor) -> bool:
    if not (_is_plain(a) and _is_plain(b)):
        return a.shape == b.shape and a.layout == b.layout
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
    )


class TensorRecord:
    """A tensor: its memory, whether it requires grad, its ``.grad``, and its values.

    Args:
        path: Where the tensor was found, for messages.
        tensor: The tensor.
        copy_values: Keep a copy of the values, or only watch them.
    """

    def __init__(self, path: str, tensor: Tensor, *, copy_values: bool) -> None:
        self.path = path
        self.tensor = tensor
        self.alias = tensor.data  # See NOTE [ Restoring Does Not Count As A Write ].
        self.is_leaf = tensor.is_leaf
        self.requires_grad = tensor.requires_grad
        self.grad = tensor.grad if tensor.is_leaf else None
        self.grad_version = None if self.grad is None else _version(self.grad)
        self.version = _version(tensor)
        self.fingerprint = None if copy_values else _fingerprint(self.alias)
        self.values: Tensor | None = None
        if copy_values and not tensor.is_meta:
            self.values = (_core(self.alias) if _is_plain(tensor) else self.alias).clone()

    def restore(self) -> str | None:
        """Put everything back; return what cannot be mended, None if all could."""
        tensor = self.tensor
        if not _same_memory(tensor, self.alias):
            tensor.data = self.alias
        if self.is_leaf and not tensor.is_leaf:
            try:
                tensor.detach_()
            except RuntimeError as error:
                return f"{self.path} became part of a graph and stays in it ({error})"
        if self.is_leaf and tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if self.is_leaf and tensor.grad is not self.grad:
            tensor.grad = self.grad
        if self.grad is not None and _version(self.grad) != self.grad_version:
            return f"{self.path}.grad was overwritten"
        return self._restore_values()

    def _restore_values(self) -> str | None:
        if self.values is not None:
            with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
                self._write(self.values)
            return None
        if _version(self.tensor) != self.version or (
            self.fingerprint is not None and _fingerprint(self.alias) != self.fingerprint
        ):
            return f"{self.path} was overwritten"
        return None

    def _write(self, values: Tensor) -> None:
        if not _is_plain(self.alias):
            if _version(self.tensor) != self.version:
                self.alias.copy_(values)
            return
        core = _core(self.alias)
        if not torch.equal(tensor_bits(core), tensor_bits(values)):
            core.copy_(values)
