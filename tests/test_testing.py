import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.gradcheck import GradcheckError

from safemodules.errors import EquivalenceError, ExampleInputError, PrecisionError
from safemodules.state import RandomState
from safemodules.testing import assert_equivalent, gradcheck_module


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


class Call(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.scale = nn.Parameter(torch.tensor([1.5, 0.5, -2.0]))
        self.register_buffer("mean", torch.zeros(3))
        self.calls = 0
        self.double()

    def forward(self, x, **kwargs):
        return self.fn(self, x, **kwargs)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def moving_average(self, x):
    self.mean.mul_(0.5).add_(1)
    return x * self.scale * self.mean


def counting(self, x):
    self.calls += 1
    return x * self.scale * self.calls


def overwriting(self, x):
    x.mul_(2)
    return x * self.scale


def random_drop(self, x):
    return F.dropout(x * self.scale)


def caching(self, x):
    self.cache = x * self.scale
    return self.cache.sin()


def returning_state(self, x):
    self.mean.add_(1)
    return self.mean, x * self.scale


STATEFUL = [moving_average, counting, overwriting, random_drop, caching, returning_state]


@pytest.mark.parametrize("fn", STATEFUL, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_stateful_module_is_reset_between_evaluations_and_left_as_it_was(fn, fast_mode):
    module, x = Call(fn), double(2, 3)
    before, state = x.clone(), {k: v.clone() for k, v in module.state_dict().items()}
    rng = RandomState.capture().digests()
    assert gradcheck_module(module, x, fast_mode=fast_mode)
    assert torch.equal(x, before)
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert module.calls == 0
    assert RandomState.capture().digests() == rng


def test_gradients_are_checked_on_every_device(device):
    if device.type == "mps":
        pytest.skip("mps has no float64")
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Tanh()).double().to(device)
    assert gradcheck_module(module, double(4, 3).to(device))


@pytest.mark.parametrize("module", [nn.GRU(2, 3), nn.Conv1d(2, 3, 2)], ids=["GRU", "Conv1d"])
def test_library_modules_pass(module):
    assert gradcheck_module(module.double(), double(2, 2, 2))


def test_nested_and_keyword_inputs_are_checked():
    module = Call(lambda m, x, other: {"a": x["x"][0] * m.scale * other["y"], "n": 3})
    assert gradcheck_module(module, {"x": [double(3)]}, kwargs={"other": {"y": double(3)}})
    module.fn = lambda m, x, other: x["x"][0] * m.scale + WrongGradient.apply(other["y"])
    with pytest.raises(GradcheckError):
        gradcheck_module(module, {"x": [double(3)]}, kwargs={"other": {"y": double(3)}})


def test_an_input_used_twice_and_an_expanded_one_are_checked():
    module = Call(lambda m, x: x[0] * x[1] * m.scale)
    x = double(3)
    assert gradcheck_module(module, [x, x])
    assert gradcheck_module(module, [double(1).expand(3), x])


@pytest.mark.parametrize(
    "fn",
    [
        lambda m, x: WrongGradient.apply(x) * m.scale,
        lambda m, x: x * WrongGradient.apply(m.scale),
        lambda m, x: x * m.scale + (m.scale.detach() * m.scale).sum(),
    ],
    ids=["of an input", "of a parameter", "cut"],
)
@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_wrong_gradient_is_found(fn, fast_mode):
    module = Call(fn)
    before = module.scale.detach().clone()
    with pytest.raises(GradcheckError):
        gradcheck_module(module, double(2, 3), fast_mode=fast_mode)
    assert not gradcheck_module(module, double(2, 3), raise_exception=False)
    assert torch.equal(module.scale, before)


def test_a_parameter_is_whole_again_when_an_evaluation_raises():
    calls = []

    def fail(self, x):
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError
        return x * self.scale

    module = Call(fail)
    before = module.scale.detach().clone()
    with pytest.raises(ZeroDivisionError):
        gradcheck_module(module, 2)
    assert torch.equal(module.scale, before)


def test_a_clash_raises_as_it_does_in_training():
    def clash(self, x):
        y = (x * self.scale).exp()
        y += 1
        return y

    with pytest.raises(RuntimeError, match="inplace"):
        gradcheck_module(Call(clash), double(2, 3))


@pytest.mark.parametrize(
    ("module", "x", "name"),
    [
        (nn.Linear(2, 2), double(1, 2), "weight is float32"),
        (nn.ReLU(), torch.randn(2), r"inputs\[0\] is float32"),
        (nn.BatchNorm1d(2, affine=False), double(2, 2), "running_mean is float32"),
    ],
)
def test_single_precision_is_refused_with_the_name_and_the_remedy(module, x, name):
    with pytest.raises(PrecisionError, match=name + r".*double\(\)") as caught:
        gradcheck_module(module, x)
    assert isinstance(caught.value, ValueError)


def test_having_nothing_to_check_is_an_error():
    with pytest.raises(ExampleInputError, match="no gradient to check"):
        gradcheck_module(nn.Identity(), torch.arange(3))


def test_a_frozen_parameter_is_not_checked():
    module = Call(lambda m, x: x * WrongGradient.apply(m.scale))
    module.scale.requires_grad_(False)
    assert gradcheck_module(module, double(2, 3))


def test_a_module_that_holds_a_graph_is_copied_all_the_same():
    module = Call(caching)
    module(double(2, 3))
    assert not module.cache.is_leaf
    assert gradcheck_module(module, double(2, 3))


def test_assert_equivalent_passes_and_fails(device):
    x = torch.randn(5, device=device)
    assert_equivalent(nn.ReLU(), nn.Threshold(0, 0), x)
    with pytest.raises(EquivalenceError, match="output out: values differ"):
        assert_equivalent(nn.ReLU(), nn.GELU(), x)
    assert_equivalent(nn.ReLU(), nn.GELU(), x, atol=10.0)


def test_assert_equivalent_hands_keyword_arguments_to_forward():
    first, second = Call(lambda m, x, k: x * k), Call(lambda m, x, k: x * k * k)
    assert_equivalent(first, second, double(2), k=1)
    with pytest.raises(EquivalenceError):
        assert_equivalent(first, second, double(2), k=2)
