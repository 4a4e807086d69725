"""What an AccumulatingLoop runs over, and how its iterations are weighted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import safemodules as sm


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


def seen_by(loop_options: dict[str, Any], items: Any) -> list[Any]:
    seen: list[Any] = []

    def body(item: Any) -> Tensor:
        seen.append(item)
        return torch.zeros((), requires_grad=False)

    sm.AccumulatingLoop(body, **loop_options)(items)
    return seen


def test_a_tensor_is_taken_apart_along_a_dimension() -> None:
    x = torch.arange(24.0).reshape(2, 4, 3)
    for dim in (0, 1, 2, -1):
        for got, expected in zip(seen_by({"dim": dim}, x), x.unbind(dim), strict=True):
            assert torch.equal(got, expected)
    for got, expected in zip(
        seen_by({"dim": 1, "chunks": 3}, x), x.tensor_split(3, 1), strict=True
    ):
        assert torch.equal(got, expected)
    for got, expected in zip(seen_by({"dim": 1, "chunk_size": 3}, x), x.split(3, 1), strict=True):
        assert torch.equal(got, expected)


def test_more_chunks_than_rows_are_as_many_as_rows() -> None:
    assert [len(c) for c in seen_by({"chunks": 8}, torch.zeros(3, 2))] == [1, 1, 1]


def test_mappings_and_tuples_are_split_together() -> None:
    x, y = torch.arange(6.0).reshape(3, 2), torch.arange(3)
    got = seen_by({}, {"x": x, "y": y})
    assert [sorted(item) for item in got] == [["x", "y"]] * 3
    assert torch.equal(got[2]["x"], x[2])
    pairs = seen_by({"chunks": 2}, (x, y))
    assert [len(pair[1]) for pair in pairs] == [2, 1]
    named = seen_by({"chunk_size": 2}, Batch(x, y))
    assert torch.equal(named[1].y, y[2:])
    nested = seen_by({"chunks": 3}, {"in": (x, {"y": y}), "name": "train"})
    assert torch.equal(nested[1]["in"][1]["y"], y[1:2])
    assert nested[1]["name"] == "train"


def test_lists_generators_and_loaders_are_run_over() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    items = [(x[0], "a"), {"k": x[1]}, 3]
    assert seen_by({}, items)[0] is items[0]
    assert seen_by({}, iter(items))[1] is items[1]
    assert seen_by({}, (x[0], x[1]))[1] is not None
    loader = DataLoader(TensorDataset(x, torch.arange(3)), batch_size=2)
    assert [len(batch[0]) for batch in seen_by({}, loader)] == [2, 1]


def test_one_item_of_a_generator_is_alive_at_a_time() -> None:
    import gc
    import weakref

    alive: list[weakref.ref[Tensor]] = []
    net = nn.Linear(4, 4)

    def make() -> Iterator[Tensor]:
        for _ in range(5):
            assert sum(ref() is not None for ref in alive) == 0
            item = torch.randn(2, 4)
            alive.append(weakref.ref(item))
            yield item
            del item

    gc.disable()
    try:
        for reduction in ("mean", "sum"):
            loop = sm.AccumulatingLoop(lambda x: net(x).tanh().mean(), reduction=reduction)
            loop(make()).backward()
            alive.clear()
    finally:
        gc.enable()


def test_nothing_to_run_over_is_an_error() -> None:
    for options, items in [
        ({}, []),
        ({}, iter(())),
        ({}, torch.zeros(0, 3)),
        ({"chunks": 2}, torch.zeros(0, 3)),
        ({"reduction": "stack"}, []),
        ({"reduction": torch.max}, []),
    ]:
        loop = sm.AccumulatingLoop(nn.Linear(3, 1), **options)
        for mode in (torch.enable_grad, torch.no_grad):
            with mode(), pytest.raises(sm.LoopItemsError, match="nothing to run over"):
                loop(items)
        if "reduction" not in options and hasattr(items, "__len__"):
            with pytest.raises(sm.LoopItemsError, match="nothing to run over"):
                list(loop.steps(items))


@pytest.mark.parametrize(
    ("options", "items", "match"),
    [
        ({"chunks": 2}, [torch.zeros(2)], "Leave chunks= and chunk_size= out"),
        ({"chunks": 2}, {"x": torch.zeros(2), "y": torch.zeros(3)}, r'items\["y"\] 3'),
        ({"chunks": 2}, (torch.zeros(2), torch.zeros(())), r"\[1\] of shape \(\) has no dim"),
        ({"dim": 2}, torch.zeros(2, 2), r"has no dimension 2"),
        ({}, 3, "int cannot be run over"),
        ({}, {"name": "x"}, "holds no tensor"),
        ({"weights": "size"}, [1, 2], "no tensor with that dimension"),
        ({"weights": [1.0]}, [torch.zeros(1)] * 2, "1 weights, but at least 2"),
        ({"weights": [1.0] * 3}, [torch.zeros(1)] * 2, "3 weights, but 2 items"),
        ({"weights": [1.0, -1.0]}, [torch.zeros(1)] * 2, "sum to 0"),
        ({"weights": lambda x: x}, [torch.ones(2)], r"shape \(2,\)"),
    ],
)
def test_what_cannot_be_split_or_weighed_is_refused(options: Any, items: Any, match: str) -> None:
    loop = sm.AccumulatingLoop(lambda x: torch.zeros(()), **options)
    with pytest.raises(sm.LoopItemsError, match=match):
        loop(items)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 9),
    chunks=st.integers(1, 5),
    by_size=st.booleans(),
    named=st.booleans(),
)
def test_the_mean_over_uneven_chunks_is_the_mean_over_the_batch(
    rows: int, chunks: int, by_size: bool, named: bool
) -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double()
    x, y = torch.randn(rows, 3).double(), torch.randint(2, (rows,))
    option = {"chunk_size": chunks} if by_size else {"chunks": chunks}
    loop = sm.AccumulatingLoop(
        lambda b: F.cross_entropy(net(b["x"] if named else b[0]), b["y"] if named else b[1]),
        **option,
    )
    batch = {"x": x, "y": y} if named else (x, y)
    whole = F.cross_entropy(net(x), y)
    expected = torch.autograd.grad(whole, list(net.parameters()))
    loss = loop(batch)
    assert (loss - whole).abs() <= 1e-14 * (1 + whole.abs())
    for a, b in zip(torch.autograd.grad(loss, list(net.parameters())), expected, strict=True):
        assert (a - b).abs().max() <= 1e-14
    net.zero_grad()
    list(loop.steps(batch))
    for parameter, b in zip(net.parameters(), expected, strict=True):
        assert (parameter.grad - b).abs().max() <= 1e-14


@pytest.mark.parametrize("ways", ["sequence", "tensor", "function", "call"])
def test_token_weights_give_the_mean_over_tokens(ways: str) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    items = []
    for length in (2, 5, 3):
        y = torch.randint(3, (length,))
        y[0] = -100
        items.append((torch.randn(length, 4).double(), y))
    counts = [1, 4, 2]
    weights: Any = {
        "sequence": counts,
        "tensor": torch.tensor(counts),
        "function": lambda item: (item[1] != -100).sum(),
        "call": None,
    }[ways]
    loop = sm.AccumulatingLoop(lambda b: F.cross_entropy(net(b[0]), b[1]), weights=weights)
    called = {"weights": counts} if ways == "call" else {}
    whole = F.cross_entropy(net(torch.cat([b[0] for b in items])), torch.cat([b[1] for b in items]))
    loss = loop(items, **called)
    assert (loss - whole).abs() <= 1e-14
    wanted = torch.autograd.grad(whole, net.weight)[0]
    assert (torch.autograd.grad(loss, net.weight)[0] - wanted).abs().max() <= 1e-14
    list(loop.steps(items, **called))
    assert (net.weight.grad - wanted).abs().max() <= 1e-14


def test_items_along_a_dimension_pass_their_gradient_on() -> None:
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    loop = sm.AccumulatingLoop(lambda c: c.exp().sum(), reduction="sum", dim=1, chunks=3)
    loop(x).backward()
    assert torch.equal(x.grad, x.exp())


# -- backward after each iteration -------------------------------------------------------------


def test_steps_fill_grad_as_backward_of_the_reduced_loss_does() -> None:
    torch.manual_seed(0)
    net, encoder = nn.Linear(4, 3).double(), nn.Linear(4, 4).double()
    x, shift = torch.randn(6, 2, 4).double(), torch.randn(3).double().requires_grad_()
    loop = sm.AccumulatingLoop(lambda h, s: (net(h) * s).square().mean())
    tensors = [*net.parameters(), *encoder.parameters(), shift]
    wanted = torch.autograd.grad(loop(encoder(x).tanh(), shift.exp()), tensors)
    # grad may hold something already
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    yielded = list(loop.steps(encoder(x).tanh(), shift.exp()))
    assert all(not loss.requires_grad for loss in yielded)
    assert len(yielded) == 6
    for tensor, gradient in zip(tensors, wanted, strict=True):
        assert (tensor.grad - 1 - gradient).abs().max() <= 1e-14


def test_steps_give_the_bits_of_the_loop_written_by_hand() -> None:
    net = nn.Linear(4, 3)
    chunks = torch.randn(3, 2, 4)
    for chunk in chunks:
        (net(chunk).square().mean() / len(chunks)).backward()
    expected = net.weight.grad
    net.weight.grad = None
    list(sm.AccumulatingLoop(lambda c: net(c).square().mean()).steps(chunks))
    assert torch.equal(net.weight.grad, expected)


def test_steps_of_a_generator_need_the_total() -> None:
    net = nn.Linear(4, 3).double()
    items = torch.randn(3, 2, 4).double()
    loop = sm.AccumulatingLoop(lambda c: net(c).square().mean())
    with pytest.raises(sm.LoopItemsError, match="total="):
        list(loop.steps(iter(items)))
    list(loop.steps(iter(items), total=3))
    wanted = torch.autograd.grad(loop(items), net.weight)[0]
    assert (net.weight.grad - wanted).abs().max() <= 1e-15
    net.zero_grad()
    list(sm.AccumulatingLoop(lambda c: net(c).square().mean(), reduction="sum").steps(iter(items)))
    assert (net.weight.grad - 3 * wanted).abs().max() <= 1e-14


def test_steps_run_the_backward_that_is_given() -> None:
    net = nn.Linear(4, 3)
    loop = sm.AccumulatingLoop(lambda c: (net(c).square().mean(), c.sum()))
    losses = []
    for loss, extra in loop.steps(
        torch.randn(3, 2, 4), backward=lambda loss: (loss * 8).backward()
    ):
        losses.append(loss)
        assert extra.dim() == 0
    eight = net.weight.grad.clone()
    assert len(losses) == 3
    assert eight.abs().sum() > 0
    with pytest.raises(sm.OptionError, match="runs backward for each loss"):
        sm.AccumulatingLoop(net, reduction="stack").steps(torch.randn(3, 2, 4))
    with pytest.raises(sm.LoopBodyError, match="needs a loss"):
        list(sm.AccumulatingLoop(net).steps(torch.randn(3, 2, 4)))
