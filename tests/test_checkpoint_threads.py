"""Regions in several threads compute what they compute one after the other."""

import functools
import os
import sys
import threading
import time

import pytest
import torch
from torch import nn

import safemodules as sm
from safemodules.checkpointing import exclusion


class Ema(nn.Module):
    """Updates a buffer and then uses it; two uses at once would see each other's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(4))
        self.calls = 0
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.calls += 1
        self.mean = 0.5 * self.mean + 0.5 * x.detach().abs().mean(0)
        return torch.tanh(self.linear(x / self.mean)) * self.calls


def batch_norm():
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


def pure():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4), nn.Sigmoid())


def in_threads(*functions, timeout=60):
    """Run functions in threads of their own; their results, or the first error."""
    results, errors = [None] * len(functions), []
    gate = threading.Barrier(len(functions))

    def run(index):
        try:
            gate.wait()
            results[index] = functions[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "threads hang"
    if errors:
        raise errors[0]
    return results


def steps(net, run, seed, count):
    """Gradients of some steps, not accumulated in parameters that other threads have too."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        x = torch.randn(5, 4, generator=generator)
        out = run(net, x)
        out = run(net, out)
        found += torch.autograd.grad(out.square().sum(), list(net.parameters()))
    return found


def plain(net, *args):
    return net(*args)


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture(autouse=True)
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("make", [pure, batch_norm], ids=["pure", "batch norm"])
def test_threads_share_a_module(make):
    """The gradients do not depend on the statistics, which move once per call."""
    net = make()
    expected = [steps(net, plain, seed, 20) for seed in range(4)]
    if make is batch_norm:
        net[1].reset_running_stats()
    found = in_threads(*(lambda s=s: steps(net, sm.checkpoint, s, 20) for s in range(4)))
    assert all(map(same, expected, found))
    if make is batch_norm:
        assert int(net[1].num_batches_tracked) == 4 * 20 * 2
        assert torch.isfinite(net[1].running_var).all()


@pytest.mark.parametrize("make", [pure, batch_norm, Ema], ids=["pure", "batch norm", "ema"])
def test_threads_with_modules_of_their_own(make):
    torch.manual_seed(0)
    states = [make().state_dict() for _ in range(3)]

    def nets():
        found = [make() for _ in states]
        for net, state in zip(found, states, strict=True):
            net.load_state_dict(state)
        return found

    reference, tested = nets(), nets()
    expected = [steps(net, plain, seed, 20) for seed, net in enumerate(reference)]
    jobs = [lambda s=s, n=n: steps(n, sm.checkpoint, s, 20) for s, n in enumerate(tested)]
    found = in_threads(*jobs)
    assert all(map(same, expected, found))
    for a, b in zip(reference, tested, strict=True):
        assert same([*a.state_dict().values()], [*b.state_dict().values()])


def test_a_forward_meets_no_exchanged_buffer():
    """One thread recomputes again and again while others count calls in the same module."""
    net, x = Ema(), torch.randn(5, 4)
    done = threading.Event()

    def recompute():
        first = torch.autograd.grad(out.sum(), net.linear.weight, retain_graph=True)
        for _ in range(200):
            again = torch.autograd.grad(out.sum(), net.linear.weight, retain_graph=True)
            assert same(first, again)
        done.set()
        return 0

    def call():
        count = 0
        while not done.is_set():
            sm.checkpoint(net, x)
            count += 1
        return count

    def evaluate():
        count = 0
        with torch.no_grad():
            while not done.is_set():
                sm.checkpoint(net, x)
                count += 1
        return count

    # Only one calls: `calls += 1` is no atomic step, with or without a checkpoint.
    for other in (call, evaluate):
        done.clear()
        out = sm.checkpoint(net, x)
        before = net.calls
        assert sum(in_threads(recompute, other)) == net.calls - before


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    @functools.wraps(nn.Linear.forward)
    def forward(self, x, factor=2.0, *, shift=0.5):
        return helper(self.linear(x) * self.scale, factor) + shift + SHIFT


def helper(x, factor):
    return torch.sin(x * factor)


SHIFT = 0.5


def test_separate_modules_never_wait(monkeypatch):
    """A class, its functions, their defaults and attributes are shared by all of its objects."""
    nets, x = [Scaled(), Scaled()], torch.randn(2, 4)
    for net in nets:  # whether they draw random numbers is known from the first run
        in_threads(lambda n=net: sm.checkpoint(n, x))
    monkeypatch.setattr(exclusion, "TIMEOUT_SECONDS", 0.0)
    meeting, met = threading.Barrier(2, timeout=20), []
    run = nn.Linear.forward

    def forward(self, x):
        if sm.is_recomputing():
            met.append(meeting.wait())
        return run(self, x)

    forward.__module__ = "torch.nn"
    monkeypatch.setattr(nn.Linear, "forward", forward)

    def train(net):
        out = sm.checkpoint(net, x)
        meeting.wait()  # until what its forward reads is known, a region is in everybody's way
        out.sum().backward()

    # both recomputations are in the middle at the same time
    in_threads(*(lambda n=n: train(n) for n in nets))
    assert len(met) == 2


def test_a_stream_of_random_numbers_is_shared_by_regions_in_turn():
    """Dropout's mask is the same in the recomputation, whatever other threads draw."""
    nets = [nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 4)) for _ in range(3)]

    def train(net):
        for _ in range(40):
            x = torch.ones(2, 64)
            kept = []
            handle = net[1].register_forward_hook(lambda m, i, o: kept.append(o) or None)
            out = sm.checkpoint(net, x)
            handle.remove()
            grads = torch.autograd.grad(out.sum(), net[2].weight)
            assert torch.equal(grads[0], kept[0].detach().sum(0).expand(4, -1))

    in_threads(*(lambda n=n: train(n) for n in nets))


def test_nested_regions_do_not_wait_for_their_own_ancestors():
    inner = batch_norm()

    def body(x):
        y = sm.checkpoint(inner, x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return sm.checkpoint(inner, y * slope)

    def run(call):
        x = torch.ones(3, 4, requires_grad=True) * torch.arange(3.0)[:, None]
        return torch.autograd.grad(call(body, x).sum(), list(inner.parameters()))

    expected = run(lambda f, x: f(x))
    found = in_threads(*(lambda: run(sm.checkpoint) for _ in range(3)))
    assert all(same(expected, grads) for grads in found)


class Deep(torch.autograd.Function):
    """Backward in backward, until the engine hands the rest to a thread of its own."""

    @staticmethod
    def forward(ctx, x, depth, body):
        ctx.depth, ctx.body = depth, body
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            out = Deep.apply(leaf, ctx.depth - 1, ctx.body) if ctx.depth else ctx.body(leaf)
            (inner,) = torch.autograd.grad(out.sum(), leaf)
        return grad * inner, None, None


def test_a_recomputation_in_a_thread_of_the_engine_does_not_wait_for_its_own_region():
    """The region waits in autograd.grad for the engine, which recomputes in another thread."""
    net, threads = batch_norm(), set()

    def inner(x):
        threads.add((threading.get_ident(), sm.is_recomputing()))
        return net(x)

    def body(x):
        y = net(x)
        leaf = y.detach().requires_grad_()
        out = Deep.apply(leaf, 70, lambda t: sm.checkpoint(inner, t))
        (slope,) = torch.autograd.grad(out.sum(), leaf)
        return y * slope

    def run(call):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
        return torch.autograd.grad(call(body, x).sum(), list(net.parameters()))

    def other():
        return [steps(net, sm.checkpoint, 0, 1) for _ in range(20)]

    expected, others = run(lambda f, x: f(x)), other()
    assert any(thread != threading.get_ident() for thread, _ in threads)
    found = in_threads(lambda: run(sm.checkpoint), other)
    assert same(expected, found[0])
    assert all(map(same, others, found[1]))


def test_crossed_regions_do_not_deadlock():
    """Each thread is in one module's region and computes the other's again."""
    first, second = batch_norm(), batch_norm()

    def crossed(a, b):
        def run():
            for _ in range(30):
                x = torch.ones(3, 4, requires_grad=True) * torch.arange(3.0)[:, None]
                ready = sm.checkpoint(b, x)

                def body(t):
                    (slope,) = torch.autograd.grad(ready.sum(), x, retain_graph=True)
                    return a(t) * slope

                sm.checkpoint(body, x)

        return run

    in_threads(crossed(first, second), crossed(second, first))


def test_waiting_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(exclusion, "TIMEOUT_SECONDS", 0.3)
    net, x = batch_norm(), torch.randn(3, 4)
    out = sm.checkpoint(net, x)

    def body(t):
        worker = threading.Thread(target=backward, name="worker")
        worker.start()
        worker.join()
        return net(t)

    errors = []

    def backward():
        try:
            out.sum().backward()
        except sm.CheckpointError as error:
            errors.append(str(error))

    started = time.monotonic()
    sm.checkpoint(body, x).sum().backward()
    assert time.monotonic() - started < 20
    (message,) = errors
    for part in ("'worker' has waited 0.3 s", "'MainThread' is in the forward of", "join threads"):
        assert part in message
    # and nothing is left behind
    out.sum().backward()
    assert not exclusion._threads.stays and not exclusion._threads.waiting


def test_a_variable_that_is_exchanged_is_nobodys_business(monkeypatch):
    """A forward in another thread waits for it, rather than read what it was in another call."""
    monkeypatch.setattr(exclusion, "TIMEOUT_SECONDS", 0.2)
    k, errors, read = 1.0, [], []

    def read_k(t):
        return t * k

    def in_another_thread():
        def run():
            try:
                read.append(float(sm.checkpoint(read_k, torch.ones(()))))
            except sm.CheckpointError as error:
                errors.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    # what it refers to is not searched, so that only `k` is shared
    in_another_thread.__module__ = "torch.testing"

    def body(t):
        if sm.is_recomputing():
            in_another_thread()
        return (t * k).sin()

    x = torch.ones((), requires_grad=True)
    for _ in range(2):  # whether they draw random numbers is known from the first run
        in_threads(lambda: sm.checkpoint(body, x), lambda: sm.checkpoint(read_k, x))
    out = sm.checkpoint(body, x)
    k = 3.0
    out.backward()
    assert not read and "has waited" in errors[0]


def test_a_region_that_raises_lets_others_in():
    net = batch_norm()

    def body(x):
        net(x)
        raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError):
            sm.checkpoint(body, torch.randn(3, 4))
    assert not exclusion._threads.stays
    in_threads(*(lambda: steps(net, sm.checkpoint, 0, 2) for _ in range(2)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_inherits_no_stay():
    net, x = batch_norm(), torch.randn(3, 4)
    status = []

    def body(t):
        child = os.fork()
        if child == 0:
            os._exit(bool(exclusion._threads.stays))
        status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return net(t)

    with torch.no_grad():
        sm.checkpoint(body, x)
    sm.checkpoint(body, x)
    assert status == [0, 0]


def test_one_code_that_draws_in_some_calls_only():
    """What a function that runs many modules has drawn once tells nothing of its next call."""

    def run(module, x):
        return sm.checkpoint(lambda t: module(t), x)

    meet = threading.Thread(target=lambda: run(nn.Tanh(), torch.ones(2, requires_grad=True)))
    meet.start()
    meet.join()
    for module in (nn.Tanh(), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5)):
        grads = []
        for call in (
            lambda m, x: m(x.sin()).cos(),
            lambda m, x: run(lambda t: m(t.sin()).cos(), x),
        ):
            torch.manual_seed(0)
            x = torch.ones(64, requires_grad=True)
            grads.append(torch.autograd.grad(call(module, x).sum(), x)[0])
        assert torch.equal(*grads)
