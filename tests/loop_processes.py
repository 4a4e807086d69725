"""What one of two processes does; run by test_loop_processes.py with the name of a function."""

from __future__ import annotations

import copy
import datetime
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import safemodules as sm


class Model(nn.Module):
    """An encoder, a loop over its outputs, and a layer that is used by one rank only."""

    def __init__(self, body: Any = None, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        self.loop = sm.AccumulatingLoop(self.loss, **options)
        self.spare = nn.Linear(1, 1)

    def loss(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()

    def forward(self, items: Tensor, spare: bool = True, plain: bool = False) -> Tensor:
        h = self.encoder(items).tanh()
        out = sum(self.loss(x) for x in h) / len(h) if plain else self.loop(h)
        return out + self.spare(out.detach().reshape(1)).sum() if spare else out


def items_of(rank: int, count: int = 3) -> Tensor:
    return torch.randn(count, 2, 4, generator=torch.Generator().manual_seed(rank)).double()


def averaged(count: int = 3) -> list[Tensor]:
    """Gradients of the mean over both ranks, in one process without any wrapper."""
    model = Model().double()
    loss = sum(model(items_of(rank, count), plain=True) for rank in range(2)) / 2
    loss.backward()
    return [p.grad for p in model.parameters()]


def assert_near(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-14, (a - b).abs().max()


def ddp(rank: int) -> None:
    for static in (False, True):
        model = DistributedDataParallel(Model().double(), static_graph=static)
        fired: dict[str, int] = {}
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(
                lambda _, name=name: fired.update({name: fired.get(name, 0) + 1})
            )
        for step in range(1, 3):
            model.zero_grad()
            model(items_of(rank)).backward()
            assert_near([p.grad for p in model.parameters()], averaged())
            assert set(fired.values()) == {step}, fired


def ddp_find_unused(rank: int) -> None:
    model = DistributedDataParallel(Model().double(), find_unused_parameters=True)
    for _ in range(2):
        model.zero_grad()
        model(items_of(rank), spare=False).backward()
        assert model.module.spare.weight.grad is None
        found = [p.grad for p in model.parameters() if p.grad is not None]
        assert_near(found, averaged()[:-2])


def ddp_accumulates(rank: int) -> None:
    model = DistributedDataParallel(Model().double())
    items = items_of(rank, 4)
    with model.no_sync():
        (model(items[:2]) / 2).backward()
    (model(items[2:]) / 2).backward()
    assert_near([p.grad for p in model.parameters()], averaged(4))


def counts_differ(rank: int) -> None:
    model = Model().double()
    for options in ({}, {"reduction": torch.max}, {"store": "recompute"}):
        model = Model(**options).double()
        match = f"this process ran {2 + rank} iterations, others from 2 to 3"
        with pytest.raises(sm.LoopBodyError, match=match):
            model(items_of(rank, 2 + rank))
    Model(check_ranks=False).double()(items_of(rank, 2 + rank)).backward()
    with torch.no_grad():
        model(items_of(rank, 2 + rank))


def _sharded(shard: Callable[[Model, Callable[..., Any]], None], rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    model = Model().double()
    plain = copy.deepcopy(model)
    shard(model, lambda module: fully_shard(module, mesh=mesh))
    for _ in range(2):
        model.zero_grad()
        model(items_of(rank)).backward()
        found = [p.grad.full_tensor() for p in model.parameters()]
        assert_near(found, averaged())
    with torch.no_grad():
        assert torch.equal(model(items_of(rank)), plain(items_of(rank)))


def sharded_around(rank: int) -> None:
    _sharded(lambda model, shard: shard(model), rank)


def sharded_inside(rank: int) -> None:
    def inside(model: Model, shard: Callable[..., Any]) -> None:
        shard(model.body)
        shard(model)

    _sharded(inside, rank)


def main() -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    try:
        globals()[sys.argv[1]](rank)
    finally:
        distributed.destroy_process_group()
    print("passed")


if __name__ == "__main__":
    main()
