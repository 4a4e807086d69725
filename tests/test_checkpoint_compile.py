"""Under ``torch.compile`` a region is torch's where that is exact, and plain otherwise."""

import copy
import functools
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.testing import CompileCounter
from torch._functorch.aot_autograd import make_boxed_func

import safemodules as sm

HAS_COMPILER = shutil.which("g++") is not None
INDUCTOR = pytest.param(
    "inductor",
    marks=pytest.mark.skipif(not HAS_COMPILER, reason="inductor needs a C++ compiler"),
)
CHECKPOINT = "tag_activation_checkpoint"


class Ema(nn.Module):
    """Updates a buffer and then uses it: recomputed by a compiler, it is updated twice."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.detach().abs().mean(0), alpha=0.5)
        return torch.tanh(self.linear(x / self.mean))


class Rebinding(Ema):
    def forward(self, x):
        self.mean = 0.5 * self.mean + x.detach().abs().mean(0)
        return torch.tanh(self.linear(x / self.mean))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.sin(x * self.calls)


class Pure(nn.Module):
    """A user's own, with a method and a helper."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 4))

    def forward(self, x):
        for layer in self.layers:
            x = self.step(layer, x)
        return x

    def step(self, layer, x):
        return helper(layer(x) * self.scale)


class Impure(Pure):
    """As far as its own code goes, it writes nothing; but a function that it calls does."""

    def step(self, layer, x):
        return writing_helper(layer(x))


def helper(x):
    return torch.tanh(x).sin()


def writing_helper(x):
    x = torch.tanh(x) * 2
    x[:, 0] = 1
    return x


def mlp():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid())


def batch_norm():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())


def dropout():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Tanh())


def in_place():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))


DEFERRED = [mlp, batch_norm, dropout, Pure]
PLAIN = [Ema, Rebinding, Counting, Impure, in_place]


class Net(nn.Module):
    def __init__(self, block, run):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), block, nn.Linear(4, 2)
        self.run = run

    def forward(self, x):
        return self.last(self.run(self.block, self.first(x)))


def plain(fn, *args, **kwargs):
    return fn(*args, **kwargs)


class Spy:
    """A backend that keeps the graphs which it is given."""

    def __init__(self, backend):
        self.graphs, self.backend = [], lookup_backend(backend)
        self.__name__ = backend

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return self.backend(graph, inputs)

    def operators(self):
        return [
            str(node.target)
            for graph in self.graphs
            for part in graph.modules()
            if isinstance(part, torch.fx.GraphModule)
            for node in part.graph.nodes
        ]

    @property
    def has_checkpoint(self):
        return any(CHECKPOINT in name for name in self.operators())


def train(net, call, steps=3):
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        x = torch.randn(3, 4)
        torch.manual_seed(7)
        optimizer.zero_grad()
        out = call(x)
        out.square().sum().backward()
        optimizer.step()
        found += [out.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
    return found + [value.clone() for value in net.state_dict().values()]


def pair(make, run=sm.checkpoint):
    torch.manual_seed(0)
    block = make()
    first = Net(copy.deepcopy(block), plain)
    second = Net(copy.deepcopy(block), run)
    second.load_state_dict(first.state_dict())
    return first, second


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_same(a, b, exactly=True):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        if exactly:
            assert torch.equal(x, y)
        else:  # inductor fuses operations, which rounds otherwise
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("make", DEFERRED + PLAIN, ids=lambda make: make.__name__)
def test_compiled_training_is_that_without_checkpoint(make, backend):
    """Bit for bit what the compiled model without a checkpoint gives, in one graph."""
    first, second = pair(make)
    spies = Spy(backend), Spy(backend)
    compiled = [
        torch.compile(net, backend=spy, fullgraph=True)
        for net, spy in zip((first, second), spies, strict=True)
    ]
    assert_same(train(first, compiled[0]), train(second, compiled[1]))
    assert not spies[0].has_checkpoint
    # A backend that runs the graph itself would run torch's own checkpoint as well.
    assert spies[1].has_checkpoint == (make in DEFERRED and backend != "eager")
    if make is not Counting:  # a number in a module is a constant of its graph
        assert len(spies[1].graphs) == 1
    else:
        assert second.block.calls == first.block.calls == 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", [INDUCTOR])
@pytest.mark.parametrize("make", [mlp, batch_norm, Ema], ids=lambda make: make.__name__)
def test_inductor(make, backend):
    first, second = pair(make)
    spy = Spy(backend)
    compiled = torch.compile(second, backend=spy, fullgraph=True)
    assert_same(train(first, first), train(second, compiled), exactly=False)
    assert spy.has_checkpoint == (make in DEFERRED)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [INDUCTOR])
def test_dropout_under_inductor(backend):
    """Its random numbers are its own: the mask of the forward has to be that of the backward."""
    block = nn.Dropout(0.5)
    compiled = torch.compile(lambda x: sm.checkpoint(block, x.sin()), backend=backend)
    x = torch.rand(64, requires_grad=True)
    out = compiled(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    kept = out != 0
    assert 0 < int(kept.sum()) < 64
    torch.testing.assert_close(grad, 2 * x.cos() * kept)


def test_the_deferred_region_keeps_less():
    """What aot autograd hands from the forward to the backward graph."""
    kept = {}
    for run in (plain, sm.checkpoint):
        sizes = []
        backend = aot_autograd(
            fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward),
            bw_compiler=lambda graph, inputs, sizes=sizes: (
                sizes.append(len(inputs)) or make_boxed_func(graph.forward)
            ),
        )
        torch._dynamo.reset()
        torch.manual_seed(0)
        net = Net(nn.Sequential(*(mlp() for _ in range(3))), run)
        torch.compile(net, backend=backend, fullgraph=True)(torch.randn(3, 4)).sum().backward()
        kept[run] = sizes[0]
    assert kept[sm.checkpoint] <= kept[plain] - 6


def test_a_clash_inside_is_not_hidden():
    def clash(x):
        h = torch.sigmoid(x)
        h += 1
        return h.tanh()

    def call(run):
        compiled = torch.compile(lambda x: run(clash, x), backend="aot_eager")
        x = torch.ones(3, requires_grad=True)
        return torch.autograd.grad(compiled(x).sum(), x)

    results = []
    for run in (plain, sm.checkpoint):
        torch._dynamo.reset()
        try:
            results.append(call(run))
        except Exception as error:
            results.append(type(error))
    assert results[0] == results[1] or torch.equal(results[0][0], results[1][0])


FUNCTIONS = {
    "function": lambda run, net, x: run(helper, x),
    "late lambda": lambda run, net, x: functools.reduce(
        lambda t, k: run(lambda u: (u * k).sin(), t), range(1, 4), x
    ),
    "module in a closure": lambda run, net, x: run(lambda t: net(t).sin(), x),
    "writer in a closure": lambda run, net, x: run(lambda t: t * net_of(net)(t), x),
    "module as an argument": lambda run, net, x: run(lambda m, t: m(t).sin(), net, x),
    "keyword": lambda run, net, x: run(lambda t, *, by: (t * by).sin(), x, by=x.cos()),
    "list": lambda run, net, x: run(lambda ts: ts[0].sin(), [x]),
    "bound method": lambda run, net, x: run(net.forward, x),
    "partial": lambda run, net, x: run(functools.partial(torch.mul, x), x),
}


def net_of(net):
    return net


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("make", [mlp, Ema], ids=lambda make: make.__name__)
def test_functions_compile_in_one_graph(name, make):
    torch.manual_seed(0)
    results = []
    nets = [make(), make()]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, run in zip(nets, (plain, sm.checkpoint), strict=True):
        x = torch.linspace(0.1, 1, 8).view(2, 4).requires_grad_()
        call = torch.compile(
            lambda x, net=net, run=run: FUNCTIONS[name](run, net, x),
            backend="aot_eager",
            fullgraph=True,
        )
        results.append([*torch.autograd.grad(call(x).sum(), x), *net.state_dict().values()])
    assert_same(*results)


@pytest.mark.parametrize("policy", ["matmul", "cheap"])
def test_policies(policy):
    first, second = pair(mlp, functools.partial(sm.checkpoint, policy=policy))
    spy = Spy("aot_eager")
    assert_same(
        train(first, first), train(second, torch.compile(second, backend=spy, fullgraph=True))
    )
    assert spy.has_checkpoint


def test_without_gradients_nothing_is_checkpointed():
    _, net = pair(batch_norm)
    spy = Spy("eager")
    with torch.no_grad():
        torch.compile(net, backend=spy, fullgraph=True)(torch.randn(3, 4))
    assert not spy.has_checkpoint


def test_export_stays_plain():
    first, second = pair(batch_norm)
    x = torch.randn(3, 4)
    program = torch.export.export(second, (x,))
    assert not any(CHECKPOINT in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(x), first(x))


# Dynamo looks for `.grad` of whatever it is given, which warns of tensors that are no leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("make", [mlp, batch_norm, dropout, Ema], ids=lambda make: make.__name__)
def test_an_eager_region_around_a_compiled_module(make):
    """It is compiled once, though the region exchanges its buffers."""
    first, second = pair(make)
    counter = CompileCounter()
    compiled = torch.compile(second.block, backend=counter)
    second.run = lambda block, x: sm.checkpoint(compiled, x)
    assert_same(train(first, first), train(second, second))
    once = counter.frame_count
    train(second, second, steps=4)
    assert counter.frame_count == once <= 2


def test_hooks_are_run_plain():
    first, second = pair(mlp)
    for net in (first, second):
        net.block[0].register_forward_hook(lambda module, args, out: out * F.relu(out))
    spy = Spy("aot_eager")
    assert_same(
        train(first, first), train(second, torch.compile(second, backend=spy, fullgraph=True))
    )
    assert not spy.has_checkpoint
