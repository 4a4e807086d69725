import random
from collections import OrderedDict, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import spectral_norm

from safemodules.errors import SafeModulesError, StateError
from safemodules.state import (
    ModelState,
    RandomState,
    module_tensors,
    preserved,
    seed_everything,
    tensor_bits,
)


class Helper:
    def __init__(self):
        self.count = 0


class Slotted:
    __slots__ = ("empty", "value")

    def __init__(self):
        self.value = 1


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("nothing", None)
        self.register_buffer("wide", torch.zeros(1).expand(4))
        self.cache = torch.zeros(2)
        self.number, self.text = 1, "a"
        self.items = [1, [2]]
        self.table = {"a": {"b": 1}}
        self.ordered = OrderedDict(x=1, y=2)
        self.counts = defaultdict(int)
        self.members = {1}
        self.queue = deque([1, 2], maxlen=2)
        self.helper = Helper()
        self.space = SimpleNamespace(n=0)
        self.slotted = Slotted()
        self.array = np.zeros(2)
        self.generator = torch.Generator().manual_seed(1)
        self.python_random = random.Random(1)
        self.numpy_random = np.random.default_rng(1)
        self.hidden = [nn.BatchNorm1d(2)]  # not registered


CHANGES = {
    "buffer written": lambda m: m.seen.add_(1),
    "buffer written past its counter": lambda m: m.seen.data.add_(1),
    "buffer rebound": lambda m: setattr(m, "seen", m.seen + 1),
    "buffer removed": lambda m: delattr(m, "seen"),
    "buffer of None filled": lambda m: setattr(m, "nothing", torch.ones(1)),
    "buffer given new memory": lambda m: setattr(m.seen, "data", torch.ones(5)),
    "buffer made part of a graph": lambda m: m.seen.add_(m.weight),
    "buffer resized": lambda m: m.seen.resize_(7),
    "expanded buffer written": lambda m: m.wide[:1].add_(1),
    "buffer made negative zero": lambda m: m.seen.neg_(),
    "tensor attribute written": lambda m: m.cache.fill_(float("nan")),
    "tensor attribute rebound": lambda m: setattr(m, "cache", None),
    "number": lambda m: setattr(m, "number", 2),
    "new attribute": lambda m: setattr(m, "extra", 2),
    "attribute deleted": lambda m: delattr(m, "text"),
    "nested list": lambda m: m.items[1].append(3),
    "nested dict": lambda m: m.table["a"].update(c=2),
    "order of a dict": lambda m: m.ordered.move_to_end("x"),
    "defaultdict touched": lambda m: m.counts["k"],
    "set": lambda m: m.members.add(2),
    "deque": lambda m: m.queue.append(9),
    "object": lambda m: setattr(m.helper, "count", 1),
    "namespace": lambda m: setattr(m.space, "n", 1),
    "slot": lambda m: setattr(m.slotted, "value", 2),
    "empty slot filled": lambda m: setattr(m.slotted, "empty", 2),
    "array": lambda m: m.array.fill(1),
    "generator of its own": lambda m: torch.rand(1, generator=m.generator),
    "python generator of its own": lambda m: m.python_random.random(),
    "numpy generator of its own": lambda m: m.numpy_random.random(),
    "training flag": lambda m: m.eval(),
    "unregistered module": lambda m: m.hidden[0](torch.randn(3, 2)),
    "requires_grad": lambda m: m.weight.requires_grad_(False),
    "grad": lambda m: setattr(m.weight, "grad", torch.ones(3)),
    "hook": lambda m: m.register_forward_hook(lambda *_: None),
    "submodule": lambda m: m.add_module("more", nn.Identity()),
    "torch stream": lambda m: torch.rand(1),
    "python stream": lambda m: random.random(),
    "numpy stream": lambda m: np.random.rand(),
}


def describe(module, seen=None):
    """Print everything that hangs on a module, identities of containers included."""
    parts = []

    def visit(value, depth=0):
        parts.append(id(value) if not isinstance(value, (int, str, tuple)) else repr(value))
        if isinstance(value, torch.Tensor):
            bits = value.detach().clone().reshape(-1).view(torch.uint8).tolist()
            parts.append((value.shape, value.stride(), value.requires_grad, value.is_leaf, bits))
            if value.is_leaf:
                parts.append(id(value.grad))
        elif isinstance(value, np.ndarray):
            parts.append(value.tobytes())
        elif isinstance(value, torch.Generator):
            parts.append(value.get_state().tolist())
        elif isinstance(value, random.Random):
            parts.append(value.getstate())
        elif isinstance(value, np.random.Generator):
            parts.append(repr(value.bit_generator.state))
        elif isinstance(value, dict):
            parts.append(list(map(repr, value)))
            for item in value.values():
                visit(item)
        elif isinstance(value, (list, deque)):
            for item in value:
                visit(item)
        elif isinstance(value, set):
            parts.append(sorted(map(repr, value)))
        elif isinstance(value, Slotted):
            parts.append((value.value, getattr(value, "empty", "none")))
        elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
            visit(vars(value))
        elif isinstance(value, nn.Module):
            visit(vars(value))

    visit(module)
    return repr(parts) + repr(RandomState.capture().digests())


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_put_back_into_the_same_objects(change):
    model = Stateful()
    before = describe(model)
    state = ModelState.capture(model)
    change(model)
    assert describe(model) != before, "the change shows in no way"
    state.restore()
    assert describe(model) == before
    change(model)
    state.restore()
    assert describe(model) == before


def test_buffers_are_put_back_on_every_device(device):
    model = nn.BatchNorm2d(3).to(device)
    seen, mean = model.num_batches_tracked, model.running_mean
    with preserved(model):
        model(torch.randn(2, 3, 4, 4, device=device))
        assert not torch.equal(mean, torch.zeros_like(mean))
    assert model.running_mean is mean
    assert torch.equal(mean, torch.zeros_like(mean))
    assert seen.item() == 0


def test_random_streams_are_put_back_on_every_device(device):
    torch.rand(1, device=device)
    state = RandomState.capture()
    first = torch.rand(3, device=device)
    assert state.digests() != RandomState.capture().digests()
    state.restore()
    assert torch.equal(torch.rand(3, device=device), first)


def test_seeding_makes_every_stream_repeat():
    def draw():
        return torch.rand(2).tolist(), random.random(), np.random.rand()

    with preserved(nn.Identity()):
        seed_everything(3)
        first = draw()
        second = draw()
        seed_everything(3)
        assert draw() == first
        assert first != second


def test_an_untouched_buffer_is_not_written():
    model = nn.BatchNorm1d(2)
    version = model.running_mean._version
    with preserved(model):
        model.running_mean.sum()
    assert model.running_mean._version == version


def test_a_graph_made_before_the_snapshot_still_runs_backward_after_it():
    model = nn.BatchNorm1d(2)
    out = model(torch.randn(4, 2))
    with preserved(model):
        model(torch.randn(4, 2))
    out.sum().backward()
    assert model.weight.grad is not None


@pytest.mark.parametrize(
    "write",
    [lambda p: p.add_(1), lambda p: p.data.add_(1), lambda p: p.data.neg_()],
    ids=["counted", "past the counter", "sign only"],
)
def test_an_overwritten_parameter_is_an_error_that_names_it(write):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = ModelState.capture(model)
    with torch.no_grad():
        write(model[0].weight)
        model[1].running_mean.add_(1)
    with pytest.raises(StateError, match=r"0\.weight was overwritten") as caught:
        state.restore()
    assert isinstance(caught.value, SafeModulesError)
    assert model[1].running_mean.sum() == 0, "the rest is restored all the same"


def test_an_overwritten_view_of_a_parameter_is_an_error():
    model = nn.Linear(2, 2)
    model.row = model.weight.detach()[0]
    state = ModelState.capture(model)
    model.row.add_(1)
    with pytest.raises(StateError, match="overwritten"):
        state.restore()


def test_an_overwritten_gradient_is_an_error():
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    grad = model.weight.grad
    state = ModelState.capture(model)
    model.weight.grad = None
    state.restore()
    assert model.weight.grad is grad
    grad.add_(1)
    with pytest.raises(StateError, match=r"weight\.grad was overwritten"):
        state.restore()


@pytest.mark.parametrize("names", [True, ["weight"]])
def test_a_parameter_that_is_asked_for_is_copied_and_restored(names):
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    with preserved(model, copy_parameters=names), torch.no_grad():
        model.weight.add_(1)
    assert torch.equal(model.weight, before)


def test_an_embedding_with_max_norm_is_restored_without_asking():
    model = nn.Embedding(4, 3, max_norm=0.1)
    before = model.weight.detach().clone()
    with preserved(model):
        model(torch.arange(4))
        assert not torch.equal(model.weight, before)
    assert torch.equal(model.weight, before)


def test_state_is_restored_when_the_run_raises():
    model = nn.BatchNorm1d(2)

    def run():
        with preserved(model):
            model(torch.randn(3, 2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert model.num_batches_tracked.item() == 0


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_that_a_hook_computes_anew_is_restored():
    model = spectral_norm(nn.Linear(3, 3))
    weight, u = model.weight, model.weight_u.clone()
    with preserved(model):
        model(torch.randn(2, 3))
        assert model.weight is not weight
    assert model.weight is weight
    assert torch.equal(model.weight_u, u)


def test_a_buffer_of_inference_mode_is_restored():
    model = nn.Module()
    with torch.inference_mode():
        model.register_buffer("seen", torch.zeros(2))
        with preserved(model):
            model.seen.add_(1)
        assert model.seen.sum() == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore::DeprecationWarning")
def test_a_scripted_module_is_restored():
    model = torch.jit.script(nn.BatchNorm1d(2))
    with preserved(model):
        model(torch.randn(3, 2))
        assert model.num_batches_tracked.item() == 1
    assert model.num_batches_tracked.item() == 0


def test_all_tensors_of_a_module_are_listed_by_path():
    assert {"weight", "seen", "cache", "hidden[0].running_mean"} <= set(module_tensors(Stateful()))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]),
    st.integers(0, 5),
    st.data(),
)
def test_any_write_to_a_buffer_is_undone_to_the_bit(dtype, size, data):
    model = nn.Module()
    model.register_buffer("seen", torch.randn(size, 3).to(dtype))
    before = tensor_bits(model.seen).clone()
    value = data.draw(st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 1.0]))
    with preserved(model):
        model.seen[data.draw(st.integers(0, size)) :, :2] = value
    assert torch.equal(tensor_bits(model.seen), before)
