"""One call of a loop: what is run, over what, and how the outputs become one value."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from safemodules.blocks.items import Pieces
from safemodules.blocks.outputs import NOTHING, Auxiliary, Collector, Output
from safemodules.blocks.paths import Place
from safemodules.blocks.ranks import require_same_count
from safemodules.blocks.weights import Weighing
from safemodules.errors import LoopBodyError

__all__ = ["Call", "Kind", "Reduction", "Result"]

Reduction = str | Callable[[Tensor], Any]


@dataclass
class Kind:
    """What a body returned in earlier calls.

    It decides only whether the first iteration of tensors is recomputed, or kept.

    Attributes:
        losses: Losses, or tensors; ``None`` before the first call.
    """

    losses: bool | None = None


@dataclass
class Call:
    """One call of a loop.

    Attributes:
        step: Runs one iteration.
        pieces: What it runs over.
        shared: Positional arguments of every iteration.
        kwargs: Keyword arguments of every iteration.
        carry: Initial state, or ``NOTHING``.
        truncate: Iterations after which the state is cut off its graph.
        reduction: How the outputs become one value.
        dim: Dimension that outputs are stacked or concatenated along.
        weighing: The weights.
        store: What is kept of each iteration under a function of the losses.
        parameters: What the body has that needs a gradient, by name.
        check_ranks: Whether processes must run the same number of iterations.
        place: Where the loop stands, for messages.
        kind: What the body is known to return.
    """

    step: Callable[..., Any]
    pieces: Pieces
    shared: tuple[Any, ...]
    kwargs: dict[str, Any]
    carry: Any
    truncate: int | None
    reduction: Reduction
    dim: int
    weighing: Weighing
    store: str
    parameters: dict[str, Tensor]
    check_ranks: bool
    place: Place
    kind: "Kind"

    @property
    def carries(self) -> bool:
        """Whether a state goes from one iteration to the next."""
        return self.carry is not NOTHING

    @property
    def name(self) -> str:
        """Name of the reduction, for messages."""
        return self.reduction if isinstance(self.reduction, str) else "reduction"

    def stream(self) -> Iterator[Any]:
        """Yield the items."""
        return self.pieces.stream(self.place, self.name)

    def run(
        self, run: Callable[..., Any], item: Any, carry: Any, shared: Any, kwargs: dict[str, Any]
    ) -> Output:
        """Run one iteration, with ``run(step, *arguments)`` in place of ``step(*arguments)``."""
        state = (carry,) if self.carries else ()
        returned = run(self.step, item, *state, *shared, **kwargs)
        return Output.read(returned, carries=self.carries, place=self.place)

    def starts_window(self, index: int) -> bool:
        """Whether the state is cut off its graph before an iteration."""
        return (
            self.carries
            and self.truncate is not None
            and index > 0
            and (index % self.truncate == 0)
        )


@dataclass
class Result:
    """What the iterations of a call have returned so far.

    Args:
        call: The call.
    """

    call: Call
    values: Collector = field(init=False)
    auxiliary: Auxiliary = field(init=False)
    carry: Any = field(init=False)
    count: int = 0
    device: torch.device | None = None

    def __post_init__(self) -> None:
        call = self.call
        self.values = Collector(call.reduction, call.dim, call.place, "output")
        self.auxiliary = Auxiliary(call.place)
        self.carry = call.carry

    def add(self, output: Output, weight: Any) -> None:
        """Take the output of the next iteration."""
        if callable(self.call.reduction) and not output.is_scalar:
            raise LoopBodyError(
                f"{self.call.place}: a function as reduction= is one of the losses of all "
                f'iterations, but the body returned tensors. Use reduction="stack" and apply '
                f"the function to the result."
            )
        self.values.add(output.value, weight)
        self.auxiliary.add(output.auxiliary, self.count)
        self.carry = output.carry
        if self.count == 0:
            self.call.kind.losses = output.is_scalar
        self.count += 1
        if isinstance(output.value, Tensor):
            self.device = output.value.device

    def finish(self, attach: Callable[[Any, Any], Any] | None = None) -> Any:
        """Give what the call returns; ``attach(value, divisor)`` may give the value a graph."""
        call = self.call
        divisor = call.weighing.finish(divides=call.reduction == "mean")
        if call.check_ranks and torch.is_grad_enabled():
            require_same_count(self.count, self.device or torch.device("cpu"), call.place)
        value = self.values.finish(divisor)
        if attach is not None:
            value = attach(value, divisor)
        value = self.auxiliary.finish(value)
        return (value, self.carry) if call.carries else value
