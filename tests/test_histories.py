"""Tensors that are overwritten where no graph is recorded keep the history that they had.

The original is the oracle: values, whether grad is required, leaves, and gradients.
"""

import pytest
import torch
from sources import load_source
from tensor_strategy import bits
from test_rewriting import swap_everything

import safemodules as sm

MODES = {
    "no_grad": "torch.no_grad()",
    "inference_mode": "torch.inference_mode()",
    "set_grad_enabled": "torch.set_grad_enabled(False)",
}
# statements that overwrite h
STATEMENTS = {
    "operator": "h += 1",
    "operator of a tensor": "h *= x",
    "operator that is promoted": "h += x.double()",
    "method": "h.mul_(3)",
    "method without a twin": "h.fill_diagonal_(3)",
    "constant": "h.zero_()",
    "copy": "h.copy_(x)",
    "function": "torch.sigmoid_(h)",
    "flag": "F.relu(h, inplace=True)",
    "flag, rounded otherwise": "h = F.elu(h, inplace=True)",
    "flag of a user's module": "h = self.own(h)",
    "module flag": "h = self.relu(h)",
    "module flag, rounded otherwise": "h = self.elu(h)",
    "module flag, random": "h = self.drop(h)",
    "item": "h[:, 0] = 5",
    "item from a tensor": "h[1:] = x[1:]",
    "item augmented": "h[:, :1] *= 2",
    "item's method": "h[0].exp_()",
    "entry": "d = [h]\nd[0].exp_()\nh = d[0]",
    "entry's item": "d = {'a': h}\nd['a'][0] += 1\nh = d['a']",
    "out": "torch.add(h, 1, out=h)",
    "overlap": "h[:, 1:] += h[:, :-1]",
}
# what h is: its name, and whether its gradient is looked at
TARGETS = {
    "a leaf": "h = x.detach().clone().requires_grad_()",
    "a result": "h = self.lin(x)",
    "a view of a result": "h = self.lin(x).view(4, 3)",
    "rows of a result": "h = self.lin(x)[:3]\nx = x[:3]",
    "a constant": "h = x * 2",
}
TEXT = """
import torch
import torch.nn.functional as F
from torch import nn


class Own(nn.Module):
    def __init__(self, inplace):
        super().__init__()
        self.inplace = inplace

    def forward(self, h):
        return F.elu(h, inplace=self.inplace)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=True)
        self.elu = nn.ELU(0.5, inplace=True)
        self.drop = nn.Dropout(inplace=True)
        self.own = Own(True)

    def forward(self, x):
        {target}
        with {mode}:
            {statement}
        return h, h * self.lin.weight[0]
"""


def indented(text, depth):
    return text.replace("\n", "\n" + " " * depth)


def nets(tmp_path, target, mode, statement):
    text = TEXT.format(target=indented(target, 8), mode=mode, statement=indented(statement, 12))
    source = load_source(tmp_path, text)
    torch.manual_seed(0)
    model, original = source.Net(), source.Net()
    original.load_state_dict(model.state_dict())
    swap_everything(model)
    return model, original


def outcome(net):
    """What comes out of a training forward, what a graph knows of it, and the gradients."""
    torch.manual_seed(1)
    x = torch.randn(4, 3)
    torch.manual_seed(2)
    h, out = net(x)
    facts = [bits(h), bits(out), h.requires_grad, h.is_leaf, h.is_inference(), out.requires_grad]
    (out * torch.linspace(1, 2, out.numel()).reshape(out.shape)).sum().backward()
    gradients = [p.grad for p in net.parameters()]
    if h.is_leaf and h.requires_grad:
        gradients.append(h.grad)
    return [*facts, *(None if g is None else bits(g) for g in gradients)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", STATEMENTS)
def test_what_is_overwritten_keeps_its_history(tmp_path, name, target, mode):
    model, original = nets(tmp_path, TARGETS[target], MODES[mode], STATEMENTS[name])
    try:
        expected = outcome(original)
    except RuntimeError:
        return  # an original that fails tells nothing
    assert outcome(model) == expected


# -- leaves ---------------------------------------------------------------------------------


class Perturbed(torch.nn.Module):
    """Makes a leaf, and changes it before it is used."""

    def forward(self, x):
        w = x.detach().clone().requires_grad_()
        with torch.no_grad():
            w.add_(1)
            w *= 2
            w[0] = 0
            w[1].mul_(3)
        (w * x).sum().backward()
        return w


@pytest.mark.parametrize("with_inputs", [True, False])
def test_a_leaf_that_a_forward_makes_stays_one(with_inputs):
    x = torch.arange(1.0, 5.0)
    expected = Perturbed()(x)
    w = sm.convert_model(Perturbed(), x if with_inputs else None)(x)
    assert torch.equal(w, expected)
    assert w.is_leaf
    assert w.requires_grad
    assert torch.equal(w.grad, expected.grad)


def test_a_leaf_of_the_caller_is_written_where_the_original_writes_it():
    class Stepping(torch.nn.Module):
        def forward(self, w):
            with torch.no_grad():
                w -= 1
            return w * 2

    w = torch.ones(3, requires_grad=True)
    out = sm.convert_model(Stepping(), torch.ones(3, requires_grad=True))(w)
    assert w.tolist() == [0, 0, 0]
    out.sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_histories_compile_into_one_graph(backend):
    class Rounded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.act = torch.nn.ReLU(inplace=True)

        def forward(self, x):
            h = x * 2
            with torch.no_grad():
                h.round_()
                h = self.act(h)
            return h * 3

    x = torch.tensor([-1.2, 0.4, 2.2], requires_grad=True)
    model = Rounded()
    swap_everything(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    out = compiled(x)
    assert torch.equal(out, model(x))
    assert out.requires_grad
