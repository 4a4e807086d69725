"""Checkpointed regions train bit for bit as the same code without a checkpoint does."""

import copy
import functools
import random
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import safemodules as sm


class Ema(nn.Module):
    """Updates a buffer and then uses it."""

    def __init__(self, data: bool = False):
        super().__init__()
        self.register_buffer("mean", torch.ones(4))
        self.linear = nn.Linear(4, 4)
        self.data = data

    def forward(self, x):
        mean = self.mean.data if self.data else self.mean
        mean.mul_(0.5).add_(x.detach().abs().mean(0), alpha=0.5)
        return torch.tanh(self.linear(x / self.mean))


class Rebinding(Ema):
    """Binds its buffer to a new tensor."""

    def forward(self, x):
        self.mean = 0.5 * self.mean + x.detach().abs().mean(0)
        return torch.tanh(self.linear(x / self.mean))


class Codebook(nn.Module):
    """Vector quantisation whose codes follow what they are given."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(3, 4))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.long))

    def forward(self, x):
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        self.counts.index_add_(0, nearest, torch.ones_like(nearest))
        with torch.no_grad():
            self.codes[nearest] = 0.9 * self.codes[nearest] + 0.1 * x
        return x.sin() * self.codes[nearest]


class Counters(nn.Module):
    """State in numbers, containers, containers of containers, and plain objects."""

    class Box:
        def __init__(self):
            self.calls = 0

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.by_name = 0, [], {"inner": {"n": 0}}
        self.box, self.members = Counters.Box(), set()
        self.generator = torch.Generator().manual_seed(0)
        self.generators = [np.random.default_rng(0), np.random.RandomState(0), random.Random(0)]

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        self.by_name["inner"]["n"] += self.calls
        self.box.calls += 1
        self.members.add(self.calls)
        noise = torch.rand(x.shape, generator=self.generator)
        noise = noise + sum(float(generator.random()) for generator in self.generators)
        scale = self.calls + self.by_name["inner"]["n"] + self.box.calls + len(self.members)
        return torch.sin(x * scale * noise) * sum(self.seen)


class Recurrent(nn.Module):
    """Keeps a tuple of states with a graph."""

    def __init__(self):
        super().__init__()
        self.cell, self.state = nn.LSTMCell(4, 4), None

    def forward(self, x):
        if self.state is not None:
            self.state = tuple(s.detach() for s in self.state)
        self.state = self.cell(x, self.state)
        return self.state[0].tanh()


class Drawing(nn.Module):
    """Draws from torch's stream."""

    def forward(self, x):
        return F.dropout(x.sin(), 0.5) * torch.rand_like(x) * torch.rand(())


def modules():
    bn = nn.BatchNorm1d
    yield "batch norm", lambda: nn.Sequential(nn.Linear(4, 4), bn(4), nn.Tanh())
    yield "cumulative batch norm", lambda: nn.Sequential(bn(4, momentum=None), nn.Tanh())
    yield "batch norm of no statistics", lambda: bn(4, track_running_stats=False)
    yield "batch norm in eval mode", lambda: nn.Sequential(bn(4), nn.Tanh()).eval()
    yield (
        "instance norm",
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
        ),
    )
    yield "spectral norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    yield "spectral norm by hooks", lambda: nn.utils.spectral_norm(nn.Linear(4, 4))
    yield "weight norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    yield "ema", Ema
    yield "ema through .data", lambda: Ema(data=True)
    yield "rebinding", Rebinding
    yield "codebook", Codebook
    yield "counters", Counters
    yield "recurrent", Recurrent
    yield "dropout", lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Tanh())
    yield "drawing", Drawing
    yield "rrelu last", lambda: nn.Sequential(nn.Linear(4, 4), nn.RReLU())
    yield "alpha dropout", lambda: nn.Sequential(nn.AlphaDropout(), nn.Tanh())
    yield "in-place relu", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    yield "lstm", lambda: nn.Sequential(OrderedDict(lstm=nn.LSTM(4, 4), first=First()))
    yield "attention", lambda: nn.TransformerEncoderLayer(4, 2, 8)


class First(nn.Module):
    def forward(self, pair):
        return pair[0]


class Two(nn.Module):
    """A layer, then what is to be checkpointed, twice."""

    def __init__(self, block, run, shared=True):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), block, nn.Linear(4, 2)
        self.again = block if shared else copy.deepcopy(block)
        self.run = run

    def forward(self, x):
        x = self.run(self.block, self.first(x))
        return self.last(self.run(self.again, x))


def plain(fn, *args, **kwargs):
    return fn(*args, **kwargs)


def train(net, steps=3):
    """Everything that can be told after some steps."""
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    found = []
    for _ in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        out = net(x)
        optimizer.zero_grad()
        out.square().sum().backward()
        optimizer.step()
        found += [out.detach().clone(), x.grad]
        found += [p.grad for p in net.parameters() if p.grad is not None]
    found += [*net.state_dict().values(), torch.get_rng_state()]
    return found


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype and torch.equal(x.nan_to_num(), y.nan_to_num())


# Used twice in a step this raises without a checkpoint as well.
ONCE = "ema"
# Nobody sees that write: without a checkpoint the first use gets the second's gradient.
WRONG_WITHOUT = "ema through .data"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("name", "make"), list(modules()), ids=[name for name, _ in modules()])
def test_training_is_that_without_checkpoint(name, make, shared):
    torch.manual_seed(0)
    block = make()
    nets = [Two(copy.deepcopy(block), run, shared) for run in (plain, sm.checkpoint)]
    nets[1].load_state_dict(nets[0].state_dict())
    if shared and name == ONCE:
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            train(nets[0])
        return
    if shared and name == WRONG_WITHOUT:
        return
    first, second = train(nets[0]), train(nets[1])
    assert_same(first, second)
    if isinstance(block, Counters):
        for part in ("calls", "seen", "by_name", "members"):
            assert getattr(nets[0].block, part) == getattr(nets[1].block, part)
        assert nets[0].block.box.calls == nets[1].block.box.calls


def test_policies_keep_products():
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 4), nn.Tanh()
    )
    for policy in ("matmul", "cheap", [torch.ops.aten.addmm.default]):
        run = functools.partial(sm.checkpoint, policy=policy)
        nets = [Two(copy.deepcopy(block), r) for r in (plain, run)]
        nets[1].load_state_dict(nets[0].state_dict())
        assert_same(train(nets[0]), train(nets[1]))


def test_policies_spare_what_they_say(monkeypatch):
    """Operators that run in backward, counted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts[func] = counts.get(func, 0) + 1
            return func(*args, **(kwargs or {}))

    net = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2), nn.Tanh())
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    found = {}
    for policy in (None, "matmul", "cheap"):
        out = sm.checkpoint(net, x, policy=policy)
        counts = {}
        with Count():
            out.sum().backward()
        aten = torch.ops.aten
        found[policy] = (counts.get(aten.convolution.default), counts.get(aten.addmm.default))
    assert found == {None: (1, 1), "matmul": (1, None), "cheap": (None, None)}
    with pytest.raises(sm.OptionError, match="'cheap'"):
        sm.checkpoint(net, x, policy="everything")
    with pytest.raises(sm.OptionError, match="policy is 3"):
        sm.checkpoint(net, x, policy=3)


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def gradients(run, *leaves):
    out = run(*leaves)
    return torch.autograd.grad(out.sum(), leaves)


def both(body, *leaves):
    """Gradients of a body without and with checkpoints."""
    return gradients(functools.partial(body, plain), *leaves), gradients(
        functools.partial(body, sm.checkpoint), *leaves
    )


def late_lambda(run, x):
    for k in range(1, 4):
        x = run(lambda t: (t * k).sin(), x)
    return x


def lambda_of_lambda(run, x):
    for k in range(1, 4):
        scale = lambda t: t * k  # noqa: E731
        x = run(lambda t: scale(t).sin(), x)
    return x


def nested_cells(run, x):
    k = 1.0

    def outer(t):
        def inner(u):
            return (u * k).sin()

        return inner(t)

    for step in range(3):
        k = 1.0 + step
        x = run(outer, x)
    return x


def rebound_default(run, x):
    def body(t, k=1.0):
        return (t * k).sin()

    for k in (1.0, 2.0, 3.0):
        body.__defaults__ = (k,)
        x = run(body, x)
    return x


def rebound_keyword_default(run, x):
    def body(t, *, k=1.0):
        return (t * k).sin()

    for k in (1.0, 2.0, 3.0):
        body.__kwdefaults__ = {"k": k}
        x = run(body, x)
    return x


def rebound_entry(run, x):
    options = {"k": 1.0, "inner": [1.0]}
    for k in (1.0, 2.0, 3.0):
        options["k"] = k
        options["inner"][0] = k
        x = run(lambda t, o: (t * o["k"]).sin() * o["inner"][0], x, options)
    return x


def rebound_attribute(run, x):
    class Scale:
        k = 1.0

        def __call__(self, t):
            return (t * self.k).sin()

    scale = Scale()
    for k in (1.0, 2.0, 3.0):
        scale.k = k
        x = run(scale, x)
    return x


def rebound_attribute_of_a_module(run, x):
    scale = Scaled()
    for k in (1.0, 2.0, 3.0):
        scale.k = k
        x = run(scale, x)
    return x


class Scaled(nn.Module):
    k = 1.0

    def forward(self, t):
        return (t * self.k).sin()


def partials(run, x):
    options = [1.0]
    for k in (1.0, 2.0, 3.0):
        options[0] = k
        x = run(functools.partial(lambda o, t, p: (t * o[0]).sin() * p, options, p=k), x)
    return x


def bound_methods(run, x):
    scale = Scaled()
    for k in (1.0, 2.0, 3.0):
        scale.k = k
        x = run(scale.forward, x)
    return x


def keyword_mutated_later(run, x):
    phase = x.new_zeros(3)
    for _ in range(3):
        x = run(lambda t, phase: (t + phase).sin(), x, phase=phase)
        phase += 0.7
    return x


def nested_tensor_mutated_later(run, x):
    phases = {"list": [x.new_zeros(3)], "tuple": (x.new_zeros(3),)}
    for _ in range(3):
        x = run(lambda t, p: (t + p["list"][0]).sin() * p["tuple"][0].cos(), x, phases)
        phases["list"][0] += 0.7
        phases["tuple"][0].add_(0.2)
    return x


def closure_tensor_mutated_later(run, x):
    phase = x.new_zeros(3)
    for _ in range(3):
        x = run(lambda t: (t + phase).sin(), x)
        phase += 0.7
    return x


def nonlocal_once(run, x):
    count = 0

    def body(t):
        nonlocal count
        count += 1
        return (t * count).sin()

    x = run(body, run(body, x))
    assert count == 2
    return (x * count).sin()


def writes_nested_containers(run, x):
    log = {"calls": [], "total": {"n": 0}}

    def body(t):
        log["calls"].append(len(log["calls"]))
        log["total"]["n"] += 1
        return (t * (1 + log["total"]["n"] + len(log["calls"]))).sin()

    return run(body, run(body, x))


SHIFT = 0.0
LOG: list[float] = []


def global_variables(run, x):
    global SHIFT
    for k in (1.0, 2.0):
        SHIFT = k
        x = run(read_and_write_globals, x)
    return x


def read_and_write_globals(t):
    global SHIFT
    SHIFT += 1
    LOG.append(SHIFT)
    return (t * SHIFT * len(LOG)).sin()


def test_equal_code_with_other_globals_reads_its_own():
    """A constant of one module may be a variable of another one with the same text."""
    text = "def body(t):\n    return (t * scale()).sin()\n"
    scopes = [{"scale": torch.get_num_threads}, {"scale": Number(2)}]
    x = leaf(3)
    for scope in scopes:
        exec(compile(text, "same.py", "exec"), scope)
        scope["body"].__module__ = "same"
        out = sm.checkpoint(scope["body"], x)
        expected = scope["body"](x)
        scope["scale"] = Number(7)
        grads = [torch.autograd.grad(o.sum(), x)[0] for o in (out, expected)]
        if scope is scopes[1]:
            assert torch.equal(*grads)


class Number:
    def __init__(self, value):
        self.value = value

    def __call__(self):
        return self.value


def detached_input(run, x):
    return run(lambda t, u: (t * u).sin(), x, x.detach().cos())


def several_outputs(run, x):
    out = run(lambda t: {"a": (t.sin(), t.cos()), "b": [t.exp()]}, x)
    return out["a"][0] * out["a"][1] + out["b"][0]


def output_is_input(run, x):
    y = x * 1
    return run(lambda t: t, y).sin() + run(lambda t: t.view(-1), y).cos().view_as(x)


def no_grad_inside(run, x):
    def body(t):
        with torch.no_grad():
            scale = t.sin().abs().sum()
        return (t * scale).sin()

    return run(body, x)


def gradient_inside(run, x):
    def body(t):
        (slope,) = torch.autograd.grad(t.sin().sum(), t, create_graph=True)
        return (slope * t).cos()

    return run(body, x * 2)


def nested(run, x):
    return run(lambda t: run(lambda u: u.sin().exp(), t.cos()).sin() * 2, x)


def thrice_nested(run, x):
    def third(t):
        return t.sin().cos()

    def second(t):
        return run(third, run(third, t)).exp()

    return run(lambda t: run(second, t).sin(), x)


def decorated(run, x):
    if run is plain:
        return x.sin().cos()
    return sm.checkpoint(policy="matmul")(lambda t: t.sin().cos())(x)


BODIES = [
    late_lambda,
    lambda_of_lambda,
    nested_cells,
    rebound_default,
    rebound_keyword_default,
    rebound_entry,
    rebound_attribute,
    rebound_attribute_of_a_module,
    partials,
    bound_methods,
    keyword_mutated_later,
    nested_tensor_mutated_later,
    closure_tensor_mutated_later,
    nonlocal_once,
    writes_nested_containers,
    global_variables,
    detached_input,
    several_outputs,
    output_is_input,
    no_grad_inside,
    gradient_inside,
    nested,
    thrice_nested,
    decorated,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_what_is_rebound_or_mutated_later_is_seen_as_it_was(body):
    global SHIFT
    x = leaf(2, 3)
    results = []
    for run in (plain, sm.checkpoint):
        SHIFT = 0.0
        LOG.clear()
        results.append((gradients(functools.partial(body, run), x), SHIFT, list(LOG)))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        assert torch.equal(a, b)
    assert results[0][1:] == results[1][1:]


# These detach on purpose what finite differences move.
DETACHING = (detached_input, no_grad_inside)


@pytest.mark.parametrize(
    "body", [b for b in BODIES if b not in DETACHING], ids=lambda body: body.__name__
)
def test_gradients_are_finite_differences(body):
    def run(x):
        global SHIFT
        SHIFT = 0.0
        LOG.clear()
        return body(sm.checkpoint, x)

    assert torch.autograd.gradcheck(run, leaf(2, 3))


def clash(t):
    h = torch.sigmoid(t)
    h += 1
    return h.tanh()


def clash_of_the_last(t):
    h = t.sin() * 2
    h = h.exp()
    h += 1
    return h


def clash_of_an_input_later(run):
    x = leaf(3)
    y = x * 1
    out = run(torch.sin, y)
    y += 1
    return out


@pytest.mark.parametrize("body", [clash, clash_of_the_last])
def test_a_clash_inside_raises_as_without_checkpoint(body):
    for run in (plain, sm.checkpoint):
        with pytest.raises(RuntimeError, match="modified by an inplace") as caught:
            run(body, leaf(3)).sum().backward()
    assert "test_checkpoint.py" in str(caught.value)
    line = body.__code__.co_firstlineno + (1 if body is clash else 2)
    assert f"test_checkpoint.py:{line} " in str(caught.value)


def test_a_clash_after_the_region_raises():
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        clash_of_an_input_later(sm.checkpoint).sum().backward()
    for change in (lambda y: y.add_(1), lambda y: y[0].zero_()):
        y = leaf(3) * 1
        out = sm.checkpoint(torch.sigmoid, y)
        change(out)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            out.sum().backward()


def test_a_clash_that_backward_never_reaches_is_none():
    x = leaf(3)
    for run in (plain, sm.checkpoint):
        out = run(lambda t: (t.sigmoid(), t.tanh()), x)
        out[0].add_(1)
        (grad,) = torch.autograd.grad(out[1].sum(), x)
        assert torch.equal(grad, torch.autograd.grad(x.tanh().sum(), x)[0])


def big():
    return torch.randn(2**17 + 1, dtype=torch.double)  # more than is copied


@pytest.mark.parametrize(
    "call",
    [
        lambda t, s: sm.checkpoint(lambda t, s: (t * 2 + s).sin(), t, s),
        lambda t, s: sm.checkpoint(lambda t, s: (t * 2 + s).sin(), t, s=s),
        lambda t, s: sm.checkpoint(lambda t, s: (t * 2 + s["a"][0]).sin(), t, {"a": [s]}),
        lambda t, s: sm.checkpoint(lambda t, s: (t * 2 + s[0]).sin(), t, (s,)),
        lambda t, s: sm.checkpoint(lambda t: (t * 2 + s).sin(), t),
        lambda t, s: sm.checkpoint(Holder(s), t),
        lambda t, s: sm.checkpoint(functools.partial(lambda s, t: (t * 2 + s).sin(), s), t),
    ],
    ids=["argument", "keyword", "list", "tuple", "closure", "attribute", "partial"],
)
def test_a_large_input_that_changes_raises_when_it_is_needed(call):
    t, s = big().requires_grad_(), big()
    out = call(t, s)
    s.add_(1)
    with pytest.raises(sm.CheckpointError, match=r"modified by an inplace.*131073"):
        out.sum().backward()


class Holder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s

    def forward(self, t):
        return (t * 2 + self.s).cos()


def test_what_nobody_reads_may_change():
    t, holder = big().requires_grad_(), Holder(big())
    holder.unread = big()
    out = sm.checkpoint(holder, t)
    holder.unread += 1
    out.sum().backward()


def test_parameters_that_change_raise():
    layer = nn.Linear(3, 3)
    out = sm.checkpoint(nn.Sequential(layer, nn.Tanh()), torch.randn(2, 3))
    with torch.no_grad():
        layer.bias.add_(1)
    with pytest.raises(sm.CheckpointError, match=r"\[0\]|0\.bias|bias"):
        out.sum().backward()


class Large(nn.Module):
    """Overwrites a buffer that is too large to be copied without a reason."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", big())

    def forward(self, t):
        self.state.mul_(0.5)
        return (t * self.state).sin()


def test_what_a_region_overwrites_is_copied():
    nets = [Large(), Large()]
    nets[1].load_state_dict(nets[0].state_dict())
    t = big().requires_grad_()
    for _ in range(3):
        grads = []
        for net, run in zip(nets, (plain, sm.checkpoint), strict=True):
            grads.append(torch.autograd.grad(run(net, t).sum(), t)[0])
        assert torch.equal(*grads)
        assert torch.equal(nets[0].state, nets[1].state)


class Hidden:
    """Overwrites what it is given, by a name that tells nothing of it."""

    def __init__(self, method):
        self.method = method

    def __call__(self, t):
        getattr(t, self.method)(1)
        return t.sin()


def test_an_overwrite_that_nothing_announces_is_refused_once():
    body = Hidden("add_")
    with pytest.raises(sm.CheckpointError, match="argument 0"):
        sm.checkpoint(body, leaf(3) * 1).sum().backward()
    x = leaf(3)
    grads = [torch.autograd.grad(run(body, x * 1).sum(), x)[0] for run in (plain, sm.checkpoint)]
    assert torch.equal(*grads)


@pytest.mark.parametrize(
    "body",
    [
        lambda t: t.add_(1).sin(),
        lambda t: F.relu(t, inplace=True).sin(),
        lambda t: (torch.add(t.detach(), 1, out=t.detach()), t.sin())[1],
        lambda t: t.view(-1).mul_(2).sin(),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3).double()),
    ],
    ids=["method", "flag", "out", "view", "module"],
)
def test_overwriting_ones_own_input(body):
    x = leaf(2, 3)
    for _ in range(2):
        grads = []
        for run in (plain, sm.checkpoint):
            y = x * 1
            grads.append(torch.autograd.grad((run(body, y)).sum() + y.sum(), x)[0])
        assert torch.equal(*grads)


def test_overwriting_an_item_of_the_input():
    def body(t):
        t[0] = 0
        t *= 2
        return t.sin()

    x = leaf(2, 3)
    grads = [torch.autograd.grad(run(body, x * 1).sum(), x)[0] for run in (plain, sm.checkpoint)]
    assert torch.equal(*grads)


def test_a_nested_region_that_overwrites_its_input():
    inner = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3).double(), nn.Tanh())
    x = leaf(2, 3)
    for _ in range(2):
        grads = []
        for run in (plain, sm.checkpoint):
            out = run(lambda t, run=run: run(inner, t.sin()).cos(), x)
            grads.append(torch.autograd.grad(out.sum(), x)[0])
        assert torch.equal(*grads)


def test_random_streams_on_request():
    def body(t):
        return t.sin() * random.random() * float(np.random.rand()) * torch.rand(3)

    x = leaf(3)
    found = []
    for run in (plain, sm.checkpoint(streams=("numpy", "random"))(body)):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        out = run(body, x) if run is plain else run(x)
        found.append((torch.autograd.grad(out.sum(), x)[0], random.random(), np.random.rand()))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]
    with pytest.raises(sm.OptionError, match="cuda"):
        sm.checkpoint(streams=("cuda",))(body)(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", [True, False])
def test_autocast(dtype, cache):
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Tanh())
    nets = [Two(copy.deepcopy(block), run) for run in (plain, sm.checkpoint)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(3, 4)
    for net in nets:
        with torch.autocast("cpu", dtype=dtype, cache_enabled=cache):
            out = net(x)
        out.float().sum().backward()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_no_grad_and_inference_mode_run_the_function_once():
    calls = []
    block = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    block[0].register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(2, 3)
    with torch.no_grad():
        a = sm.checkpoint(block, x)
    with torch.inference_mode():
        b = sm.checkpoint(block, x)
    assert torch.equal(a, b) and not a.requires_grad and len(calls) == 2


def test_inputs_that_need_no_gradient():
    block, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)
    sm.checkpoint(block, x).sum().backward()
    grad = block[0].weight.grad.clone()
    block.zero_grad()
    block(x).sum().backward()
    assert torch.equal(grad, block[0].weight.grad)


def test_several_backwards_and_double_backward():
    net, x = Two(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()), sm.checkpoint), None
    net = net.double()
    x = leaf(3, 4)
    out = net(x).sum()
    first = torch.autograd.grad(out, x, retain_graph=True)[0]
    second = torch.autograd.grad(out, x, retain_graph=True)[0]
    assert torch.equal(first, second)
    assert int(net.block[1].num_batches_tracked) == 2  # it is called twice in each forward
    body = lambda t: sm.checkpoint(lambda u: (u.sin() * u).exp(), t)  # noqa: E731
    assert torch.autograd.gradgradcheck(body, leaf(3))


def test_a_region_that_raises_leaves_no_hooks_behind():
    def body(t):
        t = t.sin()
        raise KeyError("of the region")

    with pytest.raises(KeyError, match="of the region"):
        sm.checkpoint(body, leaf(3))
    x = leaf(3)
    assert torch.equal(torch.autograd.grad(x.sin().sum(), x)[0], x.cos())
    assert not sm.is_recomputing()


def test_hooks_that_compute_values(capsys):
    block = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh())

    def double(module, args, out):
        print(sm.is_recomputing())
        return out * 2

    block[0].register_forward_hook(double)
    x = torch.randn(2, 3)
    sm.checkpoint(block, x).sum().backward()
    assert capsys.readouterr().out.split() == ["False", "True"]
    grad = block[0].weight.grad.clone()
    block.zero_grad()
    block(x).sum().backward()
    assert torch.equal(grad, block[0].weight.grad)
    assert not sm.is_recomputing()


def test_hooks_that_collect_collect_once():
    kept = []
    block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    block[0].register_forward_hook(lambda m, i, o: kept.append(o.detach()))
    sm.checkpoint(block, torch.randn(2, 3)).sum().backward()
    assert len(kept) == 1


def test_registries_that_were_empty_are_empty_again_and_keep_what_came_later():
    """A region may fill an empty dict of a module, in its forward and in its recomputation."""

    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = {}

        def forward(self, t):
            if "scale" not in self.cache:
                self.cache["scale"] = 2.0
                return (t * 3).sin().exp()
            return (t * self.cache["scale"]).sin().exp()

    net, x = Cache(), leaf(3)
    out = sm.checkpoint(net, x)
    net.cache["later"] = 1
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, torch.autograd.grad((x * 3).sin().exp().sum(), x)[0])
    assert net.cache == {"scale": 2.0, "later": 1}


def test_a_hook_added_after_the_forward_does_not_run_in_the_recomputation():
    block, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.randn(2, 3)
    out = sm.checkpoint(block, x)
    block[0].register_forward_hook(lambda m, i, o: o * 0)
    out.sum().backward()
    assert block[2].weight.grad.abs().sum() > 0
    assert len(block[0]._forward_hooks) == 1


def generator(t):
    yield t.sin()


async def coroutine(t):
    return t.sin()


def test_lazy_functions_are_refused():
    for fn in (generator, coroutine):
        with pytest.raises(sm.RegionError, match=fn.__name__):
            sm.checkpoint(fn, leaf(3))
    with pytest.raises(sm.RegionError, match="generator"):
        sm.checkpoint(lambda t: (t.sin() for _ in range(2)), leaf(3))
    with pytest.raises(sm.RegionError, match="Tensor as its function"):
        sm.checkpoint(leaf(3), leaf(3))


def test_an_iterator_that_a_region_reads_is_refused():
    items = iter([1.0, 2.0])
    out = sm.checkpoint(lambda t, i: (t * next(i)).sin(), leaf(3), items)
    with pytest.raises(sm.CheckpointError, match="argument 1 is list_iterator"):
        out.sum().backward()


def test_lazy_modules_run_plain_the_first_time():
    net = nn.Sequential(nn.LazyLinear(3), nn.Tanh())
    sm.checkpoint(net, torch.randn(2, 4)).sum().backward()
    assert net[0].weight.grad is not None


def test_buffers_that_share_memory_go_on_sharing_it():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            both = torch.ones(2, 3)
            self.register_buffer("both", both)
            self.register_buffer("first", both[0])
            self.register_buffer("strided", both.t()[1])

        def forward(self, t):
            self.first.mul_(2)
            self.strided.add_(1)
            return (t * self.both).sin()

    nets = [Views(), Views()]
    x = torch.randn(2, 3, requires_grad=True)
    grads = []
    for net, run in zip(nets, (plain, sm.checkpoint), strict=True):
        run(net, x)
        grads.append(torch.autograd.grad(run(net, x).sum(), x)[0])
    assert torch.equal(*grads) and torch.equal(nets[0].both, nets[1].both)


def test_saved_memory_is_freed_and_recomputed_once_per_region():
    calls = []

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            if sm.is_recomputing():
                print("again")
            return self.linear(x).tanh().sin().cos()

    net = nn.Sequential(*(Block() for _ in range(4)))
    saved = {}

    def pack(t):
        saved[id(t)] = t
        return t

    x = torch.randn(64, 64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        for block in net:
            x = sm.checkpoint(block, x)
    parameters = {p.data_ptr() for p in net.parameters()}
    kept = {t.data_ptr() for t in saved.values()} - parameters
    assert len(kept) == 3  # the inputs of the blocks after the first, whose input needs no gradient
    assert calls == []


def test_outer_hooks_see_what_is_kept():
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        y = sm.checkpoint(lambda t: t.sin().cos().exp(), leaf(3) * 1)
    assert len(packed) == 1  # the input of the region
    y.sum().backward()


class Making(dict):
    """Hands out something made of what it stores, as tables of activations do."""

    def __getitem__(self, key):
        return super().__getitem__(key)()

    def __iter__(self):
        return iter([])

    def items(self):
        raise AssertionError("nobody shall ask")

    keys = values = items


def test_tables_with_a_will_of_their_own_are_left_alone():
    table = Making(sin=lambda: torch.sin)
    x = leaf(3)
    (grad,) = torch.autograd.grad(sm.checkpoint(lambda t: table["sin"](t), x).sum(), x)
    assert torch.equal(grad, x.cos())
    assert dict.__len__(table) == 1
