"""Overwrites that are part of the function: they stay, and the model trains all the same."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tensor_strategy import bits
from torch import nn

import safemodules as sm


class Net(nn.Module):
    """A model whose forward is made of a linear layer and what a case does with its result."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.gate = nn.Linear(4, 4)
        self.register_buffer("table", torch.linspace(0.1, 0.9, 4).repeat(3, 1))


class SlicesOfAResult(Net):
    def forward(self, x):
        h = torch.sigmoid(self.lin(x))
        a, b = h[:, :2], h[:, 2:]
        a += b
        return h


class ChunksOfAResult(Net):
    def forward(self, x):
        h = self.lin(x).exp()
        first, second = h.chunk(2, 1)
        first.mul_(0.5)
        second.add_(1)
        return h * 2


class TransposedRows(Net):
    def forward(self, x):
        h = F.softmax(self.lin(x), -1)
        for row in h.t():
            row.clamp_(max=0.3)
        return h


class ScalesAView(Net):
    """The write saves the old values itself."""

    def forward(self, x):
        h = self.lin(x)
        left, right = h[:, :2], h[:, 2:]
        left *= right
        return h


class ScalesAViewByMethod(Net):
    def forward(self, x):
        h = torch.tanh(self.lin(x))
        h[:, :2].mul_(self.gate(x)[:, 2:])
        h[:, 2:].mul_(h[:, :2])
        return h


class TwoNames(Net):
    def forward(self, x):
        h = torch.sigmoid(self.lin(x))
        y = h
        h += 1
        return y * h


class InAList(Net):
    def forward(self, x):
        feats = []
        for _ in range(2):
            x = torch.tanh(self.lin(x))
            feats.append(x)
            x += 1
        return sum(feats)


class InADict(Net):
    def forward(self, x):
        known = {"h": torch.sigmoid(self.lin(x))}
        h = known["h"]
        h.sub_(0.5)
        return known["h"] + h


def shift(tensor):
    tensor += 1


def shift_nested(tensors):
    shift(tensors[0])


class ByAFunction(Net):
    def forward(self, x):
        h = torch.sigmoid(self.lin(x))
        shift(h)
        return h


class ByANestedFunction(Net):
    def forward(self, x):
        h = torch.sigmoid(self.lin(x))

        def move(by):
            h.add_(by)

        move(2)
        shift_nested((h,))
        return h


class Shifts(nn.Module):
    def forward(self, x):
        x += 1


class ByAChild(Net):
    def __init__(self):
        super().__init__()
        self.child = Shifts()

    def forward(self, x):
        h = torch.sigmoid(self.lin(x))
        self.child(h)
        return h


class ByAFlag(Net):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        h = torch.tanh(self.lin(x))
        return self.gate(self.relu(h)) + h


class HiddenState(Net):
    def forward(self, x):
        self.h = torch.zeros_like(x)
        for _ in range(3):
            self.h += torch.tanh(self.lin(x) + self.gate(self.h))
        return self.h * 1


class StateInADict(Net):
    def forward(self, x):
        state = {"h": torch.zeros_like(x)}
        hidden = state["h"]
        for _ in range(2):
            out = torch.sigmoid(self.gate(hidden) + self.lin(x))
            state["h"].add_(out)
        return hidden


class MovingCodebook(Net):
    def forward(self, x):
        h = self.lin(x)
        near = torch.softmax(h @ self.table.t(), -1) @ self.table
        with torch.no_grad():
            self.table.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return near + h


class PowerIteration(Net):
    def forward(self, x):
        u = self.table[0]
        v = F.normalize(self.lin.weight.t() @ u, dim=0)
        with torch.no_grad():
            self.table[0].copy_(F.normalize(self.lin.weight @ v, dim=0))
        return self.lin(x) / (self.lin.weight @ v).norm()


class ResultOfASequential(Net):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def forward(self, x):
        h = self.net(x)
        h[0].add_(h[1])
        return h


class OperandOfAProduct(Net):
    def forward(self, x):
        q, k = self.lin(x), self.gate(x)
        keys = [k]
        scores = q @ k.t()
        k.relu_()
        return scores @ keys[0]


class OperandOfAKeyword(Net):
    def forward(self, x):
        h = self.gate(x)
        other = h
        y = F.linear(input=self.lin(x), weight=h[:, :])
        h.neg_()
        return y @ other


class SeveralOnOneLine(Net):
    def forward(self, x):
        h = torch.sigmoid(torch.exp(self.lin(x)) * torch.tanh(self.gate(x)))
        rows = h.unbind(0)
        rows[0].add_(rows[1])
        return h


class SplitOverLines(Net):
    def forward(self, x):
        h = torch.sigmoid(
            # the argument
            self.lin(x)
        )
        a = h[:, 0]
        a += 1
        return h


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class ByACustomFunction(Net):
    def forward(self, x):
        h = self.lin(x)
        seen = [h]
        y = Squared.apply(h)
        h += 1
        return y + seen[0]


class SavedByAnInPlaceSite(Net):
    def forward(self, x):
        h = self.lin(x)
        h.sigmoid_()
        a = h[:, :2]
        a += 1
        return h


class Yields(Net):
    def parts(self, h):
        yield h
        h += 1
        yield h * 2

    def forward(self, x):
        return torch.stack(list(self.parts(torch.sigmoid(self.lin(x))))).sum(0)


SEVERAL_VIEWS = (ChunksOfAResult, TransposedRows, SeveralOnOneLine)
CLASHES = [
    cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Net) and cls is not Net
]


def run(model, x, graph):
    state = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.set_grad_enabled(graph):
        handed = x.clone().requires_grad_(graph)
        handed = handed * 1 if graph else handed
        out = model(handed)
    seen = [out, handed, *model.buffers()]
    for name, buffer in model.named_buffers():
        seen.append(buffer.clone())
        buffer.copy_(state[name])
    return [bits(t.detach()) for t in [out, handed, *seen[-len(state) :]]]


def slope(model, x, move, eps=1e-6):
    """Central difference of the sum of the forward."""
    values = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            values.append((moved(x + sign * eps * move) * WEIGHTS).sum())
    return ((values[0] - values[1]) / (2 * eps)).item()


WEIGHTS = torch.linspace(0.5, 1.5, 12, dtype=torch.float64).view(3, 4)


@pytest.mark.parametrize("inplace", ["all", "unsafe"])
@pytest.mark.parametrize("cls", CLASHES)
def test_a_load_bearing_clash_trains_and_computes_what_it_did(cls, inplace):
    torch.manual_seed(0)
    model, x = cls().double(), torch.randn(3, 4, dtype=torch.float64)
    original = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="inplace"):
        copy.deepcopy(model)(x.clone().requires_grad_() * 1).sum().backward()
    sm.convert_model(model, x, inplace=inplace)
    trained, untouched = copy.deepcopy(model), copy.deepcopy(original)
    for graph in (False, True):
        # with a graph, a write to one of several views is refused
        expected = run(original, x, graph and cls not in SEVERAL_VIEWS)
        assert run(model, x, graph) == expected
    leaf = x.clone().requires_grad_()
    (trained(leaf * 1) * WEIGHTS).sum().backward()
    move = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert (leaf.grad * move).sum().item() == pytest.approx(slope(untouched, x, move), rel=1e-6)
    sm.revert_model(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in original.modules()]


class Forgets(torch.autograd.Function):
    """Saves its input, and never asks for it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


FORGETS = {}
exec(  # without source, so that no copy can be made there
    "def forget(x):\n    return Forgets.apply(x)", {"Forgets": Forgets}, FORGETS
)
forget = FORGETS["forget"]


class NeverAsked(Net):
    def forward(self, x):
        h = self.lin(x)
        y = h
        z = forget(h)
        h += 1
        s = torch.sigmoid(z)
        s += 1
        return s + y


@pytest.mark.filterwarnings("ignore::safemodules.rewriting.classes.ConversionWarning")
def test_what_backward_never_asks_for_is_no_reason_to_refuse():
    model, x = NeverAsked(), torch.randn(3, 4)
    with pytest.raises(RuntimeError, match="inplace"):
        model(x).sum().backward()
    sm.convert_model(model, x)
    model(x).sum().backward()


class SkipSeesActivation(Net):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.lin(x)
        return self.gate(self.relu(h)) + h


class KeepsAnAverage(Net):
    def forward(self, x):
        table = self.table
        table.mul_(0.9)
        h = torch.sigmoid(self.lin(x))
        y = h
        h += table
        return y * h


def test_intended_semantics_compute_what_out_of_place_code_would():
    torch.manual_seed(0)
    model, x = SkipSeesActivation(), torch.randn(3, 4)
    raw = model.lin(x)
    plan = sm.plan_conversion(model, x, semantics="intended")
    [site] = plan.sites
    assert site.decision == "swap"
    assert "changes the function" in site.reason
    assert not plan.equivalence.equivalent
    plan.apply()
    assert torch.equal(model(x), model.gate(raw.relu()) + raw)


def test_intended_semantics_leave_state_of_the_model_in_place():
    model, x = KeepsAnAverage(), torch.randn(3, 4)
    table, before = model.table, model.table.clone()
    h = torch.sigmoid(model.lin(x))
    sm.convert_model(model, x, semantics="intended")
    out = model(x)
    assert model.table is table
    assert torch.equal(table, before * 0.9)
    assert torch.equal(out, h * (h + table))
    out.sum().backward()


class HarmlessSite(Net):
    def forward(self, x):
        h = self.lin(x)
        h += 1
        y = torch.sigmoid(h)
        y += 1
        return y


def test_unsafe_swaps_the_sites_that_clash_and_no_others():
    model, x = HarmlessSite(), torch.randn(3, 4)
    plan = sm.plan_conversion(model, x, inplace="unsafe")
    assert [site.decision for site in plan.sites] == ["keep", "swap"]
    assert "backward needs" in plan.sites[1].reason
    plan.apply()
    model(x).sum().backward()


def test_unsafe_leaves_a_model_that_trains():
    model, x = SkipSeesActivation(), torch.randn(3, 4)
    plan = sm.plan_conversion(model, x, inplace="unsafe")
    assert [site.decision for site in plan.sites] == ["keep"]
