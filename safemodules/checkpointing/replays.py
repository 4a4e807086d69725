"""Which operators may be run again in place of keeping their results, and how.

NOTE [ Replays ]: below autograd an operator is a pure function of its arguments, or its schema
says that it writes or draws random numbers. What is pure can be run again at any time, from the
same arguments, without running any Python code of the model again: no hook, no buffer, no
stream of random numbers, no autocast takes part. The exceptions, operators that write without
saying so, stand in the table below with the way to run them without a trace.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["Rule", "rule_of"]

_ATEN = torch.ops.aten
_SEEDED = torch.Tag.nondeterministic_seeded


@dataclass(frozen=True)
class Rule:
    """How an operator is run again.

    Attributes:
        run: computes its results from the operator, its arguments, and those of its results
            that are kept.
        kept: positions of small results that are kept in any case, and help.
    """

    run: Callable[[Any, tuple[Any, ...], dict[str, Any], tuple[Any, ...]], Any]
    kept: tuple[int, ...] = ()


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> Any:
    return func(*args, **kwargs)


# -- batch norm -----------------------------------------------------------------------------

# Whether the short way gives the same bits here, per kind of tensor.
_short_way_is_exact: dict[tuple[Any, ...], bool] = {}


def _batch_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kept: Any) -> Any:
    """Batch norm without its running statistics, and without measuring the batch again."""
    x, weight, bias, _, _, training, momentum, eps = args
    if not training:
        return func(*args, **kwargs)
    if weight is not None and bias is not None and _takes_short_way(func, x, weight, eps):
        return _short_way(func, x, weight, bias, kept), None, None
    return func(x, weight, bias, None, None, training, momentum, eps)


def _short_way(func: Any, x: Tensor, weight: Tensor, bias: Tensor, kept: Any) -> Tensor:
    r"""Batch norm of known statistics as the affine map that the kernel applies.

    .. math::
        y = \alpha x + (b - \mu \alpha), \qquad \alpha = w / \sigma

    The kernel itself is given mean 0 and variance 1, so that it does the same last step.
    """
    _, mean, deviation = kept
    alpha = deviation * weight
    beta = torch.addcmul(bias, mean, alpha, value=-1)
    zero, one = torch.zeros_like(mean), torch.ones_like(mean)
    out: Tensor = func(x, alpha, beta, zero, one, False, 0.0, 0.0)[0]
    return out


def _takes_short_way(func: Any, x: Tensor, weight: Tensor, eps: float) -> bool:
    """Whether the short way gives the same bits as the kernel, tried once per kind of tensor.

    It does where the kernel rounds its two coefficients as the operators above do; whether it
    fuses a product and a sum depends on the processor.
    """
    strides = x.stride()
    layout = tuple(sorted(range(x.dim()), key=lambda axis: (-strides[axis], axis)))
    key = func, x.device, x.dtype, weight.dtype, x.size(1), layout, eps, x.dim()
    found = _short_way_is_exact.get(key)
    if found is None:
        found = _short_way_is_exact[key] = _try_short_way(func, x, weight, eps)
    return found


def _try_short_way(func: Any, x: Tensor, weight: Tensor, eps: float) -> bool:
    if x.device.type == "meta" or type(x) is not Tensor:
        return False
    generator = torch.Generator(x.device).manual_seed(0)

    def random(*sizes: int, like: Tensor) -> Tensor:
        made = torch.randn(sizes, generator=generator, device=x.device, dtype=torch.float32)
        return made.to(like.dtype)

    most = (3, x.size(1), 9, 9, 9)
    sizes = [min(size, limit) for size, limit in zip(x.shape, most, strict=False)]
    sample = torch.empty_strided(sizes, _strides_like(x, sizes), dtype=x.dtype, device=x.device)
    sample.copy_(random(*sizes, like=x) * 3 + 1)
    scale, shift = random(x.size(1), like=weight), random(x.size(1), like=weight)
    whole = func(sample, scale, shift, None, None, True, 0.0, eps)
    return torch.equal(whole[0], _short_way(func, sample, scale, shift, whole))


def _strides_like(x: Tensor, sizes: list[int]) -> list[int]:
    """Dense strides in the order of another tensor's."""
    strides, step, order = [0] * len(sizes), 1, x.stride()
    for axis in sorted(range(x.dim()), key=lambda axis: (order[axis], -axis)):
        strides[axis] = step
        step *= sizes[axis]
    return strides


# -- the table ------------------------------------------------------------------------------

_PURE: Final = Rule(_again)
_NORMS: Final = Rule(_again, kept=(1, 2))  # mean and deviation
# Operators whose schema does not tell the whole; `None`: never run again.
_RULES: Final[dict[Any, Rule | None]] = {
    _ATEN.native_batch_norm.default: Rule(_batch_norm, kept=(1, 2)),
    _ATEN.native_layer_norm.default: _NORMS,
    _ATEN.native_group_norm.default: _NORMS,
    # They write running statistics without saying so.
    _ATEN.cudnn_batch_norm.default: None,
    _ATEN.miopen_batch_norm.default: None,
}
# Attention draws random numbers only where dropout is on: the position of its probability.
_DROPOUT: Final = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": 3,
    "aten::_scaled_dot_product_flash_attention": 3,
    "aten::_scaled_dot_product_efficient_attention": 5,
    "aten::_scaled_dot_product_cudnn_attention": 5,
}
# What they return is memory that somebody fills later, or what they were given.
_NO_RESULTS: Final = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "lift_fresh", "new_empty")
)


def rule_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rule | None:
    """How a call of an operator is repeated, or ``None``: its results have to be kept.

    Args:
        func: an overload, such as ``torch.ops.aten.relu.default``.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Example:
        >>> x = torch.ones(2)
        >>> rule_of(torch.ops.aten.relu.default, (x,), {}) is not None
        True
        >>> rule_of(torch.ops.aten.relu_.default, (x,), {})
        >>> rule_of(torch.ops.aten.rand_like.default, (x,), {})
    """
    rule, place = _known(func)
    if place is not None:
        probability = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
        return _PURE if probability == 0.0 else None
    return rule


@functools.cache
def _known(func: Any) -> tuple[Rule | None, int | None]:
    """What an operator alone tells: its rule, or the position of what decides."""
    if func in _RULES:
        return _RULES[func], None
    schema = getattr(func, "_schema", None)
    if schema is None or schema.is_mutable or _SEEDED in func.tags or schema.name in _NO_RESULTS:
        return None, _DROPOUT.get(getattr(schema, "name", ""))
    return _PURE, _DROPOUT.get(schema.name)
