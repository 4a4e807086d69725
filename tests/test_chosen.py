"""Modules that are checkpointed because the caller names them."""

import copy
import pickle

import pytest
import torch
from loop_models import WIDTH, Calls, block
from torch import nn

import safemodules as sm


class Custom(nn.Module):
    """Has a call of its own."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def __call__(self, x):
        self.calls += 1
        return super().__call__(x) * 2

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x))).sin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.custom = Body(), Body(), Custom()
        self.sequence = nn.Sequential(*block(), *block())

    def forward(self, x):
        return self.sequence(self.custom(self.second(self.first(x))))


CHOICES = [
    "first",
    Body,
    lambda name, module: name in ("second", "custom"),
    ["first", "custom", "sequence"],
    nn.Sequential,
    ("loops", Custom),
]


def train(net):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        x = torch.randn(6, WIDTH, requires_grad=True)
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        found += [x.grad, *(p.grad for p in net.parameters())]
    return [*found, *net.state_dict().values()]


@pytest.mark.parametrize("with_inputs", [True, False])
@pytest.mark.parametrize(
    "choice", CHOICES, ids=["name", "class", "predicate", "names", "sequences", "loops and class"]
)
def test_training_is_that_of_the_original(choice, with_inputs):
    torch.manual_seed(0)
    plain = Net()
    net = copy.deepcopy(plain)
    inputs = torch.randn(6, WIDTH) if with_inputs else None
    sm.convert_model(net, inputs, checkpoint=choice)
    assert any(region.kind == "module" for region in sm.conversion_plan(net).regions)
    assert isinstance(net.first, Body) and isinstance(net.sequence, nn.Sequential)
    assert list(net.state_dict()) == list(plain.state_dict())
    others = [net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    expected = train(plain)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(expected, train(other), strict=True))
        assert other.custom.calls == plain.custom.calls
    sm.revert_model(net)
    assert [type(m) for m in net.modules()] == [type(m) for m in plain.modules()]
    assert [set(vars(m)) for m in net.modules()] == [set(vars(m)) for m in plain.modules()]


def test_what_is_chosen_is_computed_again(capsys):
    net = Net()
    net.first.linear.register_forward_pre_hook(
        lambda *_: print("again") if sm.is_recomputing() else None
    )
    sm.convert_model(net, torch.randn(6, WIDTH), checkpoint="first")
    capsys.readouterr()
    net(torch.randn(6, WIDTH)).sum().backward()
    assert capsys.readouterr().out.split() == ["again"]
    assert "asked for" in str(sm.conversion_plan(net))


def test_a_plain_sequence_becomes_a_checkpointed_one():
    net = sm.convert_model(Net(), checkpoint="sequence")
    assert isinstance(net.sequence, sm.CheckpointedSeq)
    sm.convert_model(net, checkpoint="sequence")
    assert isinstance(net.sequence, sm.CheckpointedSeq)
    sm.revert_model(net)
    assert type(net.sequence) is nn.Sequential


def test_a_sequence_that_was_checkpointed_before_stays_so():
    net = Net()
    sm.CheckpointedSeq.wrap(net.sequence)
    sm.revert_model(sm.convert_model(net, checkpoint=["sequence", "first"]))
    assert isinstance(net.sequence, sm.CheckpointedSeq)


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        ("layer", "'layers'"),
        (nn.LSTM, "chooses no module"),
        (lambda name, module: False, "chooses no module"),
        (3, "expected False, 'loops'"),
        (int, "expected False, 'loops'"),
    ],
    ids=["name", "class", "predicate", "number", "type"],
)
def test_what_chooses_nothing_is_refused(choice, match):
    net = Calls()
    with pytest.raises(sm.OptionError, match=match):
        sm.convert_model(net, checkpoint=choice)
    assert type(net) is Calls
