import copy
import json
import random
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from safemodules.errors import (
    DeviceMismatchError,
    EquivalenceError,
    ExampleInputError,
    NonFiniteReferenceError,
    OptionError,
    SafeModulesError,
    StateError,
)
from safemodules.state import ModelState, RandomState
from safemodules.verification import (
    as_arguments,
    compare_modes,
    digest_tensor,
    is_out_of_memory,
    observe,
    observe_modes,
    observe_reference,
    verify,
)


class Call(nn.Module):
    """A module whose forward is the given function of the module and the inputs."""

    def __init__(self, fn, **buffers):
        super().__init__()
        self.fn = fn
        self.linear = nn.Linear(3, 3)
        self.calls = 0
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x, **kwargs):
        return self.fn(self, x, **kwargs)


def pair(reference, candidate, **buffers):
    """Make two models that differ in their forward only."""
    first = Call(reference, **copy.deepcopy(buffers))
    second = Call(candidate, **copy.deepcopy(buffers))
    second.load_state_dict(first.state_dict())
    return first, second


def kinds(verdict):
    return {difference.what for difference in verdict.differences}


def net():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
    )


def clash(self, x):
    y = torch.sigmoid(self.linear(x))
    y += x
    return self.linear(y)


def mended(self, x):
    y = torch.sigmoid(self.linear(x))
    y = y + x
    return self.linear(y)


def test_a_model_is_equivalent_to_itself_and_to_its_copy(device):
    model = net().to(device)
    x = torch.randn(2, 2, 5, 5, device=device)
    for candidate in (model, copy.deepcopy(model)):
        verdict = verify(model, candidate, x)
        assert verdict.equivalent, str(verdict)
        assert verdict.differences == ()
        assert verdict.first_module is None
        assert {check.mode for check in verdict.checks} == {"train", "eval"}
        assert "outputs, gradients, input gradients, buffers" in str(verdict)


def test_two_models_may_share_their_parameters(device):
    model = net().to(device)
    other = net().to(device)
    other[0] = model[0]
    assert verify(model, other, torch.randn(2, 2, 5, 5, device=device)).equivalent


def test_a_run_leaves_no_trace(device):
    model = net().to(device)
    x = torch.randn(2, 2, 5, 5, device=device, requires_grad=True)
    model(x).sum().backward()
    grads = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters()}
    state = copy.deepcopy(model.state_dict())
    model[1].eval()
    before, grad, rng = x.detach().clone(), x.grad.clone(), RandomState.capture().digests()
    versions = [p._version for p in model.parameters()]
    verify(model, model, x)
    assert RandomState.capture().digests() == rng
    assert all(torch.equal(a, b) for a, b in zip(state.values(), model.state_dict().values()))
    assert all(p.grad is grads[n][0] for n, p in model.named_parameters())
    assert all(torch.equal(*pair) for pair in grads.values())
    assert [m.training for m in model] == [True, False, True, True, True]
    assert torch.equal(x, before)
    assert torch.equal(x.grad, grad)
    assert [p._version for p in model.parameters()] == versions


DIFFERENT = {
    "output": (lambda m, x: x * 2, lambda m, x: x * 2 + 1e-6, {"output"}),
    "output of another dtype": (lambda m, x: x * 2, lambda m, x: (x * 2).double(), {"output"}),
    "output of another shape": (lambda m, x: x * 2, lambda m, x: (x * 2)[None], {"output"}),
    "output strides": (lambda m, x: x * 2, lambda m, x: (x * 2).t().contiguous().t(), {"output"}),
    "sign of a zero": (
        lambda m, x: (x * 2, torch.zeros(2)),
        lambda m, x: (x * 2, -torch.zeros(2)),
        {"output"},
    ),
    "a missing output": (lambda m, x: (x * 2, x.int()), lambda m, x: (x * 2,), {"output"}),
    "type of a container": (lambda m, x: [x * 2], lambda m, x: (x * 2,), {"output"}),
    "a number in the output": (lambda m, x: (x * 2, 1), lambda m, x: (x * 2, 2), {"output"}),
    "integer output": (lambda m, x: x.argmax(), lambda m, x: x.argmin(), {"output"}),
    "gradient only": (
        lambda m, x: m.linear(x.detach()),
        lambda m, x: F.linear(x.detach(), m.linear.weight.detach(), m.linear.bias),
        {"gradient"},
    ),
    "input gradient only": (
        lambda m, x: m.linear(x) + x,
        lambda m, x: m.linear(x) + x.detach(),
        {"input gradient"},
    ),
    "graph cut": (lambda m, x: x * 2, lambda m, x: x.detach() * 2, {"output", "input gradient"}),
    "buffer": (
        lambda m, x: (m.seen.add_(1), x * 2)[1],
        lambda m, x: (m.seen.add_(2), x * 2)[1],
        {"buffer"},
    ),
    "buffer rebound": (
        lambda m, x: x * 2,
        lambda m, x: (setattr(m, "seen", m.seen + 1), x * 2)[1],
        {"buffer"},
    ),
    "torch stream": (
        lambda m, x: x * 2,
        lambda m, x: (torch.rand(1), x * 2)[1],
        {"rng"},
    ),
    "python stream": (lambda m, x: x * 2, lambda m, x: (random.random(), x * 2)[1], {"rng"}),
    "input written": (lambda m, x: F.relu(x), lambda m, x: F.relu_(x), {"input"}),
    "attribute": (
        lambda m, x: (setattr(m, "calls", m.calls + 1), x * 2)[1],
        lambda m, x: (setattr(m, "calls", m.calls + 2), x * 2)[1],
        {"attribute"},
    ),
    "error": (lambda m, x: x * 2, lambda m, x: x.no_such_method(), {"error"}),
}


@pytest.mark.parametrize(("reference", "candidate", "expected"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_difference_is_reported_as_what_it_is_and_as_nothing_else(
    reference, candidate, expected, device
):
    first, second = pair(reference, candidate, seen=torch.zeros(2))
    x = torch.randn(2, 3, device=device)
    verdict = verify(first.to(device), second.to(device), x)
    assert not verdict.equivalent
    assert kinds(verdict) == expected, str(verdict)
    assert not verify(first, second, x, modes=("eval",)).equivalent
    with pytest.raises(EquivalenceError) as caught:
        verdict.raise_if_different()
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, SafeModulesError)


def test_an_in_place_flag_that_changes_the_output_is_reported_with_its_module():
    model = nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"act": nn.ReLU()}), nn.Linear(3, 3))

    class Skip(nn.Module):
        def __init__(self, inplace):
            super().__init__()
            self.act = nn.ReLU(inplace=inplace)
            self.head = nn.Linear(3, 3)

        def forward(self, x):
            x = x * 1
            return self.head(self.act(x)) + x

    model = nn.Sequential(OrderedDict(stem=nn.Linear(3, 3), block=Skip(True)))
    other = nn.Sequential(OrderedDict(stem=nn.Linear(3, 3), block=Skip(False)))
    other.load_state_dict(model.state_dict())
    verdict = verify(model, other, torch.randn(4, 3))
    assert "output" in kinds(verdict)
    assert verdict.first_module == "block"


def test_the_first_module_that_differs_is_the_innermost_in_order_of_calls():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3)))
    other = copy.deepcopy(model)
    other[1][0] = nn.Sigmoid()
    assert verify(model, other, torch.randn(2, 3)).first_module == "1.0"


def test_a_state_dict_key_that_is_missing_is_reported():
    first, second = pair(lambda m, x: x * 2, lambda m, x: x * 2)
    second.extra = nn.Linear(1, 1, bias=False)
    verdict = verify(first, second, torch.randn(2, 3))
    assert [d.name for d in verdict.differences if d.what == "keys"] == ["extra.weight"] * 2


def test_a_difference_in_one_mode_is_reported_for_that_mode():
    first, second = pair(lambda m, x: x * 2, lambda m, x: x * (2 if m.training else 3))
    assert {d.mode for d in verify(first, second, torch.randn(2, 3)).differences} == {"eval"}
    assert verify(first, second, torch.randn(2, 3), modes=("train",)).equivalent
    assert verify(first, second.eval(), torch.randn(2, 3), modes=("train",)).equivalent
    assert not verify(first, second, torch.randn(2, 3), modes=("keep",)).equivalent


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_clash_is_checked_against_functionalize(device, mode):
    first, second = pair(clash, mended)
    first, second = first.to(device), second.to(device)
    x = torch.randn(4, 3, device=device)
    verdict = verify(first, second, x, modes=(mode,))
    assert verdict.equivalent, str(verdict)
    assert "gradients against functionalize" in [check.text for check in verdict.checks]
    assert "outputs under no_grad" in str(verdict)


def test_a_wrong_gradient_is_found_where_the_reference_has_none():
    def wrong(self, x):
        y = torch.sigmoid(self.linear(x))
        y = y.detach() + x
        return self.linear(y)

    first, second = pair(clash, wrong)
    verdict = verify(first, second, torch.randn(4, 3))
    assert kinds(verdict) == {"gradient", "input gradient"}
    assert "functionalized" in verdict.differences[0].reason


def test_a_clash_with_state_random_numbers_and_containers_is_checked_against_functionalize():
    @dataclass
    class Out:
        value: torch.Tensor

    def run(self, x, in_place, scale):
        self.seen.mul_(0.5).add_(1)
        y = torch.sigmoid(F.dropout(self.linear(x["a"]))) * self.seen
        z = y.exp()
        if in_place:
            z += scale
        else:
            z = z + scale
        return Out(z)

    first, second = pair(
        lambda m, x, scale: run(m, x, True, scale),
        lambda m, x, scale: run(m, x, False, scale),
        seen=torch.ones(3),
    )
    inputs, kwargs = {"a": torch.randn(2, 3)}, {"scale": torch.tensor(2.0)}
    verdict = verify(first, second, inputs, kwargs)
    assert verdict.equivalent, str(verdict)
    assert str(verdict).count("gradients against functionalize") == 2
    assert torch.equal(first.seen, torch.ones(3))


def scaled_in_place(y, x):
    y[:, ::2] *= 2
    return y


def assigned(y, x):
    y[1:, None, 0] = x[1:, :1]
    return y


def assigned_with_leading_ones(y, x):
    y[0] = x[None, 1:2]
    return y


def copied(y, x):
    y.select(1, 0).copy_(x[:, 2].double())
    return y


def copied_onto_an_overlap(y, x):
    y[:, :2] = y[:, 1:].clone()
    return y


def filled(y, x):
    y[:, 0] = 1.0
    y[x > 0] = x.sum()
    return y


def collected(y, x):
    out = x.new_zeros(y.shape)
    for i in range(len(y)):
        out[i] = y[i]
    y.add_(out)
    return y


ASSIGNMENTS = [
    scaled_in_place,
    assigned,
    assigned_with_leading_ones,
    copied,
    copied_onto_an_overlap,
    filled,
    collected,
]


@pytest.mark.parametrize("write", ASSIGNMENTS, ids=lambda fn: fn.__name__)
def test_clashing_assignments_have_reference_gradients(write, device):
    first, second = pair(
        lambda m, x: write(torch.sigmoid(m.linear(x)), x),
        lambda m, x: write(torch.sigmoid(m.linear(x)).clone(), x),
    )
    x = torch.linspace(-1, 1, 12).reshape(4, 3).to(device)
    first, second = first.to(device), second.to(device)
    verdict = verify(first, second, x)
    assert verdict.equivalent, str(verdict)
    assert str(verdict).count("gradients against functionalize") == 2, str(verdict)

    def doubled(m, x):
        y = torch.sigmoid(m.linear(x))
        return write(y + (y - y.detach()), x)

    second.fn = doubled
    assert kinds(verify(first, second, x)) == {"gradient", "input gradient"}


def test_a_candidate_that_raises_like_the_reference_is_said_not_to_be_compared():
    first, second = pair(clash, clash)
    verdict = verify(first, second, torch.randn(4, 3))
    assert "gradients not compared: the candidate raises RuntimeError" in str(verdict)


def test_a_candidate_whose_backward_raises_where_the_reference_runs_is_different():
    first, second = pair(mended, clash)
    assert kinds(verify(first, second, torch.randn(4, 3))) == {"error"}


def test_a_failure_of_functionalize_is_said():
    def attribute(self, x):
        y = clash(self, x)
        self.cache.add_(y.detach().sum())
        return y

    first, second = pair(attribute, mended)
    first.cache = torch.zeros(())
    second.cache = torch.zeros(())
    second.fn = lambda m, x: (lambda y: (m.cache.add_(y.detach().sum()), y)[1])(mended(m, x))
    verdict = verify(first, second, torch.randn(4, 3))
    assert "functionalize" in str(verdict)
    assert verdict.equivalent, str(verdict)
    assert first.cache.item() == 0


def test_a_reference_without_memory_is_compared_under_no_grad():
    def hungry(self, x):
        if torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return mended(self, x)

    first, second = pair(hungry, mended)
    verdict = verify(first, second, torch.randn(4, 3))
    assert verdict.equivalent
    assert "the reference ran out of memory" in str(verdict)
    assert "outputs under no_grad" in str(verdict)


def test_memory_errors_of_all_devices_are_known():
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("modified by an inplace operation"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_inputs_that_may_not_require_grad_are_handed_over_without_and_it_is_said():
    def uses_numpy(self, x):
        return self.linear(torch.from_numpy(x.numpy() * 2))

    first, second = pair(uses_numpy, lambda m, x: m.linear(x.detach() * 2))
    verdict = verify(first, second, torch.randn(4, 3))
    assert verdict.equivalent, str(verdict)
    assert "input gradients not compared" in str(verdict)
    assert str(verdict).count("outputs, gradients, buffers") == 2


def test_a_candidate_that_raises_only_with_input_gradients_is_not_equivalent():
    def clash(self, x):
        h = x.sigmoid()
        return self.linear(h * 1) + 0 * h.mul_(2).detach()

    first, second = pair(lambda m, x: m.linear(x.sigmoid()) + 0, clash)
    verdict = verify(first, second, torch.randn(4, 3))
    assert kinds(verdict) == {"error"}, str(verdict)
    assert "input gradients" in str(verdict) and "modified by an inplace" in str(verdict)


def test_a_reentrant_checkpoint_is_compared_with_gradients():
    def reentrant(self, x):
        return checkpoint(self.linear, x, use_reentrant=True)

    first, second = pair(reentrant, lambda m, x: m.linear(x))
    first.linear.weight.grad = torch.ones(3, 3)
    kept = first.linear.weight.grad
    verdict = verify(first, second, torch.randn(4, 3))
    assert verdict.equivalent, str(verdict)
    assert "outputs, gradients, input gradients" in str(verdict)
    assert first.linear.weight.grad is kept
    assert torch.equal(kept, torch.ones(3, 3))
    second.fn = lambda m, x: F.linear(x, m.linear.weight.detach(), m.linear.bias)
    assert kinds(verify(first, second, torch.randn(4, 3))) == {"gradient"}


def test_buffers_moved_by_the_backward_are_compared():
    def recomputing(self, x):
        return checkpoint(self.norm, x, use_reentrant=False)

    first, second = pair(lambda m, x: m.norm(x), recomputing)
    first.norm, second.norm = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    verdict = verify(first, second, torch.randn(4, 3))
    assert kinds(verdict) == {"buffer"}
    assert {d.mode for d in verdict.differences} == {"train"}


def test_complex_integer_and_missing_outputs_are_fine():
    def run(self, x):
        z = torch.complex(x, self.linear(x))
        return {"z": z, "n": x.argmax(), "none": None, "real": z.abs()}

    first, second = pair(run, run)
    assert verify(first, second, torch.randn(2, 3)).equivalent
    second.fn = lambda m, x: {**run(m, x), "z": run(m, x)["z"].conj().resolve_conj()}
    assert "output" in kinds(verify(first, second, torch.randn(2, 3)))


def test_a_tolerance_allows_what_it_says_and_no_more():
    first, second = pair(lambda m, x: m.linear(x), lambda m, x: m.linear(x) * (1 + 1e-5))
    x = torch.randn(2, 3)
    assert not verify(first, second, x).equivalent
    assert verify(first, second, x, rtol=1e-4).equivalent
    assert not verify(first, second, x, rtol=1e-7).equivalent
    assert verify(first, second, x, atol=1e-3).equivalent
    assert "rtol=0.0001" in str(verify(first, second, x, rtol=1e-4))


def test_nan_in_the_reference_is_an_error_that_names_the_output():
    first, second = pair(lambda m, x: {"good": x * 2, "bad": x / 0}, lambda m, x: x)
    with pytest.raises(NonFiniteReferenceError, match=r'out\["bad"\]') as caught:
        verify(first, second, torch.zeros(2, 3))
    assert isinstance(caught.value, ValueError)


def test_infinities_are_compared_like_any_number():
    first, second = pair(lambda m, x: x / 0, lambda m, x: x / 0)
    assert verify(first, second, torch.ones(2, 3)).equivalent
    second.fn = lambda m, x: -x / 0
    assert not verify(first, second, torch.ones(2, 3)).equivalent


def test_inputs_that_forward_does_not_accept_are_an_error_that_shows_both():
    model = nn.Bilinear(3, 4, 2)
    with pytest.raises(ExampleInputError) as caught:
        verify(model, model, torch.randn(2, 3))
    text = str(caught.value)
    assert "float32[2, 3]" in text
    assert "forward(input1" in text
    assert isinstance(caught.value.__cause__, TypeError)
    assert isinstance(caught.value, ValueError)


def test_a_mode_in_which_the_reference_raises_is_said_not_to_be_checked():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    verdict = verify(model, model, torch.randn(1, 3))
    assert verdict.equivalent
    (train,) = [check.text for check in verdict.checks if check.mode == "train"]
    assert train.startswith("not checked: the reference raises ValueError")
    with pytest.raises(ExampleInputError):
        verify(model, model, torch.randn(1, 3), modes=("train",))


def test_a_model_on_another_device_than_its_inputs_is_an_error_that_names_both():
    class Picky(nn.Linear):
        def forward(self, x):
            if x.device != self.weight.device:
                raise RuntimeError("Expected all tensors to be on the same device")
            return x

    with pytest.raises(DeviceMismatchError, match=r"on meta.*on cpu") as caught:
        verify(Picky(1, 1, device="meta"), nn.Identity(), torch.zeros(1))
    assert isinstance(caught.value, ValueError)


def test_meta_tensors_are_compared_by_shape_and_it_is_said():
    with torch.device("meta"):
        model, x = nn.Linear(2, 2), torch.randn(1, 2)
    verdict = verify(model, model, x)
    assert verdict.equivalent
    assert "shapes only" in str(verdict)


@pytest.mark.parametrize("modes", [(), ("training",)])
def test_modes_that_do_not_exist_are_refused(modes):
    with pytest.raises(OptionError, match="train, eval, keep"):
        verify(nn.Identity(), nn.Identity(), torch.zeros(1), modes=modes)


def test_a_forward_that_overwrites_a_parameter_is_refused_or_restored():
    def clip(self, x):
        with torch.no_grad():
            self.linear.weight.clamp_(-0.01, 0.01)
        return self.linear(x)

    first, second = pair(clip, clip)
    with pytest.raises(StateError, match=r"linear\.weight was overwritten.*copy_parameters"):
        verify(first, second, torch.randn(2, 3))
    first, second = pair(clip, clip)
    before = first.linear.weight.detach().clone()
    assert verify(first, second, torch.randn(2, 3), copy_parameters=True).equivalent
    assert torch.equal(first.linear.weight, before)


def test_a_model_changed_in_place_is_compared_with_itself():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    args = (torch.randn(2, 3),)
    reference = observe_reference(model, args)
    model[1].inplace = True
    assert compare_modes(reference, observe_modes(model, args, like=reference)).equivalent
    model[1] = nn.GELU()
    verdict = compare_modes(reference, observe_modes(model, args, like=reference))
    assert kinds(verdict) == {"output", "gradient", "input gradient"}


def test_a_reference_that_is_random_by_itself_is_said_to_be():
    source = iter(range(100))
    first, second = pair(lambda m, x: x + next(source), lambda m, x: x + next(source))
    verdict = verify(first, second, torch.zeros(2, 3))
    assert "the reference differs from its own second run" in str(verdict)


def test_the_verdict_is_json():
    first, second = pair(lambda m, x: x * 2, lambda m, x: x * 3)
    read = json.loads(verify(first, second, torch.randn(2, 3)).to_json())
    assert read["equivalent"] is False
    assert read["differences"][0]["what"] == "output"
    assert read["checks"][0]["mode"] == "train"
    assert read["first_module"] == ""


def test_a_tuple_is_all_arguments_and_anything_else_is_one():
    x = torch.zeros(1)
    assert as_arguments(x) == (x,)
    assert as_arguments((x, 1)) == (x, 1)
    assert as_arguments([x]) == ([x],)


def test_an_exception_is_recorded_with_its_stage():
    forward = observe(Call(lambda m, x: x.nothing), (torch.zeros(1),))
    backward = observe(Call(clash), (torch.randn(2, 3),))
    assert (forward.error.stage, backward.error.stage) == ("forward", "backward")
    assert backward.outputs, "what the forward did is recorded nevertheless"


def test_two_seeds_give_two_losses_and_two_dropouts():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout()), torch.randn(4, 3)
    first, second, third = (observe(model, (x,), seed=seed) for seed in (0, 0, 1))
    assert first == second
    assert first.outputs != third.outputs
    assert first.gradients != third.gradients


def test_observing_holds_no_tensor_unless_a_tolerance_asks_for_it():
    model, x = nn.Linear(3, 3), torch.randn(4, 3)
    assert all(d.value is None for d in observe(model, (x,)).outputs.values())
    kept = observe(model, (x,), keep_values=True)
    assert torch.equal(kept.outputs["out"].value, model(x).detach())


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool]),
    st.lists(st.integers(0, 3), max_size=3),
    st.data(),
)
def test_a_digest_tells_every_single_element_and_nothing_else(dtype, shape, data):
    x = torch.randint(0, 2, shape).to(dtype)
    base = digest_tensor(x)
    assert digest_tensor(x.clone()).hash == base.hash
    dims = tuple(reversed(range(x.dim())))
    transposed = x.permute(dims).contiguous().permute(dims)
    assert digest_tensor(transposed).hash == base.hash
    if x.numel():
        changed = x.clone().reshape(-1)
        index = data.draw(st.integers(0, x.numel() - 1))
        changed[index] = 1 - changed[index].to(torch.int64)
        assert digest_tensor(changed.reshape(shape)).hash != base.hash


def test_layouts_other_than_strided_have_digests():
    x = torch.eye(3)
    assert digest_tensor(x.to_sparse()).hash == digest_tensor(x).hash
    assert digest_tensor(x.to(torch.float8_e4m3fn)).hash
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.ones(3)], layout=torch.jagged)
    assert digest_tensor(nested).hash != digest_tensor(nested * 2).hash


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["relu", "bn", "linear", "dropout", "gelu"]), max_size=5))
def test_any_sequence_equals_its_copy_and_not_the_one_with_a_layer_changed(layers):
    made = {
        "relu": nn.ReLU,
        "bn": lambda: nn.BatchNorm1d(3),
        "linear": lambda: nn.Linear(3, 3),
        "dropout": nn.Dropout,
        "gelu": nn.GELU,
    }
    model = nn.Sequential(*(made[name]() for name in layers), nn.Linear(3, 3))
    other = copy.deepcopy(model)
    x = torch.randn(4, 3)
    state = ModelState.capture(model)
    assert verify(model, other, x).equivalent
    state.restore()
    with torch.no_grad():
        other[-1].bias[0] += 1
    verdict = verify(model, other, x)
    assert not verdict.equivalent
    assert verdict.first_module == str(len(layers))
