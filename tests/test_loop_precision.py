"""AccumulatingLoop under autocast, GradScaler, float16, compilation and export."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import safemodules as sm


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def gradients(loss: Tensor, net: nn.Module) -> Tensor:
    return torch.cat(
        [g.flatten().double() for g in torch.autograd.grad(loss, list(net.parameters()))]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_autocast_gives_what_the_plain_loop_gives(dtype: torch.dtype, where: str) -> None:
    net, x = make_net(), torch.randn(4, 6, 8)
    y = torch.randint(4, (4, 6))

    def body(item: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast(
            "cpu", dtype, enabled=where == "inside" or torch.is_autocast_enabled("cpu")
        ):
            return F.cross_entropy(net(item[0]).float(), item[1])

    items = list(zip(x, y, strict=True))
    with torch.autocast("cpu", dtype, enabled=where == "outside"):
        net(x)  # casts of the weights are kept from here on
        expected = sum(body(item) for item in items) / 4
        loss = sm.AccumulatingLoop(body)(items)
    assert torch.equal(loss, expected)
    wanted, found = gradients(expected, net), gradients(loss, net)
    # Gradients of single layers are rounded to the low precision, whose step this is.
    assert (found - wanted).norm() <= torch.finfo(dtype).eps * wanted.norm()


def test_half_gradients_do_not_underflow() -> None:
    """Without a scale in forward the gradients, 1e-9 of their usual size, would all be zero."""
    net, x = make_net(), torch.randn(4, 6, 8)
    small = 1e-6

    def body(item: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            out = net(item)
        return out.float().square().mean() * small

    plain = sum(body(item) for item in x) / 4
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    loss = sm.AccumulatingLoop(body)(x)
    wanted = gradients(scaler.scale(plain), net)
    found = gradients(scaler.scale(loss), net)
    exact = gradients(sum(net(i).square().mean() for i in x) / 4 * small * 2.0**16, net)
    assert (wanted - exact).norm() <= 0.02 * exact.norm()  # what float16 activations cost
    assert (found - exact).norm() <= 0.02 * exact.norm()


def test_half_gradients_that_overflow_lower_the_scale() -> None:
    net = make_net()
    x = torch.randn(4, 6, 8) * torch.tensor([1.0, 1.0, 30.0, 1.0]).reshape(4, 1, 1)

    def body(item: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            out = net(item)
        return out.float().square().sum()

    for reduction in ("mean", lambda v: v.mean()):
        loss = sm.AccumulatingLoop(body, reduction=reduction, store="gradients")(x)
        found = gradients(loss, net)
        # of this size they neither overflow nor underflow without a scale
        wanted = gradients(sum(body(i) for i in x) / 4, net)
        assert torch.isfinite(found).all()
        assert (found - wanted).norm() <= 1e-6 * wanted.norm()


def test_gradients_that_are_infinite_in_any_case_reach_the_scaler() -> None:
    net = make_net()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = copy.deepcopy(net.state_dict())

    def body(item: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            out = net(item)
        return out.float().square().sum() * 1e9

    scaler.scale(sm.AccumulatingLoop(body)(torch.randn(2, 6, 8))).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    assert scaler.get_scale() < scale
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())


def test_a_model_of_half_parameters_trains() -> None:
    net, x = make_net().half(), torch.randn(4, 6, 8).half()
    loss = sm.AccumulatingLoop(lambda i: net(i).float().square().mean())(x)
    found = gradients(loss * 1e-3, net)
    reference = copy.deepcopy(net).double()
    exact = gradients(sum(reference(i.double()).square().mean() for i in x) / 4 * 1e-3, reference)
    assert (found - exact).norm() <= 0.01 * exact.norm()


@pytest.mark.parametrize("reduction", ["mean", "stack", torch.max])
def test_a_compiled_body_gives_what_the_body_gives(reduction: Any) -> None:
    net, x = make_net(), torch.randn(4, 6, 8)

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, item: Tensor) -> Tensor:
            return self.net(item).square().mean()

    body = Body()
    for compiled in (
        torch.compile(body, backend="aot_eager"),
        torch.compile(body.forward, backend="aot_eager"),
    ):
        loss = sm.AccumulatingLoop(body, reduction=reduction)(x)
        other = sm.AccumulatingLoop(compiled, reduction=reduction)(x)
        assert torch.equal(loss, other)
        a, b = gradients(loss.sum(), net), gradients(other.sum(), net)
        assert torch.equal(a, b)


# The compiler itself asks a tensor in the middle of a graph for its gradient after a graph break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("reduction", ["mean", "cat", torch.max])
def test_a_model_that_holds_a_loop_may_be_compiled_and_exported(reduction: Any) -> None:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def forward(self, item: Tensor) -> Tensor:
            out = self.net(item)
            return out if reduction == "cat" else out.square().mean()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(8, 8)
            self.loop = sm.AccumulatingLoop(Body(), reduction=reduction)

        def forward(self, x: Tensor) -> Tensor:
            return self.loop(self.encoder(x).tanh()).exp()

    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 6, 8)
    expected = model(x)
    compiled = torch.compile(model, backend="aot_eager")
    found = compiled(x)
    assert torch.equal(found, expected)
    assert torch.equal(gradients(found.sum(), model), gradients(expected.sum(), model))
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend="aot_eager")(x), expected)
    exported = torch.export.export(model, (x,)).module()
    assert torch.equal(exported(x), expected)
