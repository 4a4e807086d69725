"""Digests of tensors and of nested outputs: equality of bits without a second copy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def digest(tensor: Tensor) -> str:
    """Type, shape, strides and a hash of the elements' bytes, in the order of the elements.

    Args:
        tensor: Any strided tensor; its bits are read, so ``nan`` equals the same ``nan`` and
            ``-0.0`` differs from ``0.0``.
    """
    tensor = tensor.detach()
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if tensor.layout != torch.strided:
        return f"{kind} {tensor.layout} {digest(tensor.to_dense())}"
    # Strides of dimensions of size 1 (or of empty tensors) mean nothing.
    strides = [
        stride if size > 1 and tensor.numel() else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    # Conjugate and negative bits are resolved; an expanded tensor is written out.
    data = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    raw = data.view(torch.uint8).numpy().data if data.numel() else b""
    return f"{kind} strides {strides} {hashlib.sha256(raw).hexdigest()[:24]}"


def same_values(first: str, second: str) -> bool:
    """Whether two digests differ in nothing but their strides."""
    return _without_strides(first) == _without_strides(second)


def _without_strides(text: str) -> str:
    head, mark, tail = text.partition(" strides ")
    return head + tail.partition("] ")[2] if mark else text


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of every leaf of a nested output.

    Mappings, sequences and the attributes of plain objects (caches, dataclasses) are entered;
    modules, functions and types are not.
    """
    yield from _leaves(value, path or "value", set())


def _leaves(value: Any, path: str, entered: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Tensor, str, bytes, int, float, complex, type(None), torch.dtype)):
        yield path, value
    elif isinstance(value, (nn.Module, type)) or callable(value):
        yield path, type(value).__qualname__
    elif id(value) in entered:
        yield path, "again"
    else:
        entered.add(id(value))
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield from _leaves(item, f"{path}.{key}", entered)
        elif isinstance(value, Sequence):
            for index, item in enumerate(value):
                yield from _leaves(item, f"{path}.{index}", entered)
        elif hasattr(value, "__dict__"):
            yield path, type(value).__qualname__
            for key, item in vars(value).items():
                yield from _leaves(item, f"{path}.{key}", entered)
        else:
            yield path, type(value).__qualname__


def digest_leaf(value: Any) -> str:
    """The digest of a tensor, or the text of anything else."""
    return digest(value) if isinstance(value, Tensor) else f"{type(value).__name__} {value!r}"
