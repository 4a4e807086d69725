"""What forgetting and replaying costs besides the operators themselves.

It is measured once in a process, on operators that compute next to nothing, between others that
leave nothing in the caches: as in a model, where it costs half as much again as in a tight loop.
Where it is much of a step, it is measured in the model's own step too: what else a processor
remembers, of code for instance, differs between models.
"""

import functools
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from safemodules.checkpointing.forgetting import Forgetting, Rehearsal, forgetful
from safemodules.checkpointing.replaying import Kept, Replay, without_graph

__all__ = ["Overhead", "Step", "measured_overhead", "overhead_in"]

_COUNT: Final = 16
_REPEATS: Final = 5
_CACHE: Final = 1 << 22  # numbers: more than caches hold, as a batch of activations is
_ROUNDS: Final = 15  # of a model's step, or
_ENOUGH: Final = 5  # if they take
_SECONDS: Final = 3.0
_MOST: Final = 1.5  # times what is measured outside of a model, or its part; more is an accident


@dataclass(frozen=True)
class Overhead:
    """Seconds.

    Attributes:
        call: for each call of a torch function in a forward that forgets anything.
        save: for each tensor that it saves, and backward asks for.
        operator: for each operator that is noted and run again.
        norm: the same for one with many arguments, whose statistics are kept.
        forward_operator: of ``operator``, what the forward takes.
    """

    call: float
    save: float
    operator: float
    norm: float
    forward_operator: float

    def forgetting(self, calls: int, saves: int) -> float:
        """Seconds that a step takes longer if it forgets anything at all.

        Args:
            calls: of torch functions, in its forward.
            saves: how many tensors that saves.
        """
        return calls * self.call + saves * self.save

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
            operators * self.forward_operator,
        )


@dataclass(frozen=True)
class Step:
    """One step of training.

    Attributes:
        forward: calls the model.
        backward: is given what that has returned.
    """

    forward: Callable[[], Any]
    backward: Callable[[Any], None]

    def timed(self, around: AbstractContextManager[Any]) -> tuple[float, float]:
        """Make it; returns the seconds of the forward, and of both.

        Args:
            around: what the forward is called in.
        """
        began = perf_counter()
        with around:
            output = self.forward()
        between = perf_counter()
        self.backward(output)
        return between - began, perf_counter() - began


def overhead_in(
    prepared: Callable[[], AbstractContextManager[Step]], saves: int
) -> tuple[Overhead, float]:
    """The overhead in a step, which is made some times.

    Args:
        prepared: makes ready for a step.
        saves: how many tensors its forward saves.

    Returns:
        It, and the seconds that the step takes without.
    """
    plain: list[float] = []
    forgetting: list[float] = []
    noting: list[float] = []
    calls = noted = 0
    started = perf_counter()
    for done in range(1, _ROUNDS + 1):
        with prepared() as step:
            _, seconds = step.timed(nullcontext())
        empty, everything = Rehearsal(everything=False), Rehearsal(everything=True)
        with prepared() as step:
            empty_forward, empty_step = step.timed(empty)
        # Not its backward, where what is run again takes longer than what it costs besides.
        with prepared() as step:
            whole_forward, _ = replace(step, backward=lambda _: None).timed(everything)
        plain.append(seconds)
        forgetting.append(empty_step - seconds)
        noting.append(whole_forward - empty_forward)
        calls, noted = empty.calls, everything.noted
        if done >= _ENOUGH and perf_counter() - started > _SECONDS:
            break
    outside = measured_overhead()
    inside = outside.times(
        _ratio(forgetting, outside.forgetting(calls, saves)),
        _ratio(noting, noted * outside.forward_operator),
    )
    return inside, statistics.median(plain)


def _ratio(inside: list[float], outside: float) -> float:
    if outside <= 0:
        return 1.0
    return min(_MOST, max(1 / _MOST, statistics.median(inside) / outside))


@functools.cache
def measured_overhead() -> Overhead:
    """The overhead on this machine."""
    aten = torch.ops.aten
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(8)
        small = _Costs.of(torch.sigmoid, aten.sigmoid.default)
        norm = _Costs.of(
            lambda x: torch.layer_norm(x, (8,), weight, weight), aten.native_layer_norm.default
        )
    # Operators of a model save more than one tensor, as the norm does.
    operator = small.pair / 2
    return Overhead(
        small.call, norm.save, operator, max(operator, norm.pair - operator), small.forward_pair / 2
    )


class _Chain:
    """Pairs of operators, each followed by a call that saves the result, and what they take.

    Of a model most results are forgotten in pairs: a normalisation, and its activation.
    """

    def __init__(self, apply: Callable[[Tensor], Tensor]) -> None:
        self._apply = apply
        self._scale = torch.ones(8, requires_grad=True)
        self._start = torch.zeros(1, 8, requires_grad=True)
        self._cache = torch.zeros(_CACHE)
        self._ended: float | None = None
        self.forward: list[float] = []
        self.backward: list[float] = []

    def run(self, way: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]) -> None:
        """Add a step to what is known.

        Args:
            way: calls the forward.
        """
        result = way(self._forward, self._start)
        self._ended = None
        torch.autograd.grad(result.sum(), (self._start, self._scale))

    def _forward(self, x: Tensor) -> Tensor:
        for _ in range(_COUNT):
            self._cache.add_(1)
            began = perf_counter()
            x = torch.sigmoid(self._apply(x)).mul(self._scale)
            self.forward.append(perf_counter() - began)
            x.register_hook(self._between)  # type: ignore[no-untyped-call]
        return x

    def _between(self, _: Tensor) -> None:
        if self._ended is not None:
            self.backward.append(perf_counter() - self._ended)
        self._cache.add_(1)
        self._ended = perf_counter()


@dataclass(frozen=True)
class _Costs:
    """Seconds of a call, a saved tensor, and a forgotten pair of operators."""

    call: float
    save: float
    pair: float
    forward_pair: float

    @classmethod
    def of(cls, apply: Callable[[Tensor], Tensor], operator: Any) -> "_Costs":
        """Measure them.

        Args:
            apply: calls the first operator of a pair; the other is a sigmoid.
            operator: it.
        """
        saved: list[Kept] = []

        def pack(tensor: Tensor) -> Kept:
            saved.append(Kept(without_graph(tensor)))
            return saved[-1]

        def saving(forward: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(pack, Replay().unpack):
                return forward(start)

        calls = 5 * _COUNT
        pair = str(operator), str(torch.ops.aten.sigmoid.default)
        noted = {
            place + second: {0: name}
            for place in range(1, calls, 5)
            for second, name in enumerate(pair)
        }
        ways: list[Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = [
            lambda forward, start: forward(start),
            saving,
            functools.partial(forgetful, Forgetting(calls, {})),
            functools.partial(forgetful, Forgetting(calls, noted)),
        ]
        chains = [_Chain(apply) for _ in ways]
        for _ in range(_REPEATS):
            for chain, way in zip(chains, ways, strict=True):
                chain.run(way)
        saves = len(saved) / (_REPEATS * _COUNT)
        forward = [statistics.median(chain.forward) for chain in chains]
        backward = [statistics.median(chain.backward) for chain in chains]
        plain, hooked, empty, whole = map(sum, zip(forward, backward, strict=True))
        return cls(
            max(0.0, empty - hooked) / 3,
            max(0.0, hooked - plain) / saves,
            max(0.0, whole - empty),
            max(0.0, forward[3] - forward[2]),
        )
