"""What cannot be converted is refused by an error of ours, and left as it was."""

import importlib
import os
import stat
import sys

import cases
import pytest
import torch
from torch import nn

import safemodules as sm

VERBS = [sm.convert_model, sm.plan_conversion]


def everything(model: nn.Module):
    return (
        [(n, type(m), m.training, dict(vars(m))) for n, m in model.named_modules()],
        {k: (v.tolist() if not v.is_meta else None) for k, v in model.state_dict().items()},
        [p.grad is None for p in model.parameters()],
        torch.get_rng_state().tolist(),
    )


@pytest.fixture(params=VERBS, ids=lambda verb: verb.__name__)
def refused(request):
    """Check that a verb raises an error of ours, and leaves the model as it was."""

    def check(model, error, match, *args, **kwargs):
        before = everything(model)
        with pytest.raises(error, match=match) as caught:
            request.param(model, *args, **kwargs)
        assert isinstance(caught.value, sm.SafeModulesError)
        assert everything(model) == before
        return caught.value

    return check


# -- no module ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [None, 3, "resnet50", len, [nn.Linear(2, 2)], torch.ones(2)], ids=str
)
@pytest.mark.parametrize(
    "verb", [*VERBS, sm.revert_model, sm.is_converted, sm.conversion_plan], ids=lambda v: v.__name__
)
def test_what_is_no_module_is_refused(verb, value):
    with pytest.raises(sm.ModuleTypeError, match=r"expected a torch\.nn\.Module, got") as caught:
        verb(value)
    assert isinstance(caught.value, TypeError)
    assert type(value).__name__ in str(caught.value)


@pytest.mark.parametrize("verb", [*VERBS, sm.revert_model], ids=lambda v: v.__name__)
def test_a_class_is_refused_with_what_to_do(verb):
    with pytest.raises(sm.ModuleTypeError, match=r"got the class Residual.*Residual\(\.\.\.\)"):
        verb(cases.Residual)


class Forgetful(nn.Module):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.__name__)
def test_a_module_that_is_not_initialised_is_refused(verb):
    with pytest.raises(sm.ModuleTypeError, match=r"^Forgetful is not initialised.*super\(\)"):
        verb(Forgetful())
    model = nn.Sequential(nn.ReLU(inplace=True))
    model._modules["1"] = Forgetful()
    with pytest.raises(sm.ModuleTypeError, match=r"^1, a Forgetful, is not initialised"):
        verb(model)
    assert model[0].inplace


# -- example inputs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "kwargs"),
    [
        (torch.ones(2, 3), None),
        ((torch.ones(2, 4), torch.ones(2, 4)), None),
        ((), None),
        ([torch.ones(2, 4)], None),
        ("text", None),
        (torch.ones(2, 4), {"y": 3}),
        (None, {"y": torch.ones(2, 4)}),
        (torch.ones(2, 4, dtype=torch.long), None),
    ],
    ids=["shape", "too many", "none", "list", "text", "unknown name", "only names", "dtype"],
)
def test_inputs_that_the_forward_does_not_accept_are_refused(refused, inputs, kwargs):
    error = refused(
        cases.build("residual"), sm.ExampleInputError, "Residual.forward does not", inputs, kwargs
    )
    assert "Given:" in str(error)
    assert "forward(" in str(error)


def test_a_tuple_stands_for_the_arguments():
    assert sm.is_converted(sm.convert_model(cases.build("residual"), (cases.example(),)))
    named = sm.convert_model(cases.build("residual"), example_kwargs={"x": cases.example()})
    assert sm.conversion_plan(named).equivalence is not None


def test_inputs_on_another_device_are_refused(refused):
    model = cases.build("residual").to("meta")
    refused(
        model, sm.DeviceMismatchError, r"Residual is on meta.*inputs are on cpu", cases.example()
    )


def test_a_reference_with_nan_is_refused(refused):
    model = cases.build("residual")
    nn.init.constant_(model.linear.weight, float("nan"))
    before = sm.verification.digests.digest_tensor(model.linear.weight)
    with pytest.raises(sm.NonFiniteReferenceError, match="holds NaN"):
        sm.convert_model(model, cases.example())
    assert sm.verification.digests.digest_tensor(model.linear.weight) == before
    assert not sm.is_converted(model)


class Raising(cases.Residual):
    def forward(self, x):
        self.state = "touched"
        self.linear.weight.grad = None
        y = super().forward(x)
        raise KeyError(f"no such thing as {len(y)}")


def test_a_forward_that_raises_is_refused(refused):
    torch.manual_seed(0)
    error = refused(Raising(), sm.ExampleInputError, "KeyError.*no such thing", cases.example())
    assert isinstance(error.__cause__, KeyError)


# -- options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("inplace", "safe"),
        ("inplace", None),
        ("inplace", True),
        ("checkpoint", True),
        ("checkpoint", "never"),
        ("checkpoint", None),
        ("checkpoint", 0),
        ("memory_budget", "half"),
        ("memory_budget", 0.5),
        ("memory_budget", 0),
        ("semantics", "improved"),
        ("semantics", ["preserve"]),
    ],
)
def test_options_that_this_version_does_not_have_are_refused(refused, option, value):
    error = refused(
        cases.build("residual"), sm.OptionError, f"^{option}=", cases.example(), **{option: value}
    )
    assert isinstance(error, ValueError)
    assert repr(value) in str(error)
    assert "expected" in str(error)


@pytest.mark.parametrize("options", [{"inplace": "unsafe"}, {"semantics": "intended"}])
def test_options_that_need_a_run_are_refused_without_inputs(options):
    with pytest.raises(sm.OptionError, match="needs example_inputs"):
        sm.convert_model(cases.build("residual"), **options)


def test_unknown_options_are_a_type_error():
    with pytest.raises(TypeError, match="in_place"):
        sm.convert_model(cases.build("residual"), in_place="all")


# -- source files ---------------------------------------------------------------------------


TEXT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x).sigmoid()
        y += x
        return y
"""


@pytest.fixture
def net(tmp_path, monkeypatch, request):
    """A module whose source file may be done something to."""
    name = f"source_{request.node.name.replace('[', '_').replace(']', '').replace('-', '_')}"
    path = tmp_path / f"{name}.py"
    path.write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    model = importlib.import_module(name).Net()
    yield model, path
    sys.modules.pop(name)


def test_a_read_only_source_file_works(net):
    model, path = net
    os.chmod(path, stat.S_IRUSR)
    sm.convert_model(model, cases.example())(cases.example()).sum().backward()
    assert path.read_text() == TEXT


def test_a_vanished_source_file_is_refused(net, refused):
    model, path = net
    path.unlink()
    error = refused(model, sm.SourceError, "has vanished", cases.example())
    assert str(path) in str(error)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("y += x", "y += 2 * x"),
        TEXT.replace("        y += x\n", ""),
        "# moved\n" + TEXT,
        "",
        "def broken(:\n",
    ],
    ids=["another line", "a line less", "moved", "emptied", "broken"],
)
def test_an_edited_source_file_is_refused(net, refused, text):
    model, path = net
    path.write_text(text)
    os.utime(path, (1, 1))
    error = refused(model, sm.SourceError, None, cases.example())
    assert str(path) in str(error)
    if text:
        assert isinstance(error, sm.SourceChangedError)


@pytest.mark.parametrize(
    "text",
    [TEXT + "\n\nclass Later:\n    pass\n", TEXT.replace("class Net", "class Renamed")],
    ids=["below", "name of the class"],
)
def test_a_source_file_that_is_edited_elsewhere_works(net, text):
    model, path = net
    path.write_text(text)
    os.utime(path, (1, 1))
    sm.convert_model(model, cases.example())(cases.example()).sum().backward()
    sm.revert_model(model)


def test_frozen_parameters_are_no_obstacle():
    model = cases.build("child").requires_grad_(False)
    sm.convert_model(model, cases.example())
    x = cases.example().requires_grad_()
    model(x).sum().backward()
    assert all(not p.requires_grad for p in model.parameters())
