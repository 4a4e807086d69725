"""Digests of tensors: what is compared instead of a kept second set of them."""

import ctypes
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["TensorDigest", "difference_reason", "digest_tensor"]


@dataclass(frozen=True)
class TensorDigest:
    """What one tensor was: its description and a hash of its bits.

    Args:
        hash: SHA-256 of the elements' bytes in logical order; empty on the meta device.
        shape: Sizes.
        dtype: Data type, as torch prints it.
        stride: Strides, empty for a layout without them.
        device: Device.
        requires_grad: Whether the tensor required grad.
        has_nan: Whether a floating or complex element is NaN, where that was looked for.
        value: A copy on the CPU, kept only for a comparison with a tolerance.
    """

    hash: str
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    device: str
    requires_grad: bool = False
    has_nan: bool = False
    value: Tensor | None = field(default=None, compare=False, repr=False)

    def layout(self) -> tuple[int, ...]:
        """Return the strides that matter: those of dimensions with more than one element."""
        if 0 in self.shape or not self.stride:
            return ()
        return tuple(s for n, s in zip(self.shape, self.stride, strict=True) if n > 1)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)} on {self.device}"


def _dense_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield dense CPU tensors that together hold everything the tensor does."""
    tensor = tensor.detach()
    if tensor.is_nested:
        for part in tensor.unbind():
            yield from _dense_parts(part)
        return
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.as_subclass(Tensor)
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    yield tensor.resolve_conj().resolve_neg().cpu().contiguous()


def _hash_tensor(tensor: Tensor) -> str:
    digest = hashlib.sha256()  # most processors have instructions for it
    for part in _dense_parts(tensor):
        size = part.numel() * part.element_size()
        if size:
            digest.update((ctypes.c_char * size).from_address(part.data_ptr()))
    return digest.hexdigest()


def _has_nan(tensor: Tensor) -> bool:
    if tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided:
        return False
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    values = tensor.detach()
    if tensor.is_floating_point() and tensor.element_size() == 1:
        values = values.float()  # float8 has no isnan
    return bool(values.isnan().any())


def digest_tensor(
    tensor: Tensor, *, keep_value: bool = False, look_for_nan: bool = False
) -> TensorDigest:
    """Describe and hash a tensor.

    Args:
        tensor: Any tensor.
        keep_value: Keep a copy on the CPU.
        look_for_nan: Fill in ``has_nan``.

    Returns:
        The digest.

    Example:
        >>> import torch
        >>> from safemodules.verification.digests import digest_tensor
        >>> digest_tensor(torch.zeros(2)).hash == digest_tensor(-torch.zeros(2)).hash
        False
    """
    with torch.no_grad():
        return TensorDigest(
            hash="" if tensor.is_meta else _hash_tensor(tensor),
            shape=tuple(int(n) for n in tensor.shape) if not tensor.is_nested else (),
            dtype=str(tensor.dtype).removeprefix("torch."),
            stride=tuple(tensor.stride()) if tensor.layout == torch.strided else (),
            device=str(tensor.device),
            requires_grad=tensor.requires_grad,
            has_nan=look_for_nan and _has_nan(tensor),
            value=tensor.detach().cpu().clone() if keep_value else None,
        )


def difference_reason(
    reference: TensorDigest | None,
    candidate: TensorDigest | None,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    strides: bool = True,
) -> str | None:
    """Say how two tensors differ, or return None where they do not.

    With a tolerance and kept values the elements are compared as
    ``|candidate - reference| <= atol + rtol * |reference|``, equal infinities and NaN being
    equal, and strides are not compared. Without, bit for bit.

    Args:
        reference: The expected tensor, None where there is none.
        candidate: The tensor to judge.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        strides: Whether strides are compared.

    Returns:
        The reason, in one line.
    """
    if reference is None or candidate is None:
        if reference is candidate:
            return None
        have, lack = "reference", "candidate"
        if reference is None:
            have, lack = lack, have
        return f"the {have} has {reference or candidate}, the {lack} has none"
    for name, expected, found in (
        ("shape", list(reference.shape), list(candidate.shape)),
        ("dtype", reference.dtype, candidate.dtype),
        ("device", reference.device, candidate.device),
    ):
        if expected != found:
            return f"{name} is {found}, expected {expected}"
    tolerant = rtol > 0 or atol > 0
    if strides and not tolerant and reference.layout() != candidate.layout():
        return f"strides are {candidate.stride}, expected {reference.stride}"
    if reference.hash == candidate.hash:
        return None
    if reference.value is None or candidate.value is None:
        return "values differ"
    return _value_reason(reference.value, candidate.value, rtol, atol)


def _value_reason(expected: Tensor, found: Tensor, rtol: float, atol: float) -> str | None:
    if expected.layout != torch.strided or expected.is_nested or expected.is_quantized:
        return "values differ"
    if not (expected.is_floating_point() or expected.is_complex()):
        return f"{int((expected != found).sum())} of {expected.numel()} elements differ"
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, found = expected.to(wide), found.to(wide)
    if torch.allclose(found, expected, rtol=rtol, atol=atol, equal_nan=True):
        return None
    worst = (found - expected).abs().nan_to_num(nan=math.inf).max().item()
    return f"values differ by up to {worst:.3g} (rtol={rtol:g}, atol={atol:g})"
