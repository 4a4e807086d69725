"""What would make an AccumulatingLoop silently wrong raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import safemodules as sm

X = torch.randn(3, 2, 4)


class Hidden(nn.Module):
    """Reads a tensor that neither the loop nor the module knows of."""

    def __init__(self, hidden: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.get = lambda: hidden

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.get()).mean()


def test_a_leaf_that_the_loop_does_not_know_of_is_refused() -> None:
    leaf = torch.ones(4, requires_grad=True)
    net = nn.Sequential(sm.AccumulatingLoop(Hidden(leaf)))
    with pytest.raises(
        sm.LoopBodyError,
        match=r"0 \(AccumulatingLoop\) of Sequential: .*shape \(4,\).*Hand it over",
    ):
        net(X)
    assert sm.AccumulatingLoop(Hidden(leaf.detach()))(X).requires_grad
    with torch.no_grad():
        sm.AccumulatingLoop(Hidden(leaf))(X)


def test_a_tensor_computed_before_the_loop_is_refused() -> None:
    body = Hidden(None)
    # its only leaf is a parameter of the body, so that its gradient would arrive, but its graph
    # be run once in each iteration
    before = body.linear.weight.exp().sum(0)
    body.get = lambda: before
    with pytest.raises(sm.LoopBodyError, match="computed before the loop, the result of Sum"):
        sm.AccumulatingLoop(body)(X)


def test_a_function_may_read_modules_and_leaves_by_name_but_no_results() -> None:
    net, leaf = nn.Linear(4, 4).double(), torch.ones(4, dtype=torch.float64, requires_grad=True)
    x = X.double()
    loss = sm.AccumulatingLoop(lambda i: (net(i) * leaf).square().mean())(x)
    found = torch.autograd.grad(loss, [net.weight, leaf])
    wanted = torch.autograd.grad(
        sum((net(i) * leaf).square().mean() for i in x) / 3, [net.weight, leaf]
    )
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-15
    result = leaf * 2
    with pytest.raises(sm.LoopBodyError, match="the result of Mul"):
        sm.AccumulatingLoop(lambda i: (net(i) * result).mean())(x)
    assert sm.AccumulatingLoop(lambda i, r: (net(i) * r).mean())(x, result).requires_grad


def test_modules_are_found_in_what_a_function_reads() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.net = nn.Linear(4, 1)

        def loss(self, x: Tensor) -> Tensor:
            return self.net(x).square().mean()

        def run(self) -> Tensor:
            return sm.AccumulatingLoop(lambda x: self.loss(x))(X)

    trainer = Trainer()
    nets = [nn.Linear(4, 1)]

    def inner(x: Tensor) -> Tensor:
        return nets[0](x).mean()

    def outer(x: Tensor, net: nn.Module = trainer.net) -> Tensor:
        return inner(x) + net(x).mean()

    for loss in (
        trainer.run(),
        sm.AccumulatingLoop(trainer.loss)(X),
        sm.AccumulatingLoop(outer)(X),
    ):
        trainer.net.zero_grad()
        loss.backward()
        assert trainer.net.weight.grad is not None
    assert nets[0].weight.grad is not None


def test_cached_parametrizations_from_outside_are_refused() -> None:
    net = nn.utils.parametrizations.weight_norm(nn.Linear(4, 1))
    loop = sm.AccumulatingLoop(lambda x: net(x).mean())
    loop(X).backward()
    with parametrize.cached():
        net(X)
        with pytest.raises(sm.LoopBodyError, match="computed before the loop"):
            loop(X)


@pytest.mark.parametrize("reduction", ["mean", torch.max])
def test_a_second_derivative_is_refused(reduction: Any) -> None:
    net = nn.Linear(4, 1)
    shift = torch.ones(4, requires_grad=True)
    other = net.weight.square().sum()
    loop = sm.AccumulatingLoop(
        lambda x, s: net(x * s).exp().mean(), reduction=reduction, store="gradients"
    )
    for wrt in (net.weight, shift):
        loss = loop(X, shift * 1) + other
        (gradient,) = torch.autograd.grad(loss, wrt, create_graph=True)
        with pytest.raises(sm.LoopBodyError, match="second derivative"):
            torch.autograd.grad(gradient.square().sum(), wrt)
        loss = loop(X, shift * 1) + other
        gradients = torch.autograd.grad(loss, [net.weight, shift], create_graph=True)
        with pytest.raises(sm.LoopBodyError, match="second derivative"):
            sum(g.square().sum() for g in gradients).backward()


def test_a_recomputing_loop_is_differentiated_twice() -> None:
    net = nn.Linear(4, 1).double()
    x = X.double()

    def penalty(loss: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(loss, net.weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), net.weight)[0]

    loop = sm.AccumulatingLoop(lambda i: net(i).exp().mean(), store="recompute")
    expected = penalty(sum(net(i).exp().mean() for i in x) / 3)
    assert (penalty(loop(x)) - expected).abs().max() <= 1e-14


def test_a_body_that_changes_a_parameter_is_refused() -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def body(x: Tensor) -> Tensor:
        loss = net(x).mean()
        with torch.no_grad():
            net.bias.add_(1)
        return loss

    with pytest.raises(sm.LoopBodyError, match=r"changed the parameter (net\.)?bias"):
        sm.AccumulatingLoop(body)(X)
    for loss in sm.AccumulatingLoop(lambda x: net(x).mean()).steps(X):
        del loss
        optimizer.step()  # the script's own business


def test_a_body_that_overwrites_what_it_is_given_is_refused() -> None:
    net = nn.Linear(4, 4)
    base = torch.randn(3, 2, 4, requires_grad=True)

    def body(x: Tensor, s: Tensor | None = None) -> Tensor:
        (x if s is None else s).mul_(2)
        return net(x).mean()

    with pytest.raises(sm.LoopBodyError, match=r"overwrote a tensor of shape \(2, 4\)"):
        sm.AccumulatingLoop(body)([t.clone() for t in base])
    with pytest.raises(RuntimeError, match="in-place operation"):  # torch's own
        sm.AccumulatingLoop(lambda x: body(x * 1 if x.sum() == 0 else x))([X[0] * 0, base[0] * 1])
    with pytest.raises(sm.LoopBodyError, match=r"overwrote a tensor of shape \(2, 4\)"):
        sm.AccumulatingLoop(body)(X, base[0] * 1)


@pytest.mark.parametrize("returned", [0.5, None, "loss", (1.0, 2.0)])
def test_what_is_no_loss_and_no_tensor_is_refused(returned: Any) -> None:
    with pytest.raises(sm.LoopBodyError, match=r"the body returned .*\.item\(\)"):
        sm.AccumulatingLoop(lambda x: returned)(X)


def test_outputs_that_do_not_go_together_are_refused() -> None:
    net = nn.Linear(4, 4)
    for reduction, make, match in [
        ("mean", lambda x, i: net(x)[:, : 1 + i], r"iteration 1 returned output \(2, 2\)"),
        ("stack", lambda x, i: net(x)[:, : 1 + i], r"iteration 0 output \(2, 1\)"),
        ("cat", lambda x, i: net(x) if i else net(x)[0], r"cannot be put together"),
        ("mean", lambda x, i: net(x) if i else net(x).mean(), "returned tensors, but"),
        ("mean", lambda x, i: (net(x).mean(), x[: 1 + i]), r"auxiliary \(2, 4\)"),
        ("mean", lambda x, i: (net(x).mean(), x) if i else net(x).mean(), "with an auxiliary"),
        ("mean", lambda x, i: net(x).mean() if i else (net(x).mean(), x), "without an aux"),
        (torch.max, lambda x, i: net(x), 'Use reduction="stack"'),
    ]:
        numbers = iter(range(9))
        loop = sm.AccumulatingLoop(lambda x, m=make, n=numbers: m(x, next(n)), reduction=reduction)
        with pytest.raises(sm.LoopBodyError, match=match):
            loop(X)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"reduction": "max"}, "'mean', 'sum', 'stack', 'cat'"),
        ({"store": "disk"}, "'auto'"),
        ({"chunks": 2, "chunk_size": 2}, "not both"),
        ({"chunks": 0}, "positive"),
        ({"truncate": 0}, "positive"),
        ({"weights": "length"}, "'length' is unknown"),
        ({"weights": torch.ones(2, 2)}, r"shape \(2, 2\)"),
        ({"weights": 3}, "not a int"),
        ({"weights": [1.0], "reduction": "stack"}, "not of 'stack'"),
        ({"weights": [1.0], "reduction": torch.max}, "weigh them itself"),
    ],
)
def test_options_that_are_unknown_are_refused(options: Any, match: str) -> None:
    with pytest.raises(sm.OptionError, match=match):
        sm.AccumulatingLoop(nn.Linear(4, 1), **options)


def test_a_loop_without_a_body_and_weights_with_gradients_are_refused() -> None:
    with pytest.raises(sm.OptionError, match="no body"):
        sm.AccumulatingLoop()
    weights = torch.ones(3, requires_grad=True)
    with pytest.raises(sm.OptionError, match="needs a gradient"):
        sm.AccumulatingLoop(lambda x: x.mean(), weights=weights)(X)


def test_a_wrapped_body_is_refused_with_the_mend() -> None:
    class Wrapped(nn.parallel.DistributedDataParallel):
        def __init__(self) -> None:
            nn.Module.__init__(self)

    with pytest.raises(sm.LoopBodyError, match="Wrap the model that holds the loop"):
        sm.AccumulatingLoop(Wrapped())(X)


def test_an_error_in_the_body_leaves_hooks_and_modes_as_they_were() -> None:
    net = nn.Linear(4, 1)
    seen: list[Tensor] = []
    net.weight.register_hook(seen.append)

    def body(x: Tensor) -> Tensor:
        net.weight.data.mul_(1)
        raise KeyError("body")

    with pytest.raises(KeyError):
        sm.AccumulatingLoop(body)(X)

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise KeyError("backward")

    with pytest.raises(KeyError):
        sm.AccumulatingLoop(lambda x: Bad.apply(net(x)).mean())(X)
    net(X).mean().backward()
    assert len(seen) == 1
