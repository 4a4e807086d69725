"""AccumulatingLoop equals the plain loop: values, gradients, buffers, random numbers."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import safemodules as sm
from safemodules.state import RandomState
from safemodules.testing import gradcheck_module


class Net(nn.Module):
    """Batch norm, dropout, and a loss or features."""

    def __init__(self, returns: str = "loss", drop: float = 0.3) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(5, 3)
        self.returns = returns

    def forward(self, x: Tensor, shift: Tensor | float = 0.0) -> Any:
        out = self.head(self.drop(torch.tanh(self.norm(self.linear(x) + shift))))
        return out.square().mean() if self.returns == "loss" else out


def added(weights: Sequence[float]) -> float:
    """The sum of weights from left to right; ``sum`` rounds otherwise from Python 3.12 on."""
    return functools.reduce(operator.add, weights)


def plain(
    net: Callable[..., Tensor],
    items: Sequence[Any],
    reduction: Any,
    *shared: Any,
    weights: Any = None,
) -> Tensor:
    """The loop that keeps everything, written as people write it."""
    outputs = [net(item, *shared) for item in items]
    if callable(reduction):
        return reduction(torch.stack(outputs))
    if reduction in ("stack", "cat"):
        return getattr(torch, reduction)(outputs)
    weights = [1] * len(outputs) if weights is None else weights
    total = outputs[0] if weights[0] == 1 else outputs[0] * weights[0]
    for output, weight in zip(outputs[1:], weights[1:], strict=True):
        total = total + (output if weight == 1 else output * weight)
    return total / added(weights) if reduction == "mean" else total


def stated_gradients(
    net: Callable[..., Tensor],
    items: Sequence[Any],
    reduction: str,
    inputs: Sequence[Tensor],
    *shared: Any,
    weights: Any = None,
    incoming: float = 1.0,
) -> list[Tensor]:
    """Gradients in the order of summation that the loop documents."""
    weights = [1] * len(items) if weights is None else weights
    sums: list[Tensor] = []
    for item, weight in zip(items, weights, strict=True):
        loss = net(item, *shared)
        found = torch.autograd.grad(loss, list(inputs), torch.full_like(loss, weight))
        sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else list(found)
    factor = torch.tensor(incoming, dtype=sums[0].dtype)
    if reduction == "mean":
        factor = factor / added(weights)
    return [s * factor for s in sums]


def state_of(net: nn.Module) -> list[Tensor]:
    return [b.clone() for b in net.buffers()] + [torch.get_rng_state()]


def assert_all_equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other), (one - other).abs().max()


REDUCTIONS = {
    "mean": "mean",
    "sum": "sum",
    "max": torch.max,
    "logsumexp": lambda v: torch.logsumexp(v, 0),
    "softmax": lambda v: (v.softmax(0) * v).sum(),
    "variance": lambda v: v.var(correction=0),
}


# -- losses: gradients taken in forward ---------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 6),
    rows=st.integers(2, 4),
    reduction=st.sampled_from(["mean", "sum"]),
    weights=st.none() | st.lists(st.floats(0.25, 3), min_size=6, max_size=6),
    incoming=st.sampled_from([1.0, -0.3, 64.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_losses_give_the_bits_of_the_stated_sum(
    count: int,
    rows: int,
    reduction: str,
    weights: list[float] | None,
    incoming: float,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    net = Net().to(dtype)
    items = [torch.randn(rows, 4, dtype=dtype) for _ in range(count)]
    weights = None if weights is None else weights[:count]
    shift = torch.randn(5, dtype=dtype).requires_grad_()
    nets = [copy.deepcopy(net) for _ in range(3)]

    torch.manual_seed(1)
    expected = plain(nets[0], items, reduction, shift, weights=weights)
    after = state_of(nets[0])
    naive = torch.autograd.grad(expected * incoming, [*nets[0].parameters(), shift])

    torch.manual_seed(1)
    inputs = [*nets[1].parameters(), shift]
    stated = stated_gradients(
        nets[1], items, reduction, inputs, shift, weights=weights, incoming=incoming
    )

    torch.manual_seed(1)
    loss = sm.AccumulatingLoop(nets[2], reduction=reduction, weights=weights)(items, shift)
    assert torch.equal(loss, expected)
    assert_all_equal(state_of(nets[2]), after)
    found = torch.autograd.grad(loss * incoming, [*nets[2].parameters(), shift])
    assert_all_equal(found, stated)
    # Another order of the same sum: some roundings of terms which, where batch norm has two rows
    # only, cancel to a tenth of their size.
    bound = 64 * torch.finfo(dtype).eps
    for one, other in zip(found, naive, strict=True):
        assert (one - other).norm() <= bound * max(other.norm(), abs(incoming))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("store", ["auto", "gradients", "recompute"])
def test_gradients_equal_finite_differences(name: str, store: str) -> None:
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(3, 4)
            self.loop = sm.AccumulatingLoop(
                Net(drop=0.2), reduction=REDUCTIONS[name], store=store, chunks=2
            )
            self.other = nn.Linear(4, 1)

        def forward(self, x: Tensor, shift: Tensor) -> Tensor:
            h = self.encoder(x).tanh()
            return 3 * self.loop(h, shift) + self.other(h).mean()

    model = Model().double()
    x, shift = torch.randn(5, 3).double(), torch.randn(5).double()
    assert gradcheck_module(model, x, shift, fast_mode=True)


@pytest.mark.parametrize("name", ["max", "logsumexp", "softmax", "variance"])
@pytest.mark.parametrize("store", ["gradients", "recompute", "auto"])
def test_a_function_of_the_losses_gives_the_value_and_gradient_of_the_plain_loop(
    name: str, store: str
) -> None:
    torch.manual_seed(0)
    nets = [Net().double() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    items = list(torch.randn(5, 3, 4).double())
    torch.manual_seed(1)
    expected = plain(nets[0], items, REDUCTIONS[name])
    torch.manual_seed(1)
    found = sm.AccumulatingLoop(nets[1], reduction=REDUCTIONS[name], store=store)(items)
    assert torch.equal(found, expected)
    assert_all_equal(state_of(nets[0])[:-1], state_of(nets[1])[:-1])
    expected.backward()
    found.backward()
    wanted = torch.cat([p.grad.flatten() for p in nets[0].parameters()])
    got = torch.cat([p.grad.flatten() for p in nets[1].parameters()])
    # Seeded by the incoming gradient, or multiplied by it afterwards: roundings of the sum.
    assert (got - wanted).norm() <= 1e-14 * wanted.norm()


def nodes_of(value: Tensor) -> list[str]:
    stack, seen = [value.grad_fn], {}
    while stack:
        node = stack.pop()
        if node is not None and id(node) not in seen:
            seen[id(node)] = node
            stack += [child for child, _ in node.next_functions]
    return [node.name() for node in seen.values()]


@pytest.mark.parametrize(("width", "rows", "taken"), [(64, 1, 1), (2, 512, 4)])
def test_of_gradients_and_activations_the_smaller_is_kept(
    width: int, rows: int, taken: int
) -> None:
    net = nn.Linear(width, width)
    loop = sm.AccumulatingLoop(lambda x: net(x).tanh().mean(), reduction=torch.max)
    names = nodes_of(loop(torch.randn(4, rows, width)))
    # the first iteration's gradients are there by the time the sizes are known
    assert names.count("_TakenBackward") == taken
    assert names.count("TanhBackward0") == 4 - taken


def test_a_loss_composes_and_is_differentiated_twice_with_a_retained_graph() -> None:
    torch.manual_seed(0)
    net = Net(drop=0.0).eval()
    items = torch.randn(4, 3, 4)
    loss = 2 * sm.AccumulatingLoop(net)(items) + net.linear.weight.square().sum()
    expected = 2 * plain(net, items, "mean") + net.linear.weight.square().sum()
    parameters = list(net.parameters())
    wanted = torch.autograd.grad(expected, parameters)
    for _ in range(2):
        found = torch.autograd.grad(loss, parameters, retain_graph=True)
        for a, b in zip(found, wanted, strict=True):
            assert (a - b).norm() <= 1e-6 * b.norm()
    torch.autograd.grad(loss, parameters)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, parameters)


def test_a_body_may_be_used_in_two_loops_and_outside_of_them() -> None:
    torch.manual_seed(0)
    net = Net(drop=0.0).eval().double()
    items = torch.randn(4, 3, 4).double()
    loop = sm.AccumulatingLoop(net)
    found = loop(items[:2]) * loop(items[2:]) + net(items[0])
    expected = plain(net, items[:2], "mean") * plain(net, items[2:], "mean") + net(items[0])
    for a, b in zip(
        torch.autograd.grad(found, list(net.parameters())),
        torch.autograd.grad(expected, list(net.parameters())),
        strict=True,
    ):
        assert (a - b).norm() <= 1e-14 * b.norm()


def test_a_loop_in_a_loop() -> None:
    torch.manual_seed(0)
    net = Net(drop=0.0).eval().double()
    items = torch.randn(2, 3, 4, 4).double()
    inner = sm.AccumulatingLoop(net)
    found = sm.AccumulatingLoop(inner, reduction="sum")(items)
    expected = plain(lambda group: plain(net, group, "mean"), items, "sum")
    assert torch.equal(found, expected)
    for a, b in zip(
        torch.autograd.grad(found, list(net.parameters())),
        torch.autograd.grad(expected, list(net.parameters())),
        strict=True,
    ):
        assert (a - b).norm() <= 1e-14 * b.norm()


@pytest.mark.parametrize("under", [sm.checkpoint, torch.utils.checkpoint.checkpoint])
def test_a_loop_in_a_checkpointed_region(under: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    net = Net(drop=0.0).eval()
    items = torch.randn(3, 3, 4)
    loop = sm.AccumulatingLoop(net)
    kwargs = {} if under is sm.checkpoint else {"use_reentrant": False}
    scale = torch.ones((), requires_grad=True)
    parameters = [*net.parameters(), scale]
    loss = under(lambda s: loop(items).exp() * s, scale, **kwargs)
    expected = loop(items).exp() * scale
    assert torch.equal(loss, expected)
    assert_all_equal(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)
    )


def test_an_offloading_hook_outside_keeps_the_version_check() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.sigmoid(self.linear(x))
            h += x
            return h.mean()

    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with hooks, pytest.raises(sm.LoopBodyError, match="overwritten in the body"):
        sm.AccumulatingLoop(Clash())(torch.randn(2, 3, 4))
    with torch.autograd.graph.save_on_cpu():
        net = Net(drop=0.0)
        sm.AccumulatingLoop(net)(torch.randn(2, 3, 4)).backward()


def test_hooks_of_tensors_run_once_and_see_the_whole_gradient() -> None:
    torch.manual_seed(0)
    net, items = Net(drop=0.0).eval(), torch.randn(3, 3, 4)
    shift = torch.zeros(5, requires_grad=True)
    seen: dict[str, list[Tensor]] = {}

    def run(loss_of: Callable[..., Tensor], name: str) -> list[Tensor]:
        seen[name] = []
        net.zero_grad()
        shared = shift * 1
        shared.retain_grad()
        handles = [
            net.linear.weight.register_hook(lambda g: seen[name].append(g) or g * 2),
            shared.register_hook(lambda g: seen[name].append(g) or g * 3),
            net.head.weight.register_post_accumulate_grad_hook(
                lambda p: seen[name].append(p.grad.clone())
            ),
        ]
        loss_of(shared).backward()
        for handle in handles:
            handle.remove()
        return [net.linear.weight.grad.clone(), shared.grad.clone()]

    expected = run(lambda s: plain(net, items, "mean", s), "plain")
    found = run(lambda s: sm.AccumulatingLoop(net)(items, s), "loop")
    assert len(seen["plain"]) == len(seen["loop"]) == 3
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-6 * b.norm()


def test_gradients_reach_items_shared_tensors_and_what_lies_before_them() -> None:
    torch.manual_seed(0)
    net = Net(drop=0.0).double().eval()
    encoder = nn.Linear(4, 4).double()
    x = torch.randn(3, 2, 4).double().requires_grad_()
    shift = torch.randn(5).double().requires_grad_()

    def of(run: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        h = encoder(x).tanh()
        twice = shift.exp()
        return torch.autograd.grad(
            run(h, twice) + h.sum(), [*encoder.parameters(), *net.parameters(), x, shift]
        )

    found = of(lambda h, s: sm.AccumulatingLoop(net)(h, shift=s))
    expected = of(lambda h, s: plain(net, h, "mean", s))
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-14 * max(b.norm(), 1)


def test_tensors_that_depend_on_each_other_are_not_counted_twice() -> None:
    a = torch.randn(3, dtype=torch.float64, requires_grad=True)
    b = a * 2
    loop = sm.AccumulatingLoop(lambda item, s, t, u: (item * s * t.exp() * u).sum())
    items = list(torch.randn(4, 3).double())

    def expected() -> Tensor:
        return sum((i * b * b[:].exp() * a).sum() for i in items) / 4

    wanted = torch.autograd.grad(expected(), a, retain_graph=True)[0]
    found = torch.autograd.grad(loop(items, b, b[:], a), a)[0]
    assert (found - wanted).norm() <= 1e-14 * wanted.norm()


@pytest.mark.parametrize("first_call", [True, False])
@pytest.mark.parametrize("returns", ["loss", "features"])
def test_parameters_of_the_body_may_lie_before_the_items(first_call: bool, returns: str) -> None:
    torch.manual_seed(0)
    net = Net(returns, drop=0.0).double().eval()
    x, weight = torch.randn(3, 2, 4).double(), net.linear.weight

    def of(run: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        h = (x @ weight.T @ weight).tanh()  # tied
        out = run(h, net.linear.bias)  # a parameter itself, handed over
        return torch.autograd.grad(out.square().sum(), list(net.parameters()))

    loop = sm.AccumulatingLoop(net)
    if not first_call:
        loop(x)
    found = of(loop)
    expected = of(lambda h, s: plain(net, h, "mean", s))
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-14 * max(b.norm(), 1)


def test_parameters_that_are_frozen_or_unused_get_no_gradient() -> None:
    net = Net(drop=0.0)
    net.extra = nn.Linear(2, 2)
    net.head.weight.requires_grad_(False)
    sm.AccumulatingLoop(net)(torch.randn(3, 3, 4)).backward()
    assert net.extra.weight.grad is None
    assert net.head.weight.grad is None
    assert net.head.bias.grad is not None


def test_a_parameter_used_in_some_iterations_only() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

        def forward(self, item: tuple[int, Tensor]) -> Tensor:
            return self.experts[item[0]](item[1]).square().mean()

    net = Experts().double()
    items = [(i % 2, torch.randn(3, 4).double()) for i in range(5)]
    parameters = [p for e in net.experts[:2] for p in e.parameters()]
    loss = sm.AccumulatingLoop(net)(items)
    found = torch.autograd.grad(loss, parameters, retain_graph=True)
    for a, b in zip(found, torch.autograd.grad(plain(net, items, "mean"), parameters), strict=True):
        assert (a - b).norm() <= 1e-14 * b.norm()
    loss.backward()
    assert all(p.grad is None for p in net.experts[2].parameters())


def test_a_loss_without_a_graph_is_a_loss_without_a_graph() -> None:
    net = Net(drop=0.0).requires_grad_(False)
    assert not sm.AccumulatingLoop(net)(torch.randn(3, 3, 4)).requires_grad
    net = Net(drop=0.0)
    for mode in (torch.no_grad, torch.inference_mode):
        torch.manual_seed(0)
        with mode():
            found = sm.AccumulatingLoop(copy.deepcopy(net))(torch.ones(3, 3, 4))
        torch.manual_seed(0)
        assert torch.equal(found, plain(copy.deepcopy(net), torch.ones(3, 3, 4), "mean"))
        assert not found.requires_grad


@pytest.mark.parametrize("returns", ["loss", "features"])
def test_a_loop_runs_where_its_tensors_are(returns: str, device: torch.device) -> None:
    torch.manual_seed(0)
    net = Net(returns, drop=0.0).eval().to(device)
    items = torch.randn(3, 2, 4, device=device)
    loss = sm.AccumulatingLoop(net, weights=torch.tensor([1.0, 2.0, 3.0], device=device))(items)
    expected = plain(net, items, "mean", weights=[1.0, 2.0, 3.0])
    assert loss.device.type == device.type
    assert (loss - expected).norm() <= 1e-6 * expected.norm()
    found = torch.autograd.grad(loss.sum(), list(net.parameters()))
    wanted = torch.autograd.grad(expected.sum(), list(net.parameters()))
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).norm() <= 1e-5 * (1 + b.norm())  # kernels of accelerators sum in any order


def test_sparse_gradients_are_summed() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    items = list(torch.tensor([[0, 1], [1, 2], [1, 1], [4, 0]]))
    loop = sm.AccumulatingLoop(lambda i: table(i).square().sum(), reduction="sum")
    loss = loop(items) * 2
    loss.backward()
    found = table.weight.grad.to_dense()
    table.weight.grad = None
    (2 * plain(lambda i: table(i).square().sum(), items, "sum")).backward()
    assert torch.equal(found, table.weight.grad.to_dense())


def test_auxiliary_outputs_are_detached_and_stacked() -> None:
    net = nn.Linear(4, 3)

    def body(x: Tensor) -> Any:
        logits = net(x)
        return logits.square().mean(), {"top": logits.argmax(1), "n": [logits.sum()]}

    items = torch.randn(4, 2, 4)
    for reduction in ("mean", torch.max):
        loss, extra = sm.AccumulatingLoop(body, reduction=reduction)(items)
        assert loss.requires_grad
        assert torch.equal(extra["top"], torch.stack([net(x).argmax(1) for x in items]))
        assert not extra["n"][0].requires_grad
        assert extra["n"][0].shape == (4,)
    loss, names = sm.AccumulatingLoop(lambda x: (net(x).mean(), "a"))(items)
    assert names == ["a"] * 4


def test_a_derived_class_overrides_step() -> None:
    class Classifier(sm.AccumulatingLoop):
        def __init__(self) -> None:
            super().__init__(weights=lambda item: (item["y"] >= 0).sum())
            self.net = nn.Linear(4, 3)

        def step(self, item: dict[str, Tensor], scale: float) -> Tensor:
            return scale * F.cross_entropy(self.net(item["x"]), item["y"], ignore_index=-1)

    loop = Classifier().double()
    x, y = torch.randn(3, 5, 4).double(), torch.randint(-1, 3, (3, 5))
    loss = loop([{"x": a, "y": b} for a, b in zip(x, y, strict=True)], 2.0)
    whole = 2.0 * F.cross_entropy(loop.net(x.flatten(0, 1)), y.flatten(), ignore_index=-1)
    assert (loss - whole).abs() <= 1e-14
    found = torch.autograd.grad(loss, list(loop.parameters()))
    for a, b in zip(found, torch.autograd.grad(whole, list(loop.parameters())), strict=True):
        assert (a - b).norm() <= 1e-14


def test_state_of_the_body_is_that_of_the_loop() -> None:
    loop = sm.AccumulatingLoop(Net(), chunks=2)
    assert {name for name, _ in loop.named_parameters()} >= {"body.linear.weight"}
    again = copy.deepcopy(loop)
    x = torch.randn(4, 4)
    torch.manual_seed(3)
    a = loop(x)
    torch.manual_seed(3)
    assert torch.equal(a, again(x))
    assert "chunks=2" in repr(loop)


# -- tensors: each iteration recomputed -----------------------------------------------------------


@pytest.mark.parametrize("first_call", [True, False])
@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 5),
    reduction=st.sampled_from(["stack", "cat", "mean", "sum"]),
    weighted=st.booleans(),
    drop=st.sampled_from([0.0, 0.4]),
)
def test_tensors_give_the_bits_of_the_plain_loop(
    first_call: bool, count: int, reduction: str, weighted: bool, drop: float
) -> None:
    torch.manual_seed(0)
    nets = [Net("features", drop) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    weights = [0.5 + i for i in range(count)] if weighted and reduction in ("mean", "sum") else None
    loop = sm.AccumulatingLoop(nets[1], reduction=reduction, weights=weights)
    if not first_call:
        loop(torch.randn(count, 3, 4))
        nets[1].load_state_dict(nets[0].state_dict())
    items = torch.randn(count, 3, 4)
    shift = torch.randn(5, requires_grad=True)

    def run(of: Callable[..., Tensor], net: nn.Module) -> list[Tensor]:
        torch.manual_seed(1)
        encoder = nn.Linear(4, 4)
        h = encoder(items)
        out = of(h, shift.exp())
        forward = state_of(net)
        grads = torch.autograd.grad(
            out.square().sum(), [*net.parameters(), *encoder.parameters(), shift]
        )
        return [out, *forward, *grads, *state_of(net)]

    expected = run(lambda h, s: plain(nets[0], h, reduction, s, weights=weights), nets[0])
    assert_all_equal(run(loop, nets[1]), expected)


def test_nested_tensors_are_reduced_one_by_one() -> None:
    net = nn.Linear(4, 3)
    items = torch.randn(3, 2, 4)
    out = sm.AccumulatingLoop(lambda x: {"f": net(x), "pair": (x, net(x).sum(1))}, reduction="cat")(
        items
    )
    assert torch.equal(out["f"], net(items).flatten(0, 1))
    assert torch.equal(out["pair"][0], items.flatten(0, 1))
    assert out["pair"][1].shape == (6,)
    out["pair"][1].sum().backward()
    assert net.weight.grad is not None


def test_losses_under_stack_are_a_vector() -> None:
    net = Net(drop=0.0).eval()
    items = torch.randn(3, 2, 4)
    vector = sm.AccumulatingLoop(net, reduction="stack")(items)
    assert torch.equal(vector, torch.stack([net(x) for x in items]))
    vector[1].backward()


def test_random_streams_of_the_process_are_those_of_the_plain_loop() -> None:
    items = torch.randn(3, 3, 4)
    nets = [Net(), Net()]
    states = []
    for run in (lambda: sm.AccumulatingLoop(nets[0])(items), lambda: plain(nets[1], items, "mean")):
        torch.manual_seed(2)
        run().backward()
        states.append(RandomState.capture().streams["torch.cpu"])
    assert torch.equal(*states)
