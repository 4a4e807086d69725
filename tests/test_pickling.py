"""Converted models survive pickle, torch.save and a process of their own."""

import copy
import copyreg
import importlib
import io
import os
import pickle
import runpy
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import cases
import pytest
import torch
from torch import nn

import safemodules as sm
from safemodules.rewriting import classes

CASES = sorted(cases.BUILDERS)
TESTS = Path(__file__).parent


converted = cases.converted


def outputs(model: nn.Module):
    torch.manual_seed(1)
    x = cases.example().requires_grad_()
    out = model(x)
    out.sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_pickle_keeps_the_class_and_the_state(name):
    model = converted(name)
    loaded = pickle.loads(pickle.dumps(model))
    assert [type(m) for m in loaded.modules()] == [type(m) for m in model.modules()]
    assert str(sm.conversion_plan(loaded)) == str(sm.conversion_plan(model))
    assert_same(outputs(loaded), outputs(model))
    sm.revert_model(loaded)
    assert [type(m) for m in loaded.modules()] == [type(m) for m in cases.build(name).modules()]
    assert sm.is_converted(model)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_works(protocol):
    model = converted("shared")
    loaded = pickle.loads(pickle.dumps(model, protocol))
    assert type(loaded) is type(model)
    assert loaded.first is loaded.second is loaded.rest[1]


def test_torch_save_of_the_whole_model_works():
    model, buffer = converted("batch norm"), io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert type(loaded) is type(model)
    assert_same(outputs(loaded), outputs(model))


def test_a_pickle_holds_the_edits_once():
    def size(model):
        return len(pickle.dumps(model))

    blocks = [cases.Concrete() for _ in range(9)]
    plain = [nn.Sequential(*blocks[:n]) for n in (1, 9)]
    grown = size(plain[1]) - size(plain[0])
    for model in plain:
        sm.convert_model(model, cases.example())
    assert size(plain[1]) - size(plain[0]) < grown + 3000


# -- a fresh process ------------------------------------------------------------------------


SCRIPT = """
import sys
import torch
from torch import nn
import safemodules as sm

def doubled(x):
    x *= 2
    return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x).sigmoid()
        y += x
        return doubled(y.exp())

x = torch.linspace(-1, 1, 8).reshape(2, 4)

if __name__ == "__main__" and sys.argv[1] == "save":
    torch.manual_seed(0)
    model = sm.convert_model(Net(), x)
    assert all(site.decision == "swap" for site in sm.conversion_plan(model).sites)
    torch.save((model, model(x)), "script.pt")
elif __name__ == "__main__":
    model, expected = torch.load("script.pt", weights_only=False)
    assert sm.is_converted(model)
    assert torch.equal(model(x), expected)
    model(x).sum().backward()
    assert type(sm.revert_model(model)) is Net
    import test_pickling
    test_pickling.load_cases()
    test_pickling.load_changed()
"""


def save_cases() -> None:
    for name in CASES:
        model = converted(name)
        torch.save((model, outputs(model)), f"{name}.pt")


def load_cases() -> None:
    """Load every case, run and revert it."""
    for name in CASES:
        model, expected = torch.load(f"{name}.pt", weights_only=False)
        model.zero_grad()
        assert sm.is_converted(model), name
        assert_same(outputs(model), expected)
        assert any(site.decision == "swap" for site in sm.conversion_plan(model).sites)
        sm.revert_model(model)
        assert not sm.is_converted(model)
        plain = [type(m) for m in cases.build(name).modules()]
        assert [type(m) for m in model.modules()] == plain


def save_changing() -> None:
    """Save a model whose source changes afterwards."""
    source = Path("changing.py")
    text = SCRIPT[: SCRIPT.index("x = torch.linspace")]
    source.write_text(text)
    changing = importlib.import_module("changing")
    x = cases.example()
    model = sm.convert_model(nn.Sequential(changing.Net(), changing.Net()), x)
    torch.save((model, x, model(x).detach()), "changing.pt")
    source.write_text("# a comment more\n" + text)


def load_changed() -> None:
    """Load it as the original, with one warning for all of its modules."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model, x, expected = torch.load("changing.pt", weights_only=False)
    messages = [str(w.message) for w in seen if issubclass(w.category, sm.ConversionWarning)]
    assert len(messages) == 1, messages
    assert "changed" in messages[0], messages
    assert "original" in messages[0], messages
    changing = importlib.import_module("changing")
    assert [type(m) for m in model] == [changing.Net, changing.Net]
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    sm.convert_model(model, x)(x).sum().backward()


def test_a_fresh_process_loads_what_was_saved(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script.py", "save"])
    save_cases()
    save_changing()
    runpy.run_path("script.py", run_name="__main__")
    # a warning is an error there, but for those of the interpreter at exit
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "script.py", "load"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture
def forgotten(monkeypatch):
    """Forget all conversions, as a fresh process has."""
    monkeypatch.setattr(classes, "_rewritings", weakref.WeakValueDictionary())


def make_helper():
    def helper(x):
        x *= 2
        return x

    return helper


class Holder:
    """Holds a function that no importable name leads to."""

    def __init__(self) -> None:
        self.helper = make_helper()


HOLDER = Holder()


class CallsHidden(nn.Module):
    def forward(self, x):
        y = x.sigmoid()
        y += 1
        return HOLDER.helper(y.exp())


def test_a_function_that_no_name_leads_to_is_told_of_on_loading(request):
    model = sm.convert_model(CallsHidden(), cases.example())
    x = cases.example().requires_grad_()
    model(x).sum().backward()
    data, expected = pickle.dumps(model), model(cases.example())
    request.getfixturevalue("forgotten")
    with pytest.warns(sm.ConversionWarning, match=r"run as the original's.*make_helper"):
        loaded = pickle.loads(data)
    assert sm.is_converted(loaded)
    assert torch.equal(loaded(cases.example()), expected)


@pytest.mark.parametrize("name", CASES)
def test_a_class_that_is_made_again_computes_the_same(name, request):
    model = converted(name)
    data, expected = pickle.dumps(model), outputs(model)
    request.getfixturevalue("forgotten")
    loaded = pickle.loads(data)
    assert sm.is_converted(loaded)
    assert [sm.is_converted(m) for m in loaded.modules()] == [
        sm.is_converted(m) for m in model.modules()
    ]
    assert_same(outputs(loaded), expected)
    assert type(pickle.loads(data)) is type(loaded)


# -- how users pickle -----------------------------------------------------------------------


class OwnReduce(cases.Residual):
    """Is made anew with its argument, through its class."""

    def __init__(self, width: int = 4) -> None:
        super().__init__(width)
        self.width = width

    def __reduce__(self):
        return (type(self), (self.width,), {"state": self.state_dict()})

    def __setstate__(self, state):
        self.load_state_dict(state["state"])


class OwnDeepcopy(cases.Residual):
    def __deepcopy__(self, memo):
        made = type(self)()
        made.copied = True
        made.load_state_dict(self.state_dict())
        return made


class OwnState(cases.Residual):
    def __getstate__(self):
        return {**self.__dict__, "note": "packed"}


class NewArguments(cases.Residual):
    def __new__(cls, *, key):
        made = super().__new__(cls)
        made.__dict__["key"] = key
        return made

    def __init__(self, *, key):
        super().__init__()

    def __getnewargs_ex__(self):
        return (), {"key": "again"}


def test_a_reduce_of_the_user_is_respected():
    model = sm.convert_model(OwnReduce(), cases.example())
    for loaded in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(loaded) is type(model)
        assert torch.equal(loaded.linear.weight, model.linear.weight)


def test_a_deepcopy_of_the_user_is_respected():
    model = sm.convert_model(OwnDeepcopy(), cases.example())
    twin = copy.deepcopy(model)
    assert twin.copied
    assert type(twin) is type(model)


def test_a_state_of_the_user_is_respected():
    model = sm.convert_model(OwnState(), cases.example())
    assert pickle.loads(pickle.dumps(model)).note == "packed"


def test_arguments_of_new_are_respected():
    model = sm.convert_model(NewArguments(key="first"), cases.example())
    model.__dict__.pop("key")
    loaded = pickle.loads(pickle.dumps(model))
    assert type(loaded) is type(model)


def test_a_registered_reducer_of_the_user_is_respected():
    class Reduced(cases.Residual):
        pass

    def reduce(module):
        return (make_residual, (module.linear.in_features,))

    copyreg.pickle(Reduced, reduce)
    try:
        model = sm.convert_model(Reduced(), cases.example())
        assert type(pickle.loads(pickle.dumps(model))) is cases.Residual
    finally:
        del copyreg.dispatch_table[Reduced]


def make_residual(width):
    return cases.Residual(width)


def test_a_recipe_names_all_that_is_edited():
    model = converted("helpers")
    recipe = type(model)._safemodules_rewriting.recipe
    assert {edits.module for edits in recipe.files} == {"cases", "cases_helpers"}
    assert {name.qualname for name in recipe.functions} >= {"doubled", "scaled", "shifted"}
    assert not recipe.lost
