"""What forgetting and replaying costs besides the operators themselves.

It is measured once in a process, on operators that compute next to nothing, between others that
leave nothing in the caches: as in a model, where it costs half as much again as in a tight loop.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from safemodules.checkpointing.forgetting import Forgetting, forgetful

__all__ = ["Overhead", "measured_overhead"]

_COUNT: Final = 32
_REPEATS: Final = 5
_CACHE: Final = 1 << 22  # numbers: more than caches hold, as a batch of activations is


@dataclass(frozen=True)
class Overhead:
    """Seconds.

    Attributes:
        call: for each call of a torch function in a forward that forgets anything.
        operator: for each operator that is noted and run again.
        norm: the same for one with many arguments, whose statistics are kept.
    """

    call: float = 0.0
    operator: float = 0.0
    norm: float = 0.0


@functools.cache
def measured_overhead() -> Overhead:
    """The overhead on this machine."""
    aten = torch.ops.aten
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(8)
        call, operator = _measured(torch.sigmoid, aten.sigmoid.default)
        _, norm = _measured(
            lambda x: torch.layer_norm(x, (8,), weight, weight), aten.native_layer_norm.default
        )
    return Overhead(call, operator, norm)


def _measured(apply: Callable[[Tensor], Tensor], operator: Any) -> tuple[float, float]:
    """Seconds for each call, and for each operator besides."""
    cache = torch.zeros(_CACHE)
    start = torch.zeros(1, 8, requires_grad=True)

    def clear(_: Tensor) -> None:
        cache.add_(1)

    def forward(x: Tensor) -> Tensor:
        for _ in range(_COUNT):
            cache.add_(1)
            x = apply(x)
            x.register_hook(clear)  # type: ignore[no-untyped-call]
        return x

    calls = 3 * _COUNT
    noted = Forgetting(calls, {place: {0: str(operator)} for place in range(1, calls, 3)})
    ways: list[Callable[[Tensor], Tensor]] = [
        forward,
        functools.partial(forgetful, Forgetting(calls, {}), forward),
        functools.partial(forgetful, noted, forward),
    ]
    best = [float("inf")] * len(ways)
    for _ in range(_REPEATS):
        for number, way in enumerate(ways):
            began = perf_counter()
            torch.autograd.grad(way(start).sum(), start)
            best[number] = min(best[number], perf_counter() - began)
    plain, empty, whole = best
    return max(0.0, empty - plain) / calls, max(0.0, whole - empty) / _COUNT
