"""Which results a region keeps instead of computing them again, by name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from safemodules.errors import OptionError

__all__ = ["POLICIES", "Contexts", "policy_contexts"]

_contexts: Final[Callable[[Any], tuple[Any, Any]]] = create_selective_checkpoint_contexts
_aten: Final = torch.ops.aten
_PRODUCTS: Final = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addmv",
    "mv",
    "dot",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_mm",
    "_grouped_mm",
)
_CONVOLUTIONS: Final = ("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution")


def _overloads(names: Iterable[str]) -> frozenset[Any]:
    packets = [getattr(_aten, name) for name in names if hasattr(_aten, name)]
    return frozenset(
        getattr(packet, overload)
        for packet in packets
        for overload in packet.overloads()
        if "out" not in overload
    )


# Results of these operators are kept.
POLICIES: Final[dict[str, frozenset[Any]]] = {
    "matmul": _overloads(_PRODUCTS),
    "cheap": _overloads((*_PRODUCTS, *_CONVOLUTIONS)),
}


@dataclass(frozen=True)
class Contexts:
    """A policy that somebody has made already.

    Attributes:
        make: returns a context for the forward and one for the recomputation.
    """

    make: Callable[[], tuple[Any, Any]]


def policy_contexts(policy: Any) -> tuple[Any, Any]:
    """Contexts of torch's selective checkpointing, for the forward and for the recomputation.

    Args:
        policy: ``"matmul"`` keeps matrix products and attention; ``"cheap"`` keeps convolutions
            as well, so that only what is cheap is computed again; or what
            ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` takes: a list of
            operators to keep, or a function.

    Raises:
        OptionError: an unknown policy.
    """
    if isinstance(policy, Contexts):
        return policy.make()
    if isinstance(policy, str):
        if policy not in POLICIES:
            known = ", ".join(map(repr, POLICIES))
            raise OptionError(
                f"policy={policy!r} is not known. Give one of {known}, a list of operators "
                f"(torch.ops.aten.mm.default), or a function as "
                f"torch.utils.checkpoint.create_selective_checkpoint_contexts takes it."
            )
        kept = POLICIES[policy]

        def choose(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            if operator in kept:
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        return _contexts(choose)
    if isinstance(policy, list) or callable(policy):
        chosen: Callable[..., Any] | list[Any] = policy
        return _contexts(chosen)
    raise OptionError(
        f"policy is {policy!r}. Expected {', '.join(map(repr, POLICIES))}, a list of operators, "
        f"a function, or None to keep nothing."
    )
