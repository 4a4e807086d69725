"""The ways to write a loop whose result is a loss, each as one training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import safemodules as sm

try:
    from gradcache.functional import cached
except ImportError:  # not needed for the others
    cached = None

Step = Callable[[nn.Module, Iterable[Tensor], int], None]


def extractor() -> nn.Sequential:
    """Six convolutions with batch norm and a linear layer."""
    layers: list[nn.Module] = []
    channels = 3
    for width, stride in ((24, 1), (24, 1), (48, 2), (48, 1), (96, 2), (96, 1)):
        layers += [
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 32))


def three_convolutions() -> nn.Sequential:
    """The body of the real-size case."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
    )


def tiny() -> nn.Sequential:
    """A body that takes less time than one call of the autograd engine."""
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def loss_of(output: Tensor) -> Tensor:
    """The loss of one iteration."""
    return output.square().mean()


def naive(net: nn.Module, items: Iterable[Tensor], count: int) -> None:
    """Keep every iteration until backward."""
    total = sum(loss_of(net(item)) for item in items)
    (total / count).backward()  # type: ignore[union-attr]


def by_hand(net: nn.Module, items: Iterable[Tensor], count: int) -> None:
    """Run backward in each iteration, which only a training script can do."""
    for item in items:
        (loss_of(net(item)) / count).backward()


def checkpointed(net: nn.Module, items: Iterable[Tensor], count: int) -> None:
    """Recompute each iteration with torch's checkpoint."""
    total = sum(
        torch_checkpoint(lambda x: loss_of(net(x)), item, use_reentrant=False) for item in items
    )
    (total / count).backward()


def grad_cache(net: nn.Module, items: Iterable[Tensor], count: int) -> None:
    """GradCache's functional form: representations first, then each iteration again."""
    steps = [cached(net)(item) for item in items]
    (sum(loss_of(value) for value, _ in steps) / count).backward()  # type: ignore[union-attr]
    for value, again in steps:
        again(value)


def accumulating(**options: Any) -> Step:
    """AccumulatingLoop; the loop is made anew, as nothing of it is kept between steps."""

    def step(net: nn.Module, items: Iterable[Tensor], count: int) -> None:
        sm.AccumulatingLoop(lambda x: loss_of(net(x)), **options)(items).backward()

    return step


WAYS: dict[str, Step] = {
    "naive": naive,
    "backward in the loop, by hand": by_hand,
    "torch checkpoint": checkpointed,
    "AccumulatingLoop": accumulating(),
    'AccumulatingLoop, store="recompute"': accumulating(store="recompute"),
    "AccumulatingLoop, logsumexp, gradients kept": accumulating(
        reduction=lambda losses: torch.logsumexp(losses, 0), store="gradients"
    ),
    **({"GradCache": grad_cache} if cached is not None else {}),
}


# -- a language model's head: hidden states to a vocabulary, in chunks --------------------------


class FusedHead(torch.autograd.Function):
    """What chunked losses for language models do by hand: gradients in forward, one matrix."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, size: int) -> Tensor:
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros(())
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            logits = hidden[part] @ weight.T
            total += F.cross_entropy(logits, target[part], reduction="sum")
            logits = logits.softmax(1)
            logits[torch.arange(len(logits)), target[part]] -= 1
            grad_hidden[part] = logits @ weight
            grad_weight += logits.T @ hidden[part]
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.count = len(hidden)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        factor = grad / ctx.count
        return hidden * factor, weight * factor, None, None


class Head(nn.Module):
    """Cross entropy over a vocabulary."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, words, bias=False)

    def forward(self, item: tuple[Tensor, Tensor]) -> Tensor:
        """The mean over the tokens of a chunk."""
        return F.cross_entropy(self.linear(item[0]), item[1])


def head_ways(size: int) -> dict[str, Callable[[Head, Tensor, Tensor], Tensor]]:
    """Losses over all tokens: at once, and in chunks of a size."""
    loop: dict[int, sm.AccumulatingLoop] = {}

    def chunked(head: Head, hidden: Tensor, target: Tensor) -> Tensor:
        made = loop.setdefault(id(head), sm.AccumulatingLoop(head, chunk_size=size))
        loss: Tensor = made((hidden, target))
        return loss

    return {
        "all tokens at once": lambda head, hidden, target: head((hidden, target)),
        "AccumulatingLoop": chunked,
        "fused by hand": lambda head, hidden, target: FusedHead.apply(
            hidden, head.linear.weight, target, size
        ),
    }
