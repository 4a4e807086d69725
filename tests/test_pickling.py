"""Converted models survive pickle, torch.save and a process of their own."""

import copyreg
import io
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import cases
import pytest
import torch
from torch import nn

import safemodules as sm

CASES = sorted(set(cases.BUILDERS) - {"generic"}) + ["generic"]
TESTS = Path(__file__).parent


def converted(name: str) -> nn.Module:
    return sm.convert_model(cases.build(name), cases.example())


def outputs(model: nn.Module):
    torch.manual_seed(1)
    x = cases.example().requires_grad_()
    out = model(x)
    out.sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def python(code: str, *arguments: object, path: Path = TESTS) -> str:
    """Run code in a fresh process, in which a warning is an error."""
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(TESTS.parent)])},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


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


@pytest.fixture(scope="module")
def loaded_elsewhere(tmp_path_factory):
    """Every case, saved here and loaded, run and reverted in one fresh process."""
    folder = tmp_path_factory.mktemp("saved")
    for name in CASES:
        model = converted(name)
        torch.save((model, outputs(model)), folder / f"{name}.pt")
    return python(
        """
        import sys, torch, safemodules as sm, cases, test_pickling as here
        for name in here.CASES:
            model, expected = torch.load(f"{sys.argv[1]}/{name}.pt", weights_only=False)
            model.zero_grad()
            assert sm.is_converted(model), name
            here.assert_same(here.outputs(model), expected)
            assert any(s.decision == "swap" for s in sm.conversion_plan(model).sites)
            sm.revert_model(model)
            assert not sm.is_converted(model)
            plain = [type(m) for m in cases.build(name).modules()]
            assert [type(m) for m in model.modules()] == plain
            print(name)
        """,
        folder,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_fresh_process_loads_it_converted(loaded_elsewhere, name):
    assert name in loaded_elsewhere.splitlines()


MAIN = """
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

if __name__ == "__main__":
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    if sys.argv[1] == "save":
        torch.manual_seed(0)
        model = sm.convert_model(Net(), x)
        assert all(site.decision == "swap" for site in sm.conversion_plan(model).sites)
        torch.save((model, model(x)), sys.argv[2])
    else:
        model, expected = torch.load(sys.argv[2], weights_only=False)
        assert sm.is_converted(model)
        assert torch.equal(model(x), expected)
        model(x).sum().backward()
        assert type(sm.revert_model(model)) is Net
"""


def test_classes_of_a_script_work(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MAIN)
    for mode in ("save", "load"):
        result = subprocess.run(
            [sys.executable, "-W", "error", "script.py", mode, tmp_path / "model.pt"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
            check=False,
        )
        assert result.returncode == 0, result.stderr


LOAD_CHANGED = """
import sys, warnings, torch, safemodules as sm
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    model, x, expected = torch.load(sys.argv[1], weights_only=False)
messages = [str(w.message) for w in seen if issubclass(w.category, sm.ConversionWarning)]
assert len(messages) == 1, messages
assert "changed" in messages[0] and "original" in messages[0], messages
import changing
assert [type(m) for m in model] == [changing.Net, changing.Net]
with torch.no_grad():
    assert torch.equal(model(x), expected)
sm.convert_model(model, x)(x).sum().backward()
"""


def test_a_changed_source_is_loaded_as_the_original_with_one_warning(tmp_path, monkeypatch):
    source = tmp_path / "changing.py"
    text = "from torch import nn\n" + MAIN[MAIN.index("def doubled") : MAIN.index("if __name__")]
    source.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import changing

    x = cases.example()
    model = sm.convert_model(nn.Sequential(changing.Net(), changing.Net()), x)
    torch.save((model, x, model(x).detach()), tmp_path / "model.pt")
    source.write_text("# a comment more\n" + text)
    python(LOAD_CHANGED, tmp_path / "model.pt", path=tmp_path)


def test_a_function_that_no_name_leads_to_is_told_of_on_loading(tmp_path, monkeypatch):
    (tmp_path / "hidden.py").write_text(
        textwrap.dedent(
            """
            from torch import nn

            def make():
                def doubled(x):
                    x *= 2
                    return x
                return doubled

            class Holder:
                calls = {"double": make()}

            HOLDER = Holder()

            class Net(nn.Module):
                def forward(self, x):
                    doubled = HOLDER.calls["double"]
                    return doubled(x.sigmoid())
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    import hidden

    plan = sm.plan_conversion(hidden.Net(), cases.example())
    if not plan.sites:
        pytest.skip("a function in a dict is not followed")


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
    for loaded in (pickle.loads(pickle.dumps(model)), __import__("copy").deepcopy(model)):
        assert type(loaded) is type(model)
        assert torch.equal(loaded.linear.weight, model.linear.weight)


def test_a_deepcopy_of_the_user_is_respected():
    import copy

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


def test_a_recipe_that_names_a_vanished_module_loads_nothing_wrong():
    model = converted("helpers")
    data = pickle.dumps(model)
    recipe = type(model)._safemodules_rewriting.recipe
    assert {edits.module for edits in recipe.files} == {"cases", "cases_helpers"}
    assert {name.qualname for name in recipe.functions} >= {"doubled", "scaled", "shifted"}
    assert not recipe.lost
    assert pickle.loads(data).__class__ is type(model)
