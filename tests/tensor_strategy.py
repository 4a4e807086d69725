"""Random tensors of every dtype and layout, and an oracle that copies them byte for byte."""

import math
import os

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

EXAMPLES = int(os.environ.get("SAFEMODULES_EXAMPLES", "0"))


def examples(number: int) -> settings:
    """Settings of a property: as many examples, always the same ones; more where asked for."""
    return settings(
        max_examples=EXAMPLES or number,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
LAYOUTS = ("dense", "gaps", "transposed", "expanded", "odd ones", "channels last", "windows")
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, math.inf, -math.inf, math.nan)

shapes = st.lists(st.sampled_from([2, 3, 1, 4, 0]), max_size=4).map(tuple)
seeds = st.integers(0, 1000)


def random_values(size: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Values between -3 and 3, with zeros, infinities and NaNs among those of a float."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(size, generator=generator, dtype=torch.float64) * 6 - 3
    if dtype.is_floating_point and seed % 3 == 0 and size:
        where = torch.randint(size, (min(size, len(SPECIAL)),), generator=generator)
        values[where] = torch.tensor(SPECIAL, dtype=torch.float64)[: len(where)]
    if dtype.is_complex:
        return torch.complex(values, values.flip(0)).to(dtype)
    if dtype is torch.uint8:
        values = values.abs()
    return values > 0 if dtype is torch.bool else values.to(dtype)


def geometry(shape: tuple[int, ...], layout: str) -> tuple[list[int], int]:
    """Strides and storage offset of a shape in a layout."""
    strides = [1] * len(shape)
    order = list(reversed(range(len(shape))))
    if layout == "transposed":
        order = order[::-1]
    if layout == "channels last" and len(shape) == 4:
        order = [1, 3, 2, 0]
    step = 2 if layout == "gaps" else 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    if layout == "expanded" and shape:
        strides[len(shape) // 2] = 0
    if layout == "odd ones":
        strides = [7 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]
    if layout == "windows" and len(shape) > 1:
        strides[-2] = 1
    return strides, 3 if layout == "gaps" else 0


def laid_out(storage: Tensor, shape: tuple[int, ...], layout: str) -> Tensor:
    """A view of a one-dimensional tensor, in a shape and layout."""
    strides, offset = geometry(shape, layout)
    return storage.as_strided(shape, strides, offset)


def storage_size(shape: tuple[int, ...], layout: str) -> int:
    strides, offset = geometry(shape, layout)
    return offset + 1 + sum(max(n - 1, 0) * s for n, s in zip(shape, strides, strict=True)) + 2


@st.composite
def tensors(draw, dtypes=DTYPES, shape=shapes, layouts=LAYOUTS):
    """A tensor; its storage holds a few elements more than it shows."""
    shape = shape if isinstance(shape, tuple) else draw(shape)
    dtype, layout = draw(st.sampled_from(dtypes)), draw(st.sampled_from(layouts))
    storage = random_values(storage_size(shape, layout), dtype, draw(seeds))
    return laid_out(storage, shape, layout)


def broadcastable(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes that broadcast with a shape, mostly without enlarging it."""

    @st.composite
    def made(draw):
        drop = draw(st.integers(0, len(shape)))
        kept = tuple(1 if draw(st.booleans()) else size for size in shape[drop:])
        return draw(st.sampled_from([shape, kept, kept, (2, *shape), (*shape[:-1], 5)]))

    return made()


scalars = st.one_of(
    st.integers(-3, 3),
    st.floats(-3, 3, width=16),
    st.booleans(),
    st.sampled_from([2.5, 1j, 2 - 1j, 300, 10**12, math.nan]),
)


@st.composite
def operands(draw, target, tensor_only=False):
    """A number, or a tensor that may broadcast with a target, of its dtype or another one."""
    if not tensor_only and draw(st.booleans()):
        return draw(scalars)
    dtypes = (target.dtype,) if draw(st.booleans()) else DTYPES
    shape = target.shape if draw(st.booleans()) else draw(broadcastable(tuple(target.shape)))
    return draw(tensors(dtypes, tuple(shape), ("dense", "dense", "transposed", "gaps")))


def oracle_copy(tensor: Tensor) -> Tensor:
    """A tensor with a storage of its own, in which every byte is the same."""
    copy = torch.empty(0, dtype=tensor.dtype)
    storage = tensor.detach().untyped_storage().clone()
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def bits(tensor: Tensor) -> bytes:
    """The elements as bytes."""
    dense = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return dense.view(torch.uint8).numpy().tobytes()


def storage_bits(tensor: Tensor) -> bytes:
    """The whole storage as bytes."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return whole.numpy().tobytes()
