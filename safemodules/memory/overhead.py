"""What forgetting and replaying one operator costs besides the operator itself."""

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from safemodules.checkpointing.forgetting import Forgetting, forgetful

__all__ = ["replay_overhead"]

_COUNT: Final = 64
_REPEATS: Final = 5


@functools.cache
def replay_overhead() -> float:
    """Seconds for one operator, measured once on operators that compute next to nothing."""
    name = str(torch.ops.aten.sigmoid.default)
    plan = Forgetting(_COUNT, {place: {0: name} for place in range(_COUNT)})
    with torch.inference_mode(False), torch.enable_grad():
        start = torch.zeros(1, requires_grad=True)

    def forward(x: Tensor) -> Tensor:
        for _ in range(_COUNT):
            x = torch.sigmoid(x)
        return x

    def seconds(step: Callable[[], Tensor]) -> float:
        began = perf_counter()
        torch.autograd.grad(step(), start)
        return perf_counter() - began

    with torch.enable_grad():
        plain = [seconds(lambda: forward(start)) for _ in range(_REPEATS)]
        replayed = [seconds(lambda: forgetful(plan, forward, start)) for _ in range(_REPEATS)]
    return max(0.0, min(replayed) - min(plain)) / _COUNT
