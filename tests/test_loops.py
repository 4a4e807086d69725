"""Loop bodies of a converted model are checkpointed, and compute what they did."""

import copy

import pytest
import torch
from loop_models import (
    MODELS,
    WIDTH,
    Appending,
    Calls,
    Closed,
    Consecutive,
    InPlaceFirst,
    Nested,
    Net,
    OnACopy,
    Outer,
    Stepping,
)
from memory_counter import StorageCounter
from torch import nn

import safemodules as sm
from safemodules.checkpointing.plainly import run_plain


def train(net, steps=3):
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        x = torch.randn(6, WIDTH, requires_grad=True)
        out = net(x)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        found += [out.detach(), x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]
    return [*found, *net.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("with_inputs", [True, False])
@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_training_is_that_of_the_original(cls, with_inputs):
    torch.manual_seed(0)
    net = cls()
    converted = copy.deepcopy(net)
    if with_inputs:
        sm.convert_model(converted, torch.randn(6, WIDTH))
    else:
        sm.convert_model(converted)
    decisions = {region.decision for region in sm.conversion_plan(converted).regions}
    # of what the in-place model keeps, its inputs are all
    assert "checkpoint" in decisions or (with_inputs and cls is InPlaceFirst)
    expected, found = train(net), train(converted)
    assert len(expected) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert getattr(net, "count", 0) == getattr(converted, "count", 0)
    sm.revert_model(converted)
    assert type(converted) is cls
    assert all(set(vars(m)) == set(vars(n)) for m, n in zip(net.modules(), converted.modules()))


def kept_bytes(net, x):
    """Bytes that a forward keeps for backward, parameters left out."""
    seen = {p.data_ptr() for p in (*net.parameters(), *net.buffers())}
    total = 0

    def pack(tensor):
        nonlocal total
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            total += tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = net(x)
    assert out.requires_grad
    return total


@pytest.mark.parametrize("cls", [Calls, Consecutive, Appending, Nested, Outer, Stepping, Closed])
def test_less_is_kept_for_backward(cls):
    net, x = cls(), torch.randn(64, WIDTH)
    before = kept_bytes(net, x)
    sm.convert_model(net, x)
    assert kept_bytes(net, x) < 0.6 * before


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_a_forward_without_gradients_needs_no_more_memory(cls, context):
    def peak(net):
        torch.manual_seed(0)
        with context(), StorageCounter([x, *net.parameters(), *net.buffers()]) as counter:
            net(x)
        return counter.peak

    net, x = cls(), torch.randn(64, WIDTH)
    expected = peak(net)
    assert expected > 0
    assert peak(sm.convert_model(net)) <= expected


def test_the_plan_names_loops_and_what_they_cost():
    plan = sm.plan_conversion(Consecutive(), torch.randn(64, WIDTH))
    (region,) = plan.regions
    assert region.decision == "checkpoint" and region.calls == 3 and region.saved_bytes > 0
    assert region.seconds > 0 and region.source == "h = self.norm(x)"
    assert "loop_models.py" in str(plan) and "3 calls" in str(plan)
    assert "checkpoint=False" in str(plan) and "under torch.compile" in str(plan)
    assert '"saved_bytes"' in plan.to_json()
    assert "outlined(" in plan.diff()


def test_loops_are_left_alone_on_request():
    net = Calls()
    plan = sm.plan_conversion(net, torch.randn(6, WIDTH), checkpoint=False)
    (region,) = plan.regions
    assert region.decision == "plain" and "checkpoint='loops'" in region.reason
    plan.apply()
    assert type(net.layers[0]) is nn.Sequential


def test_a_call_that_runs_on_a_copy_is_no_region():
    """Backward needs what the module of the loop overwrites, and so do other names."""
    net, x = OnACopy().double(), torch.randn(6, WIDTH, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        net(x).sum().backward()
    plan = sm.plan_conversion(net.eval(), x.detach())
    reasons = {region.source: region.reason for region in plan.regions}
    assert "runs on a copy" in reasons["h = self.act(h)"]
    plan.apply()
    assert torch.autograd.gradcheck(net, (x,))


class Rewriting(Net):
    """A loop that overwrites its argument, which only a gradient to the input sees."""

    def step(self, h):
        self.layers[0](torch.cos(h)).sigmoid()
        return torch.tanh(h)

    def forward(self, x):
        kept = [x * 1]
        for _ in range(3):
            kept[0].mul_(0.5).copy_(self.step(kept[0]))
        return self.layers[-1](kept[0])


def test_a_region_that_only_input_gradients_prove_wrong_runs_plain():
    x = torch.randn(6, WIDTH, requires_grad=True)
    net, converted = Rewriting().eval(), sm.convert_model(Rewriting().eval(), x)
    expected = copy.deepcopy(net)
    converted.load_state_dict(net.state_dict())
    (region,) = sm.conversion_plan(converted).regions
    assert (region.decision, region.reason) == (
        "plain",
        "checkpointed, the model does not compute the same",
    )
    got, wanted = (
        torch.autograd.grad(each(x).square().sum(), [x, *each.parameters()], allow_unused=True)
        for each in (converted, expected)
    )
    assert all(a is b or torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


class Cheap(Net):
    """A loop that keeps next to nothing beside what follows it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(WIDTH, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_a_loop_that_saves_little_runs_plain():
    plan = sm.plan_conversion(Cheap(), torch.randn(64, WIDTH))
    (region,) = plan.regions
    assert region.decision == "plain" and "less than 5%" in region.reason


def test_only_the_innermost_loops_are_checkpointed(capsys):
    plan = sm.plan_conversion(Outer(), torch.randn(64, WIDTH))
    decisions = {region.source: region.decision for region in plan.regions}
    assert decisions == {"x = layer(x)": "checkpoint", "x = stage(x)": "plain"}
    for inputs in (torch.randn(64, WIDTH), None):
        net = sm.convert_model(Outer(), inputs)
        net.stages[0].layers[0][0].register_forward_pre_hook(
            lambda *_: print("again") if sm.is_recomputing() else None
        )
        net(torch.randn(6, WIDTH)).sum().backward()
        assert capsys.readouterr().out.split() == ["again"]


def test_inference_and_eval_are_the_original():
    net = Calls().eval()
    x = torch.randn(6, WIDTH)
    with torch.no_grad():
        expected = net(x)
        sm.convert_model(net, x)
        assert torch.equal(net(x), expected)
    with torch.inference_mode():
        assert torch.equal(net(x), expected)


def test_a_deep_copy_and_a_second_conversion():
    net, x = sm.convert_model(Calls(), torch.randn(6, WIDTH)), torch.randn(64, WIDTH)
    other = copy.deepcopy(net)
    before = kept_bytes(Calls(), x)
    assert kept_bytes(other, x) < 0.6 * before
    sm.convert_model(net, torch.randn(6, WIDTH))
    assert kept_bytes(net, x) < 0.6 * before
    assert list(net.state_dict()) == list(Calls().state_dict())


def test_compiled_and_exported_loops_compute_the_same():
    net, x = Calls().eval(), torch.randn(6, WIDTH)
    expected = net(x)
    sm.convert_model(net, x)
    assert torch.equal(torch.compile(net, backend="eager", fullgraph=True)(x), expected)
    assert torch.equal(torch.export.export(net, (x,)).module()(x), expected)
    with run_plain():
        assert torch.equal(net(x), expected)
