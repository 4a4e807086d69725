"""State that goes from one iteration of an AccumulatingLoop to the next."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import safemodules as sm
from safemodules.testing import gradcheck_module


class Cell(nn.Module):
    """A recurrent cell with dropout that returns a loss, or features, and its state."""

    def __init__(self, returns: str = "loss", drop: float = 0.2) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.drop = nn.Dropout(drop)
        self.returns = returns

    def forward(self, x: Tensor, state: Tensor, scale: Tensor | float = 1.0) -> Any:
        h = self.cell(x * scale, state)
        out = self.drop(h)
        return (out.square().mean() if self.returns == "loss" else out), h


def plain(
    cell: nn.Module, items: Any, state: Tensor, reduction: str, truncate: int | None, *shared: Any
) -> tuple[Tensor, Tensor]:
    outputs = []
    for index, item in enumerate(items):
        if truncate and index and index % truncate == 0:
            state = state.detach()
        out, state = cell(item, state, *shared)
        outputs.append(out)
    total = outputs[0]
    for out in outputs[1:]:
        total = total + out
    if reduction == "stack":
        return torch.stack(outputs), state
    return total / len(outputs) if reduction == "mean" else total, state


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 6),
    returns=st.sampled_from(["loss", "features"]),
    reduction=st.sampled_from(["mean", "sum", "stack"]),
    truncate=st.sampled_from([None, 1, 2, 4]),
)
def test_a_carried_state_gives_the_plain_loop(
    count: int, returns: str, reduction: str, truncate: int | None
) -> None:
    torch.manual_seed(0)
    cells = [Cell(returns).double() for _ in range(2)]
    cells[1].load_state_dict(cells[0].state_dict())
    items = torch.randn(count, 2, 3).double().requires_grad_()
    start = torch.randn(2, 4).double().requires_grad_()
    scale = torch.ones(3).double().requires_grad_()
    loop = sm.AccumulatingLoop(cells[1], reduction=reduction, truncate=truncate)
    results = []
    for run, cell in [
        (lambda s: plain(cells[0], items, s, reduction, truncate, scale), cells[0]),
        (lambda s: loop(items, scale, carry=s), cells[1]),
    ]:
        torch.manual_seed(1)
        out, last = run(start.tanh())
        state = torch.get_rng_state()
        total = out.square().sum()
        if truncate is None:
            total = total + last.sum()
        grads = torch.autograd.grad(total, [*cell.parameters(), items, start, scale])
        results.append((out, last, state, *grads))
    for a, b in zip(*results, strict=True):
        if truncate is not None and returns == "loss" and reduction != "stack":
            # losses: another order of the sum
            assert (a - b).double().norm() <= 1e-14 * (1 + b.double().norm())
        else:
            assert torch.equal(a, b)


@pytest.mark.parametrize("returns", ["loss", "features"])
def test_gradients_through_time_equal_finite_differences(returns: str) -> None:
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loop = sm.AccumulatingLoop(Cell(returns))
            self.start = nn.Parameter(torch.randn(2, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.loop(x, carry=self.start.tanh())

    assert gradcheck_module(Model().double(), torch.randn(4, 2, 3).double(), fast_mode=True)


def test_a_state_may_be_nested_and_come_with_auxiliary_outputs() -> None:
    net = nn.Linear(3, 3)

    def body(x: Tensor, carry: dict[str, Any]) -> Any:
        h = torch.tanh(net(x) + carry["h"][0])
        return (h.mean(), {"size": h.norm()}), {"h": (h,), "n": carry["n"] + 1}

    items = torch.randn(5, 2, 3)
    for truncate in (None, 2):
        loop = sm.AccumulatingLoop(body, truncate=truncate)
        (loss, extra), last = loop(items, carry={"h": (torch.zeros(2, 3),), "n": 0})
        assert last["n"] == 5
        assert extra["size"].shape == (5,)
        assert last["h"][0].requires_grad is (truncate is None)
        loss.backward()
        assert net.weight.grad is not None


def test_a_function_of_the_losses_with_a_carried_state() -> None:
    torch.manual_seed(0)
    cell = Cell(drop=0.0).double()
    items, start = torch.randn(5, 2, 3).double(), torch.zeros(2, 4).double()
    for truncate in (None, 2):
        loop = sm.AccumulatingLoop(cell, reduction=lambda v: v.logsumexp(0), truncate=truncate)
        out, _ = loop(items, carry=start)
        vector, _ = plain(cell, items, start, "stack", truncate)
        assert torch.equal(out, vector.logsumexp(0))
        found = torch.autograd.grad(out, list(cell.parameters()))
        wanted = torch.autograd.grad(vector.logsumexp(0), list(cell.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_state_without_gradients() -> None:
    cell = Cell(drop=0.0)
    items, start = torch.randn(5, 2, 3), torch.zeros(2, 4)
    with torch.no_grad():
        found = sm.AccumulatingLoop(cell)(items, carry=start)
        expected = plain(cell, items, start, "mean", None)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_body_that_returns_no_state_is_refused() -> None:
    for returned in (torch.zeros(()), (torch.zeros(()),), None):
        with pytest.raises(sm.LoopBodyError, match=r"pair \(output, carry\)"):
            sm.AccumulatingLoop(lambda x, c, r=returned: r)([1], carry=0)
