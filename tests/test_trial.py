"""With example inputs the converted model is compared, and a mismatch names its lines."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import safemodules as sm
import safemodules.testing
from safemodules.conversion.trial import find_guilty


class SkipSeesRelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.safe = nn.ReLU(inplace=True)
        self.guilty = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.safe(self.lin(x))
        h = h - 1
        return self.lin(self.guilty(h)) + h


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        h = self.lin(x)
        y = h
        h += 1
        h = h * 2
        h -= y
        return h


class WritesCallersInput(nn.Module):
    def forward(self, x):
        x -= 1
        return x.tanh()


class Normaliser(nn.Module):
    """Writes a buffer through a local name, through a helper, and a saved tensor beside."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.plain = torch.zeros(3)

    def forward(self, x):
        mean = self.mean
        mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        count_up(self.plain)
        h = torch.sigmoid(self.lin(x - mean))
        h += self.plain
        return h


def count_up(tensor):
    tensor += 1


NUMBERS = itertools.count(1)


class ScalesTransposedView(nn.Module):
    """The gradient of a written view is laid out like its base, that of a product is not."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(32, 32)
        self.relu = nn.ReLU(inplace=True)
        self.register_buffer("key", torch.randn(2, 4, 50, 8))

    def forward(self, x):
        h = self.lin(x).view(1, 40, 4, 8).permute(0, 2, 1, 3)
        h /= torch.tensor(3.0).sqrt()
        return self.relu(self.key @ h.transpose(-1, -2))


class Unseeded(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(x * next(NUMBERS))


class Clash(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        h = self.lin(x).softmax(1)
        h[:, 0] = 0
        return h.square()


class FillsRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        out = torch.empty_like(x)
        for i, row in enumerate(x):
            out[i] = self.lin(row)
        return out


def snapshot(model):
    return [(type(m), dict(m.__dict__)) for m in model.modules()]


@pytest.mark.parametrize(
    ("cls", "kept", "swapped", "reader"),
    [
        (SkipSeesRelu, "guilty", "safe", "reads it: "),
        (TwoNames, "h += 1", "h -= y", "reads it: "),
        (WritesCallersInput, "x -= 1", None, "the caller's inputs[0]"),
    ],
)
def test_a_load_bearing_site_stays_and_its_reader_is_named(cls, kept, swapped, reader):
    model, x = cls(), torch.randn(4, 3)
    original = copy.deepcopy(model)
    plan = sm.plan_conversion(model, x)
    decided = {s.site.module or s.site.source: (s.decision, s.reason) for s in plan.sites}
    assert decided[kept][0] == "keep"
    assert "load-bearing" in decided[kept][1] and reader in decided[kept][1]
    assert swapped is None or decided[swapped][0] == "swap"
    plan.apply()
    assert sm.verify(original, model, x).equivalent


def test_state_written_under_another_name_stays_in_place_and_the_rest_is_swapped():
    model, x = Normaliser(), torch.randn(4, 3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (model(x) ** 2).sum().backward()
    sm.convert_model(model, x)
    decided = {s.site.source: (s.decision, s.reason) for s in sm.conversion_plan(model).sites}
    assert decided["tensor += 1"] == ("keep", "load-bearing: plain of the model keeps it")
    source = "mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)"
    assert decided[source] == ("keep", "load-bearing: mean of the model keeps it")
    assert decided["h += self.plain"][0] == "swap"
    buffer, plain = model.mean, model.plain.clone()
    model(x)
    assert model.mean is buffer
    assert torch.equal(model.plain, plain + 1)


def test_a_site_that_only_rounds_the_gradient_otherwise_stays_and_the_rest_is_swapped():
    torch.manual_seed(0)
    model, x = ScalesTransposedView(), torch.randn(1, 40, 32)
    reference = copy.deepcopy(model)
    for copied in (model, reference):
        copied(x).sum().backward()
    assert torch.equal(model.lin.bias.grad, reference.lin.bias.grad)
    sm.convert_model(model, x)
    decided = {s.site.op: (s.decision, s.reason) for s in sm.conversion_plan(model).sites}
    assert decided["itruediv"][0] == "keep"
    assert "last bits" in decided["itruediv"][1]
    assert decided["relu_"][0] == "swap"
    assert sm.verify(reference, model, x).equivalent


def test_a_model_that_does_not_repeat_itself_is_told_apart_from_a_mismatch():
    with pytest.raises(sm.MismatchError, match="does not compute the same twice"):
        sm.convert_model(Unseeded(), torch.ones(3))


def test_sites_that_copy_are_swapped_only_where_backward_raises():
    x = torch.randn(4, 3)
    [fills] = sm.plan_conversion(FillsRows(), x).sites
    assert fills.decision == "keep"
    assert "copy" in fills.reason
    model = Clash()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(x).sum().backward()
    plan = sm.plan_conversion(model, x)
    assert [site.decision for site in plan.sites] == ["swap"]
    plan.apply()
    model(x).sum().backward()
    assert sm.testing.gradcheck_module(model.double(), x.double().requires_grad_())
    assert any("functionalize" in str(check) for check in plan.equivalence.checks)


@given(st.lists(st.frozensets(st.integers(0, 11), min_size=1, max_size=3), min_size=1, max_size=3))
def test_bisection_finds_sites_without_which_nothing_differs(groups):
    def differs(some):
        return any(group <= set(some) for group in groups)

    guilty = find_guilty(list(range(12)), differs)
    assert guilty
    assert not differs([site for site in range(12) if site not in guilty])
    assert set(guilty) <= frozenset().union(*groups)


class Recursive(nn.Module):
    """Walks its children by a method that calls itself, and counts down by a function."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(inplace=True)))

    def walk(self, module, x):
        for child in module.children():
            x = self.walk(child, x) if len(list(child.children())) else child(x)
        return x

    def forward(self, x):
        return _count_down(self.walk(self.inner, x), 100)


def _count_down(x, n):
    if n == 0:
        return x
    x = _count_down(x, n - 1)
    x += 1
    return x


@pytest.mark.parametrize("with_inputs", [True, False])
@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
def test_functions_that_call_themselves(with_inputs):
    net, x = Recursive(), torch.randn(3, 2)
    expected = net(x)
    sm.convert_model(net, x if with_inputs else None)
    assert torch.equal(net(x), expected)
