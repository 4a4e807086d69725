"""Without gradients a converted model overwrites as its original does."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn

import safemodules as sm


class Block(nn.Module):
    """A flag, an operator and a method, each on a tensor of its own."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)
        self.between = nn.Identity()

    def forward(self, x):
        h = self.act(self.between(self.lin(x)))
        h += 1
        h = torch.tanh(self.between(h.mul_(2)))
        h[:, 0] = 0
        return h


class Guarded(Block):
    """The mask is saved, and a block without gradients must not overwrite it."""

    def forward(self, x):
        m = torch.sigmoid(self.lin(x))
        y = x * m
        with torch.no_grad():
            m += 1
        return y + m


def storages(model, x):
    """Addresses of what passes through ``between``, and of what was there before."""
    seen = []
    handles = [
        module.register_forward_hook(lambda module, args, out: seen.append(out))
        for module in (model.lin, model.between)
    ]
    out = model(x)
    for handle in handles:
        handle.remove()
    return [tensor.data_ptr() for tensor in seen], out


@pytest.fixture
def converted():
    torch.manual_seed(0)
    model = Block()
    original = copy.deepcopy(model)
    # the item assignment is swapped only where it clashes, so it is given a reason to
    sm.convert_model(model, torch.randn(4, 3))
    return model, original


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_sites_and_flags_overwrite_where_gradients_were_off_at_the_entry(converted, context):
    model, original = converted
    x = torch.randn(4, 3)
    with context():
        (first, _, second), out = storages(model, x)
        assert torch.equal(out, original(x))
    assert first == second  # relu, the sum and the product have all written to it
    assert model.act.inplace is False
    (first, _, second), out = storages(model, x)
    assert first != second
    out.sum().backward()


def test_a_block_without_gradients_in_a_training_forward_does_not_count():
    model, x = Guarded(), torch.randn(4, 3)
    original = copy.deepcopy(model)
    sm.convert_model(model, x)
    out = model(x)
    assert torch.equal(out, original(x))
    out.sum().backward()
    with torch.no_grad():
        assert torch.equal(model(x), original(x))


def test_flags_are_off_again_after_an_exception(converted):
    model, _ = converted
    with torch.no_grad(), pytest.raises(RuntimeError):
        model(torch.randn(4, 2))
    assert model.act.inplace is False
    model(torch.randn(4, 3)).sum().backward()


def test_a_training_forward_in_another_thread_finds_flags_off(converted):
    model, _ = converted
    inside, go, flags = threading.Event(), threading.Event(), []

    def wait(module, args):
        if not torch.is_grad_enabled():
            inside.set()
            assert go.wait(10)
            flags.append(model.act.inplace)

    model.lin.register_forward_pre_hook(wait)

    def infer():
        with torch.no_grad():
            model(torch.randn(4, 3))

    thread = threading.Thread(target=infer)
    thread.start()
    assert inside.wait(10)
    assert model.act.inplace is True
    model(torch.randn(4, 3)).sum().backward()
    go.set()
    thread.join()
    assert flags == [False]
    assert model.act.inplace is False


def test_copies_and_pickles_keep_it(converted):
    model, _ = converted
    x = torch.randn(4, 3)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            (first, _, second), _ = storages(again, x)
        assert first == second


def test_a_model_with_flags_alone_has_it_too():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
    sm.convert_model(model)
    inputs = []
    model[2].register_forward_pre_hook(lambda module, args: inputs.append(args[0].data_ptr()))
    outputs = []
    model[0].register_forward_hook(lambda module, args, out: outputs.append(out.data_ptr()))
    with torch.no_grad():
        model(torch.randn(4, 3))
    assert inputs == outputs
    sm.revert_model(model)
    assert type(model) is nn.Sequential
    assert model[1].inplace is True


@pytest.mark.parametrize("grad", [True, False])
def test_it_compiles_and_exports_without_a_graph_break(converted, grad):
    model, original = converted
    x = torch.randn(4, 3)
    with torch.set_grad_enabled(grad):
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), original(x))
        exported = torch.export.export(model, (x,)).module()
        assert torch.equal(exported(x), original(x))
