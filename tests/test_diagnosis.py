"""What `diagnose` finds, how it says it, and that it leaves no trace."""

import copy
import json
import os
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint

import safemodules as sm

HERE = Path(__file__)


def line_of(text):
    """Number of the line of this file that is marked with a word."""
    lines = HERE.read_text().splitlines()
    marks = [number for number, line in enumerate(lines, 1) if line.endswith(f"# @{text}")]
    assert len(marks) == 1, text
    return marks[0]


class Gate(nn.Module):
    def forward(self, x):
        h = torch.sigmoid(x)  # @gate-saves
        h += x  # @gate-writes
        return h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity(), Gate()])
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        for block in self.blocks:
            x = block(self.norm(x))
        return x


def only(diagnosis):
    assert len(diagnosis.clashes) == 1, str(diagnosis)
    return diagnosis.clashes[0]


class AsksForGradients(nn.Module):
    """Its input has to be a leaf, as that of some speech models in training mode."""

    def __init__(self, clashes):
        super().__init__()
        self.clashes = clashes
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        x = x[:, :]
        x.requires_grad = True
        h = torch.sigmoid(self.linear(x))
        return h.mul_(2) if self.clashes else h * 2


@pytest.mark.parametrize("clashes", [False, True])
def test_a_forward_that_takes_no_inputs_but_leaves_is_run_on_these(clashes):
    model, x = AsksForGradients(clashes), torch.randn(2, 3)
    diagnosis = sm.diagnose(model, x)
    assert diagnosis.error is None
    assert len(diagnosis.clashes) == clashes
    assert not x.requires_grad


@pytest.mark.parametrize("inplace", ["all", "unsafe"])
def test_a_forward_that_takes_no_inputs_but_leaves_is_mended(inplace):
    model, x = AsksForGradients(True), torch.randn(2, 3)
    sm.convert_model(model, x, inplace=inplace)
    model(x).sum().backward()


@pytest.mark.parametrize("where", [sm.__file__, torch.__file__], ids=["this package", "torch"])
def test_a_file_whose_path_leads_through_a_package_is_not_of_that_package(where, tmp_path):
    spelt = Path(where).parent / os.path.relpath(tmp_path.resolve(), Path(where).parent.resolve())
    file = spelt / "helper.py"
    file.write_text("def helper(x):\n    h = x.sigmoid()\n    h += x\n    return h\n")
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)  # an import would shorten the path

    class Net(nn.Module):
        def forward(self, x):
            return names["helper"](x)

    clash = only(sm.diagnose(Net(), torch.randn(2)))
    assert (clash.saved_at.lineno, clash.mutated_at.lineno) == (2, 3)


def test_both_lines_are_named_with_module_path_and_text():
    clash = only(sm.diagnose(Net(), torch.randn(4, 3)))
    assert clash.saved_at.lineno == line_of("gate-saves")
    assert clash.mutated_at.lineno == line_of("gate-writes")
    assert clash.mutated_at.filename == clash.saved_at.filename == str(HERE)
    assert clash.mutated_at.module == clash.saved_at.module == "blocks.1"
    assert clash.mutated_at.source == "h += x  # @gate-writes"
    assert clash.mutated_at.kind is sm.SiteKind.AUGMENTED
    assert (clash.expected_version, clash.found_version) == (0, 1)
    assert clash.tensor == "a float32 tensor of sizes [4, 3], the result of sigmoid"
    assert clash.convertible
    assert "convert_model" in clash.advice


def test_in_a_library_the_users_call_is_named_too():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = torchvision.models.resnet.BasicBlock(3, 3)
            self.block.bn2 = nn.Sigmoid()

        def forward(self, x):
            return self.block(x)  # @user-call

    diagnosis = sm.diagnose(Model(), torch.randn(1, 3, 4, 4))
    clash = only(diagnosis)
    assert clash.mutated_at.source == "out += identity"
    assert clash.mutated_at.filename.endswith("torchvision/models/resnet.py")
    assert clash.saved_at.module == "block.bn2"
    for called in (clash.saved_called_at, clash.mutated_called_at):
        assert (called.filename, called.lineno) == (str(HERE), line_of("user-call"))
    assert f"{HERE.name}:{line_of('user-call')}" in str(clash)
    assert f"{HERE.name}:{line_of('user-call')}" in diagnosis.to_html()


def test_lines_of_converted_code_are_those_of_the_file():
    class Model(nn.Module):
        def forward(self, x):
            x = x * 2
            x += 1
            return self.rest(x)

        def rest(self, x):
            y = x.exp()  # @converted-saves
            return y

    model = sm.convert_model(Model(), example_inputs=torch.randn(2))
    diagnosis = sm.diagnose(model, torch.randn(2), loss_fn=lambda y: (y, y.mul_(2))[0])
    clash = only(diagnosis)
    assert (clash.saved_at.filename, clash.saved_at.lineno) == (
        str(HERE),
        line_of("converted-saves"),
    )


def test_what_the_loss_does_not_reach_is_no_clash():
    class Two(nn.Module):
        def forward(self, x):
            report = x.sigmoid()
            y = x.sin()
            kept = report * 1
            report += 1
            return {"out": y, "report": kept}

    assert sm.diagnose(Two(), torch.randn(2)).clashes
    diagnosis = sm.diagnose(Two(), torch.randn(2), loss_fn=lambda out: out["out"].sum())
    assert not diagnosis.clashes
    assert [r.verdict for r in diagnosis.reports] == ["harmless"]


@pytest.mark.parametrize("wrap", [lambda t: [t], lambda t: {"a": (t,)}, namedtuple("Out", "x")])
def test_outputs_may_be_any_tree(wrap):
    class Model(nn.Module):
        def forward(self, x):
            return wrap(Gate()(x))

    assert sm.diagnose(Model(), torch.randn(2)).clashes


def test_a_forward_that_raises_gets_the_report_up_to_there():
    class Model(nn.Module):
        def forward(self, x):
            x = x * 1
            x += 1
            raise KeyError("missing")

    diagnosis = sm.diagnose(Model(), torch.randn(2))
    assert diagnosis.error == "KeyError: 'missing'"
    assert [site.op for site in diagnosis.sites] == ["add_"]
    assert str(diagnosis).startswith("the forward raised KeyError")


def test_a_written_output_of_chunk_is_explained():
    class Model(nn.Module):
        def forward(self, x):
            a, b = (x * 1).chunk(2)  # @chunk
            a += b  # @chunk-write
            return a

    diagnosis = sm.diagnose(Model(), torch.randn(4))
    clash = only(diagnosis)
    assert clash.mutated_at.lineno == line_of("chunk-write")
    assert clash.saved_at.lineno == line_of("chunk")
    assert clash.cause == "written view"
    assert "RuntimeError" in diagnosis.error


def test_a_written_parameter_is_explained_and_restored():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            with torch.no_grad():
                self.weight.mul_(2)
            y = x * self.weight
            with torch.no_grad():
                self.weight.mul_(2)
            return y

    model = Model()
    clash = only(sm.diagnose(model, torch.randn(2)))
    assert clash.cause == "written weights"
    assert not clash.convertible
    assert torch.equal(model.weight, torch.ones(2))


def test_nothing_is_left_behind():
    model = Net()
    model.register_forward_hook(lambda *a: None)
    model(torch.randn(4, 3)).sum()
    model.blocks[1].train(False)
    model.norm.weight.grad = torch.ones(3)
    before = copy.deepcopy(model.state_dict())
    flags = [m.training for m in model.modules()]
    hooks = dict(model._forward_hooks)
    grad, random = model.norm.weight.grad, torch.get_rng_state()
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    kept = inputs.clone()
    sm.diagnose(model, inputs)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == flags
    assert dict(model._forward_hooks) == hooks
    assert model.norm.weight.grad is grad
    assert torch.equal(grad, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(inputs, kept)
    assert not inputs.requires_grad


class Region(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.write, self.calls = write, []

    def forward(self, x):
        return checkpoint(self.region, x, use_reentrant=False) * 1

    def region(self, x):
        self.calls.append(1)
        h = torch.sigmoid(x * 2)
        if self.write:
            h += x
        return torch.tanh(h)


def test_a_checkpointed_region_is_judged_by_versions_and_not_run_again():
    seen = []
    model = Region(write=True)
    model.calls = _Counter(seen)
    clash = only(sm.diagnose(model, torch.randn(3)))
    assert clash.silent
    assert clash.cause == "saved-tensor hooks"
    assert "silently wrong" in clash.advice
    assert len(seen) == 1


class _Counter:
    def __init__(self, seen):
        self.append = lambda _: seen.append(1)


def test_a_good_checkpointed_region_is_no_clash():
    assert not sm.diagnose(Region(write=False), torch.randn(3)).clashes


def test_a_freed_tensor_of_a_region_is_not_taken_for_its_successor():
    """The region's tensors are freed, so that a later one may lie where they lay."""

    class Model(nn.Module):
        def forward(self, x):
            y = checkpoint(lambda t: torch.sigmoid(t).sin().cos(), x, use_reentrant=False)
            for _ in range(20):
                z = y.detach() * 1
                z += 1
                del z
            return y

    assert not sm.diagnose(Model(), torch.randn(64)).clashes


def test_saved_tensor_hooks_of_the_user_are_not_run():
    unpacked = []

    class Model(nn.Module):
        def forward(self, x):
            hooks = (lambda t: t, lambda t: unpacked.append(1) or t)
            with torch.autograd.graph.saved_tensors_hooks(*hooks):
                return x.sigmoid().mul(2)

    assert not sm.diagnose(Model(), torch.randn(3)).clashes
    assert not unpacked


def test_a_write_through_data_is_a_warning():
    class Model(nn.Module):
        def forward(self, x):
            h = torch.sigmoid(x)  # @data-saves
            h.data.clamp_(0, 0.5)  # @data-writes
            return h

    diagnosis = sm.diagnose(Model(), torch.randn(3))
    assert not diagnosis.clashes
    [warning] = diagnosis.warnings
    assert f":{line_of('data-saves')} " in warning
    assert f":{line_of('data-writes')} " in warning


def test_replaced_data_of_a_saved_parameter_is_a_warning():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            y = x * self.weight
            self.weight.data = self.weight.data * 2
            return y

    assert len(sm.diagnose(Model(), torch.randn(2)).warnings) == 1


def test_statistics_moved_under_a_graph_of_evaluation_mode_are_a_warning():
    class Model(nn.Module):
        def __init__(self, first_training):
            super().__init__()
            self.norm, self.first = nn.BatchNorm1d(3), first_training

        def forward(self, x):
            y = self.norm.train(self.first)(x)
            return y + self.norm.train(True)(x)

    diagnosis = sm.diagnose(Model(first_training=False), torch.randn(4, 3))
    assert len(diagnosis.warnings) == 2  # mean and variance
    assert "evaluation mode" in diagnosis.warnings[0]
    assert not sm.diagnose(Model(first_training=True), torch.randn(4, 3)).warnings


class _Marked(torch.Tensor):
    """A subclass whose own code must not run because of a recorder."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "sigmoid":
            cls.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


FORWARDS = {
    "sparse": lambda x: torch.sparse.mm(torch.eye(3).to_sparse(), x),
    "meta": lambda x: x + torch.empty(3, 3, device="meta").numel(),
    "empty": lambda x: x[:0].neg().mul_(1).sum() + x.sin(),
    "vmap": lambda x: torch.vmap(lambda r: r.sin() * 2)(x),
    "functorch grad": lambda x: torch.func.grad(lambda r: r.sin().sum())(x),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
    "inference": lambda x: x + _inference(),
    "subclass": lambda x: x.as_subclass(_Marked).sigmoid().as_subclass(torch.Tensor).mul(2),
    "nested list": lambda x: torch.cat([x, x.sin()]),
    "complex": lambda x: torch.view_as_complex(x[:, :2].contiguous()).abs(),
    "scripted": lambda x: torch.jit.script(nn.Sequential(nn.Tanh(), nn.Sigmoid()))(x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
}


def _inference():
    with torch.inference_mode():
        t = torch.ones(3, 3)
        t.add_(1)
        return t.sum().item()


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_unusual_tensors_are_no_clash_and_keep_their_values(forward):
    class Model(nn.Module):
        def forward(self, x):
            return forward(x)

    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    expected = forward(x.clone().requires_grad_() * 1)
    diagnosis = sm.diagnose(Model(), x)
    assert diagnosis.error is None
    assert not diagnosis.clashes
    assert not diagnosis.warnings
    with sm.watch():
        assert torch.equal(forward(x.clone().requires_grad_() * 1), expected)


def test_out_foreach_and_unseen_writers_are_found():
    class Model(nn.Module):
        def forward(self, x, kind):
            w = torch.ones(3)
            y = x * w
            if kind == "out":
                torch.add(w, 1, out=w)
            elif kind == "foreach":
                torch._foreach_add_([w], 1)
            elif kind == "in a function that takes it":
                F.batch_norm(torch.ones(2, 3), w, torch.ones(3), training=True)
            else:
                with torch._C.DisableTorchFunction():
                    w.add_(1)
            return y

    ops = {"out": "add", "foreach": "_foreach_add_"}
    for kind in ("out", "foreach", "unseen"):
        clash = only(sm.diagnose(Model(), (torch.randn(3), kind)))
        assert clash.mutated_at.op == ops.get(kind, "")
    assert clash.cause == "unseen write"
    assert "C++" in clash.advice


def test_state_that_is_used_and_then_updated_gets_its_own_advice():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.ones(3))

        def forward(self, x):
            y = x * self.mean
            self.mean.mul_(0.9)
            return y

    clash = only(sm.diagnose(Model(), torch.randn(3)))
    assert clash.cause == "updated state"
    assert "mean.clone()" in clash.advice


def test_a_custom_function_makes_a_possible_clash_at_the_line_of_its_call():
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    class Model(nn.Module):
        def forward(self, x):
            apply = Keeps.apply
            y = apply(x)  # @apply
            y.mul_(2)  # @apply-write
            return y

    clash = only(sm.diagnose(Model(), torch.randn(3)))
    assert clash.possible
    assert clash.saved_at.lineno == line_of("apply")
    assert clash.mutated_at.lineno == line_of("apply-write")


def test_text_json_and_page_say_the_same():
    diagnosis = sm.diagnose(Net(), torch.randn(4, 3))
    assert json.loads(diagnosis.to_json())["clashes"][0]["mutated_at"]["source"].startswith("h +=")
    assert json.loads(diagnosis.to_json())["modules"][0] == {"path": "", "kind": "Net"}
    for text in (diagnosis.to_html("<Title>"), diagnosis._repr_html_()):
        assert "h += x" in text
        assert "blocks.1" in text
        assert "http" not in text  # nothing is fetched
    assert "&lt;Title&gt;" in diagnosis.to_html("<Title>")
    for width in (60, 80, 120):
        prose = [line for line in diagnosis.to_text(width).splitlines() if ".py:" not in line]
        assert max(map(len, prose)) <= width


def test_a_model_without_a_site_says_so():
    diagnosis = sm.diagnose(nn.Linear(2, 2), torch.randn(1, 2))
    assert str(diagnosis) == "no clash: backward finds every saved tensor as it was saved"
    assert diagnosis.sites == ()
