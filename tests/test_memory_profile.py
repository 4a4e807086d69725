"""``profile_memory``: its sums are those of torch's own trackers, and its reports are whole."""

import itertools
import json
from html.parser import HTMLParser

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torchvision.models import mobilenet_v3_small, resnet18, vgg11

import safemodules as sm
from safemodules.cli import main
from safemodules.memory.allocator import allocator_peak
from safemodules.trees import CallArguments

MODELS = {
    "resnet18": (resnet18, (4, 3, 64, 64)),
    "mobilenet_v3_small": (mobilenet_v3_small, (4, 3, 64, 64)),
    "vgg11": (vgg11, (2, 3, 32, 32)),
}


@pytest.fixture(params=list(MODELS), ids=str, scope="module")
def profiled(request):
    make, shape = MODELS[request.param]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    return model, x, sm.profile_memory(model, x)


def tracked_peak(make, shape):
    """What torch's own tracker says of a step."""
    with FakeTensorMode():
        model, x = make(), torch.empty(shape)
        tracker = MemTracker()
        tracker.track_external(model, x)
        with tracker:
            before = tracker.get_tracker_snapshot("current")[x.device]["Total"]
            model(x).sum().backward()
        return tracker.get_tracker_snapshot("peak")[x.device]["Total"] - before


@pytest.mark.parametrize("name", list(MODELS))
def test_the_peak_is_within_a_percent_of_torchs_tracker(name):
    """The two disagree by the loss: a few bytes."""
    make, shape = MODELS[name]
    peak = sm.profile_memory(make(), torch.randn(shape)).peak
    assert peak == pytest.approx(tracked_peak(make, shape), rel=0.01)


@pytest.mark.parametrize("make", [mobilenet_v3_small, resnet18])
def test_a_budgets_peak_and_the_workspace_are_the_allocators_peak(make):
    """Within 5%: kernels take their buffers at other moments than that of the tensors' peak."""
    model, x = make(), torch.randn(8, 3, 112, 112)
    profile = sm.profile_memory(model, x, allocator=True)
    assert profile.workspace_bytes is not None
    plan = sm.plan_checkpoints(model, x, "90%")
    budgeted = sm.convert_model(model, x, checkpoint=plan)
    found = allocator_peak(budgeted, CallArguments((x,), {}))
    assert found == pytest.approx(plan.peak + profile.workspace_bytes, rel=0.05)


def test_what_modules_save_adds_up(profiled):
    model, _, profile = profiled
    (whole, *_) = profile.modules
    assert (whole.path, whole.depth, whole.share) == ("", 0, 1.0)
    top = [m for m in profile.modules if m.depth == 1]
    assert sum(m.saved_bytes for m in top) <= whole.saved_bytes == profile.saved_bytes
    leaves = {m.path for m in profile.modules}
    called = {
        path for path, module in model.named_modules() if not isinstance(module, nn.ModuleList)
    }
    assert leaves <= called
    assert profile.gradient_bytes == profile.parameter_bytes
    assert whole.flops > 0 and whole.peak <= profile.peak


def test_the_model_is_as_it_was():
    model, x = resnet18(), torch.randn(2, 3, 32, 32)
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    grad = model.fc.weight.grad
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    sm.profile_memory(model, x)
    assert model.fc.weight.grad is grad and model.conv1.weight.grad is None
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not model._forward_hooks and not model.fc._forward_pre_hooks


def test_the_state_of_an_optimizer_is_counted():
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    optimizer = torch.optim.Adam(model.parameters())
    assert sm.profile_memory(model, x, optimizer=optimizer).optimizer_bytes == 0
    model(x).sum().backward()
    optimizer.step()
    assert sm.profile_memory(model, x, optimizer=optimizer).optimizer_bytes >= 2 * 72 * 4


def test_a_loop_counts_every_call():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            for _ in range(5):
                x = self.layer(x).tanh()
            return x

    profile = sm.profile_memory(Loop(), torch.randn(4, 8))
    (_, layer) = profile.modules
    assert (layer.path, layer.calls, layer.output_bytes) == ("layer", 5, 5 * 128)


class _Checker(HTMLParser):
    VOID = ("meta", "line", "rect", "polygon")

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_reports_are_whole(profiled):
    _, _, profile = profiled
    assert "saved for backward" in str(profile)
    data = json.loads(profile.to_json())
    assert data["peak"] == profile.peak and len(data["modules"]) == len(profile.modules)
    page = profile.to_html("a <page>")
    checker = _Checker()
    checker.feed(page)
    assert checker.open == [] and "a &lt;page&gt;" in page and "<svg" in page
    assert "<svg" in profile._repr_html_()


def test_wrong_use():
    with pytest.raises(sm.ModuleTypeError, match=r"Expected a torch\.nn\.Module"):
        sm.profile_memory(torch.sin, torch.ones(1))
    with pytest.raises(sm.ExampleInputError, match="needs a gradient"):
        sm.profile_memory(nn.Identity(), torch.ones(1))


def test_the_command_prints_a_profile_and_a_plan(capsys, tmp_path):
    page = tmp_path / "page.html"
    target = "torchvision:resnet18"
    assert main(["profile", target, "--input", "2x3x64x64", "--html", str(page)]) == 0
    assert "layer1 (Sequential)" in capsys.readouterr().out
    assert "<svg" in page.read_text(encoding="utf-8")
    arguments = ["profile", target, "--input", "2x3x64x64", "--fake", "--json"]
    assert main([*arguments, "--budget", "90% of activations"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["plan"]["peak"] <= data["plan"]["budget"] and data["profile"]["is_estimated"]
    assert main([*arguments, "--budget", "1%"]) == 2
    assert "cannot be brought to" in capsys.readouterr().err
    assert main(["profile", target, "--input", "2x3x64x64", "--html", str(tmp_path)]) == 2


def test_what_a_budget_forgets_does_not_count():
    layers = ((nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(6))
    net, x = nn.Sequential(*itertools.chain.from_iterable(layers)), torch.randn(256, 64)
    before = sm.profile_memory(net, x)
    sm.convert_model(net, x, memory_budget="60% of activations")
    plan = sm.conversion_plan(net).memory
    after = sm.profile_memory(net, x)
    assert after.activation_peak == plan.peak < before.activation_peak
    forgotten = sum(result.size for result in plan.forgotten)
    assert before.saved_bytes - forgotten <= after.saved_bytes < before.saved_bytes
    sm.revert_model(net)
    assert sm.profile_memory(net, x).activation_peak == before.activation_peak
