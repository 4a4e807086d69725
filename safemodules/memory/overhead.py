"""What forgetting and replaying costs besides the operators themselves.

It is measured once in a process, on operators that compute next to nothing, between others that
leave nothing in the caches: as in a model, where it costs half as much again as in a tight loop.
Where it is much of a step, it is measured in the model's own forward too: what else a processor
remembers, of code for instance, differs between models.
"""

import functools
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from safemodules.checkpointing.forgetting import Forgetting, Rehearsal, forgetful
from safemodules.checkpointing.replaying import Kept, Replay, without_graph

__all__ = ["Overhead", "measured_overhead", "overhead_in"]

_COUNT: Final = 32
_REPEATS: Final = 5
_CACHE: Final = 1 << 22  # numbers: more than caches hold, as a batch of activations is
_ROUNDS: Final = 3  # of a model's forward
_MOST: Final = 4.0  # times what is measured outside of a model; more is an accident


@dataclass(frozen=True)
class Overhead:
    """Seconds.

    Attributes:
        call: for each call of a torch function in a forward that forgets anything.
        save: for each tensor that it saves, and backward asks for.
        operator: for each operator that is noted and run again.
        norm: the same for one with many arguments, whose statistics are kept.
        forward_save: of ``save``, what the forward takes.
        forward_operator: the same of ``operator``.
    """

    call: float
    save: float
    operator: float
    norm: float
    forward_save: float
    forward_operator: float

    def times(self, calls: float, operators: float) -> "Overhead":
        """The same in a model where it takes longer, in its backward as in its forward.

        Args:
            calls: how many times longer for calls and saved tensors.
            operators: and for operators.
        """
        return Overhead(
            calls * self.call,
            calls * self.save,
            operators * self.operator,
            operators * self.norm,
            calls * self.forward_save,
            operators * self.forward_operator,
        )


def overhead_in(forward: Callable[[], object], saves: int) -> tuple[Overhead, float]:
    """The overhead in a forward, which is run some times.

    Args:
        forward: calls the model.
        saves: how many tensors it saves.

    Returns:
        It, and the seconds that the forward takes without.
    """
    ways: list[Callable[[], AbstractContextManager[Any]]] = [
        nullcontext,
        functools.partial(Rehearsal, everything=False),
        functools.partial(Rehearsal, everything=True),
    ]
    seconds: list[list[float]] = [[] for _ in ways]
    calls = noted = 0
    for _ in range(_ROUNDS):
        for way, taken in zip(ways, seconds, strict=True):
            with way() as rehearsal:
                began = perf_counter()
                forward()
                taken.append(perf_counter() - began)
            if isinstance(rehearsal, Rehearsal):
                calls, noted = rehearsal.calls, rehearsal.noted
    plain, empty, whole = map(statistics.median, seconds)
    outside = measured_overhead()
    inside = outside.times(
        _ratio(empty - plain, calls * outside.call + saves * outside.forward_save),
        _ratio(whole - empty, noted * outside.forward_operator),
    )
    return inside, plain


def _ratio(inside: float, outside: float) -> float:
    return min(_MOST, max(1.0, inside / outside)) if outside > 0 else 1.0


@functools.cache
def measured_overhead() -> Overhead:
    """The overhead on this machine."""
    aten = torch.ops.aten
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(8)
        whole, part = _measured(torch.sigmoid, aten.sigmoid.default)
        # Operators of a model save more than one tensor, as this one does.
        norm, norm_part = _measured(
            lambda x: torch.layer_norm(x, (8,), weight, weight), aten.native_layer_norm.default
        )
    return Overhead(
        part.call, norm.save, whole.operator, norm.operator, norm_part.save, part.operator
    )


@dataclass(frozen=True)
class _Costs:
    """Seconds for each call, each saved tensor, and each operator besides."""

    call: float
    save: float
    operator: float

    @classmethod
    def of(cls, seconds: list[list[float]], saves: int) -> "_Costs":
        plain, saving, empty, whole = map(statistics.median, seconds)
        return cls(
            max(0.0, empty - saving) / (3 * _COUNT),
            max(0.0, saving - plain) / saves,
            max(0.0, whole - empty) / _COUNT,
        )


def _measured(apply: Callable[[Tensor], Tensor], operator: Any) -> tuple[_Costs, _Costs]:
    """The costs in forward and backward, and the forward's part."""
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

    saved: list[Kept] = []

    def pack(tensor: Tensor) -> Kept:
        saved.append(Kept(without_graph(tensor)))
        return saved[-1]

    def saving(x: Tensor) -> Tensor:
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, Replay().unpack):
            return forward(x)

    calls = 3 * _COUNT
    noted = Forgetting(calls, {place: {0: str(operator)} for place in range(1, calls, 3)})
    ways: list[Callable[[Tensor], Tensor]] = [
        forward,
        saving,
        functools.partial(forgetful, Forgetting(calls, {}), forward),
        functools.partial(forgetful, noted, forward),
    ]
    whole: list[list[float]] = [[] for _ in ways]
    part: list[list[float]] = [[] for _ in ways]
    for _ in range(_REPEATS):
        for number, way in enumerate(ways):
            began = perf_counter()
            result = way(start)
            between = perf_counter()
            torch.autograd.grad(result.sum(), start)
            whole[number].append(perf_counter() - began)
            part[number].append(between - began)
    return _Costs.of(whole, len(saved)), _Costs.of(part, len(saved))
