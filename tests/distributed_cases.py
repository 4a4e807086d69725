"""What each of two processes does, for ``test_distributed.py``."""

import copy
import dataclasses
import functools
import warnings

import torch
import torch.distributed as dist
from replay_counter import counted_replays
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import safemodules as sm
from safemodules.memory.recording import record_step
from safemodules.trees import CallArguments

MARKED = "Expected to mark a variable ready only once"


def plain(fn, *args, **kwargs):
    return fn(*args, **kwargs)


class Net(nn.Module):
    """A region; with shared parameters, the same block runs in a second one."""

    def __init__(self, run, shared, norm=False):
        super().__init__()
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(8)] if norm else []
        self.first = nn.Linear(4, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), *middle, nn.Tanh(), nn.Linear(8, 8))
        self.last = nn.Linear(8, 2)
        self.run, self.shared = run, shared

    def forward(self, x):
        x = self.run(self.block, self.first(x))
        if self.shared:
            x = self.run(self.block, x)
        return self.last(x)


class Reentrant(Net):
    """As people have it."""

    def __init__(self, shared):
        super().__init__(None, shared)

    def forward(self, x):
        x = torch_checkpoint(self.block, self.first(x), use_reentrant=True)
        if self.shared:
            x = torch_checkpoint(self.block, x, use_reentrant=True)
        return self.last(x)


@functools.cache
def converted(shared):
    return sm.convert_model(Reentrant(shared), example_inputs=inputs(0, 0))


NETS = {
    "reentrant": Reentrant,
    "exact": lambda shared: Net(sm.checkpoint, shared),
    "converted": lambda shared: copy.deepcopy(converted(shared)),
}


def inputs(rank, number):
    generator = torch.Generator().manual_seed(10 * number + rank)
    return torch.randn(6, 4, generator=generator)


def loss_of(net, batches):
    return sum(net(x).square().mean() for x in batches)


def gradients_of_one_process(shared, forwards):
    """The mean over both ranks' data, as DDP reduces it."""
    found = None
    for rank in range(2):
        net = Net(plain, shared)
        loss_of(net, [inputs(rank, number) for number in range(forwards)]).backward()
        grads = [p.grad / 2 for p in net.parameters()]
        found = grads if found is None else [a + b for a, b in zip(found, grads, strict=True)]
    return found


def one_combination(rank, name, find_unused, forwards, shared, static):
    """``None`` if the gradients are those of one process, else what went wrong."""
    net = DistributedDataParallel(
        NETS[name](shared), find_unused_parameters=find_unused, static_graph=static
    )
    try:
        for step in range(2):
            net.zero_grad()
            loss_of(net, [inputs(rank, number) for number in range(forwards)]).backward()
    except RuntimeError as error:
        return "marked twice" if MARKED in str(error) else f"{type(error).__name__}: {error}"
    expected = gradients_of_one_process(shared, forwards)
    for (path, parameter), truth in zip(net.named_parameters(), expected, strict=True):
        # the sum over ranks is divided before it is taken, in the reducer's own order
        if parameter.grad is None:
            return f"{path} has no gradient"
        if not torch.allclose(parameter.grad, truth, rtol=1e-6, atol=1e-7):
            return f"{path} is off by {float((parameter.grad - truth).abs().max())}"
    return None


def matrix():
    return [
        (find_unused, forwards, shared, static)
        for find_unused in (False, True)
        for forwards in (1, 2)
        for shared in (False, True)
        for static in (False, True)
    ]


def whole_matrix(rank):
    """What becomes of every combination: as it is, written with ours, and converted."""
    found = {}
    for combination in matrix():
        row = []
        for name in NETS:
            row.append(one_combination(rank, name, *combination))
            dist.barrier()
        found[combination] = tuple(row)
    return found


def state(net):
    """Everything that can be told of a net after a step, as lists."""
    values = [p.grad for p in net.parameters()] + list(net.state_dict().values())
    return [value.detach().clone() for value in values]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def batch_norm(rank, forwards, broadcast):
    """Buffers are broadcast from rank 0 before each forward, also between two forwards."""
    rows = []
    for run in (plain, sm.checkpoint):
        net = DistributedDataParallel(Net(run, False, norm=True), broadcast_buffers=broadcast)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        try:
            for step in range(3):
                optimizer.zero_grad()
                batches = [inputs(rank, 5 * step + number) for number in range(forwards)]
                loss_of(net, batches).backward()
                optimizer.step()
            rows.append(state(net))
        except RuntimeError as error:
            rows.append(f"{type(error).__name__}: {error}")
    tracked = int(net.module.block[1].num_batches_tracked)
    equal = same(*rows) if not any(isinstance(row, str) for row in rows) else rows
    return equal, tracked


def sharded(rank, around, policy):
    """FSDP2 over a net with regions: inside of the sharded modules, or around them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    rows = []
    for run in (plain, functools.partial(sm.checkpoint, policy=policy)):
        net = Net(run, False, norm=True)
        if around == "inside":
            fully_shard(net, mesh=mesh)
        elif around == "around":
            fully_shard(net.block, mesh=mesh)
            fully_shard(net, mesh=mesh)
        else:
            for part in (net.block[0], net.block[3], net):
                fully_shard(part, mesh=mesh, reshard_after_forward=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(net, [inputs(rank, step)]).backward()
            optimizer.step()
        row = [p.grad.full_tensor() for p in net.parameters()]
        row += [p.full_tensor() for p in net.parameters()]
        rows.append([value.detach() for value in [*row, *net.buffers()]])
    return same(*rows)


def sync_batch_norm(rank):
    """``None`` if exact; a text if torch has none on this device."""
    rows = []
    for run in (plain, sm.checkpoint):
        net = nn.SyncBatchNorm.convert_sync_batchnorm(Net(run, False, norm=True))
        try:
            net = DistributedDataParallel(net)
            loss_of(net, [inputs(rank, 0)]).backward()
        except ValueError as error:
            if "SyncBatchNorm" in str(error) and "GPU" in str(error):
                return str(error)
            raise
        rows.append(state(net))
    return None if same(*rows) else "differs"


def accumulated(rank):
    """Gradients of two micro-batches, of which the first is not synchronised."""
    rows = []
    for run in (plain, sm.checkpoint):
        net = DistributedDataParallel(copy.deepcopy(Net(run, True)))
        with net.no_sync():
            loss_of(net, [inputs(rank, 0)]).backward()
        loss_of(net, [inputs(rank, 1)]).backward()
        rows.append(state(net))
    return same(*rows)


CHEAP = ("gelu", "tanh", "layer_norm")


def wide():
    """A net whose activations are larger than its parameters, and inputs for it."""
    torch.manual_seed(0)
    layers = (
        (nn.Linear(16, 16), nn.GELU(), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16))
        for _ in range(3)
    )
    return nn.Sequential(*(nn.Sequential(*layer) for layer in layers)), torch.randn(64, 16)


def budgeted(rank, around):
    """Steps under a plan against steps that keep everything."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, x = wide()
    plan = sm.plan_checkpoints(net, x, "80% of activations", fake=True)  # on every rank the same
    tape = record_step(net, CallArguments((x,), {}), fake=True)
    names = [operator.name for operator in tape.operators]
    cheap = [at for at, name in enumerate(names) if any(part in name for part in CHEAP)]
    plan = dataclasses.replace(plan, forgetting=tape.forgetting(cheap))
    told = [None, None]
    dist.all_gather_object(told, plan.forgetting)
    assert told[0] == told[1]
    rows, forgets = [], 0
    for chosen in (False, plan):
        net, x = wide()
        sm.convert_model(net, x, checkpoint=chosen)
        if chosen is plan:
            forgets = sum(map(len, plan.forgetting.forgotten.values()))
        if around == "ddp":
            net = DistributedDataParallel(net)
        else:
            mesh = init_device_mesh("cpu", (2,))
            for part in (*net, net) if around == "parts" else (net,):
                fully_shard(part, mesh=mesh, reshard_after_forward=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if around != "ddp" else "error", sm.BudgetWarning)
            with counted_replays() as replays:
                for step in range(3):
                    optimizer.zero_grad()
                    (net(x + rank + step).square().mean()).backward()
                    optimizer.step()
        row = [t for p in net.parameters() for t in (p.grad, p)]
        rows.append([t.full_tensor() if isinstance(t, DTensor) else t for t in row])
    return same(*([t.detach() for t in row] for row in rows)), forgets, len(replays)
