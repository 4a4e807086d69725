"""Peak memory of loops and residual blocks, counted by storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import safemodules as sm

# What a checkpoint keeps beside its inputs: states of random number streams, 5 kB each.
CHECKPOINT = 40_000

counting = pytest.importorskip("benchmarks.memory", reason="runs in a checkout only")


def body() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Tanh()
    )


def images(count: int) -> Iterator[Tensor]:
    for _ in range(count):
        yield torch.randn(2, 3, 24, 24)


def peak(net: nn.Module, run: Callable[[], Any]) -> int:
    net.zero_grad(set_to_none=True)
    counter = counting.StorageCounter([*net.parameters(), *net.buffers()])
    with counter:
        run()
    net.zero_grad(set_to_none=True)
    return counter.peak


OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "weighted sum": {"reduction": "sum", "weights": lambda item: item.size(0)},
    "truncated": {"truncate": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_peak_does_not_grow_with_the_number_of_iterations(name: str) -> None:
    net = body()
    carries = "truncate" in OPTIONS[name]

    def step(item: Tensor, carry: Any = None) -> Any:
        loss = net(item).square().mean()
        return (loss, carry) if carries else loss

    loop = sm.AccumulatingLoop(step, **OPTIONS[name])
    state = {"carry": torch.zeros(2)} if carries else {}

    def run(count: int) -> int:
        def train() -> None:
            out = loop(images(count), **state)
            (out[0] if carries else out).backward()

        return peak(net, train)

    sets = sum(p.nbytes for p in net.parameters())
    one, two, many = run(1), run(2), run(24)
    # The sum so far, and one gradient more while it is being added.
    assert two <= one + 2 * sets
    assert many <= two + 24 * 64  # a few numbers per iteration


def test_a_function_of_the_losses_keeps_gradients_or_recomputes() -> None:
    small, wide = body(), nn.Linear(256, 256)  # 263 kB
    for net, item, store in [
        (small, torch.randn(2, 3, 24, 24), "auto"),
        (small, torch.randn(2, 3, 24, 24), "gradients"),
        (wide, torch.randn(2, 256), "auto"),
        (wide, torch.randn(2, 256), "recompute"),
    ]:
        loop = sm.AccumulatingLoop(
            lambda x, net=net: net(x).square().mean(), reduction=torch.max, store=store
        )
        sizes = []
        for count in (2, 10):
            items = [item.clone() for _ in range(count)]
            sizes.append(peak(net, lambda items=items, loop=loop: loop(items).backward()))
        growth = (sizes[1] - sizes[0]) / 8
        sets = sum(p.nbytes for p in net.parameters())
        assert growth <= (sets + 1024 if net is small else CHECKPOINT + item.nbytes)


@pytest.mark.parametrize("reduction", ["stack", "cat", "sum"])
def test_tensors_keep_what_they_are_and_one_iteration(reduction: str) -> None:
    net = body()
    loop = sm.AccumulatingLoop(net, reduction=reduction)
    loop(list(images(2)))  # from now on it is known that the body returns tensors

    def run(count: int) -> int:
        items = list(images(count))
        return peak(net, lambda: loop(items).square().mean().backward())

    item, output = 2 * 3 * 24 * 24 * 4, 2 * 8 * 22 * 22 * 4
    growth = (run(20) - run(4)) / 16
    # outputs, their stack, its square and gradients; the graph of an iteration is 7 outputs
    assert growth <= (4.3 if reduction != "sum" else 1) * output + item + CHECKPOINT


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.ELU])
def test_fifty_residual_blocks_need_no_more_than_blocks_in_place(activation: Any) -> None:
    convs = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)) for _ in range(50)]
    safe = nn.Sequential(
        *(sm.SafeResidual(conv, activation=activation(inplace=True)) for conv in convs)
    )

    class InPlace(nn.Module):
        def __init__(self, conv: nn.Module) -> None:
            super().__init__()
            self.conv = conv
            self.act = activation(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            y += x
            return self.act(y)

    in_place = nn.Sequential(*(InPlace(conv) for conv in convs))
    x = torch.randn(2, 4, 16, 16)

    def step(net: nn.Module) -> Callable[[], Any]:
        return lambda: net(x).square().mean().backward()

    assert peak(safe, step(safe)) <= peak(in_place, step(in_place))
