"""Sites in functions of which nobody knows who calls them, and with what."""

import inspect
import textwrap

import pytest
import torch
from sources import load_source
from test_liveness import HEAD as MODEL

import safemodules as sm
from safemodules.conversion.decisions import verdicts_from_source
from safemodules.conversion.survey import survey_model
from safemodules.mutation.liveness.verdicts import Effect

# What runs `self.inner(h)` where it cannot be followed: `unknown` is given by `exec`.
CALLS = {
    "handed to unknown code": "h = unknown(self.inner, h)",
    "behind a call that cannot be followed": "h = self.outer(h)",
}
OUTER = """
    def outer(self, t):
        try:
            t = self.inner(t)
        finally:
            for i in (1,):
                break
        return t
"""
# Bodies of `inner`, in which nobody reads what the site overwrites, whoever calls.
NEUTRAL = {
    "made there": "n = torch.tanh(t)\nn += 1  # site\nreturn n",
    "a copy": "n = t.clone()\nn[0] = 1  # site\nreturn n",
    "in a branch": "n = t * 2.0\nif t.sum() > 0:\n    n.relu_()  # site\nreturn n",
    "in a loop": "n = t * 2.0\nfor i in range(3):\n    n = n + i\n    n += 1  # site\nreturn n",
    "with a default": "f = lambda s=t * 2.0: s\nn = t * 3.0\nn += 1  # site\nreturn n + f()",
}
# Bodies in which somebody may.
READ = {
    "the argument": "t += 1  # site\nreturn t",
    "a view of the argument": "n = t[0]\nn += 1  # site\nreturn t",
    "an alias is returned": "n = t * 1\nm = n.view(-1)\nn += 1  # site\nreturn m",
    "an alias is read": "n = t * 1\nm = n\nn += 1  # site\nreturn m + n",
    "kept": "n = t * 1\nself.kept = n\nn += 1  # site\nreturn n",
    "handed on": "n = t * 1\nself.holder(n)\nn += 1  # site\nreturn n",
    "appended": "n = t * 1\nself.log.append(n)\nn += 1  # site\nreturn n",
    "global": "global KEPT\nn = t * 1\nKEPT = n\nn += 1  # site\nreturn n",
    "seen by a function that is returned": "n = t * 1\nf = lambda: n\nn += 1  # site\nreturn f",
}
NUMBERS = {
    "a count": "n = 0\nfor i in range(3):\n    n += i  # site\nreturn t * n",
    "an entry of a list of sizes": "s = list(t.shape)\ns[0] += 1  # site\nreturn t * s[0]",
    "a number plus a tensor": "n = 0\nn += t.sum()  # site\nreturn n",
}


def net(tmp_path, call, inner):
    init = "        self.kept = torch.zeros(3)\n        self.log = []\n\n"
    forward = (
        f"    def forward(self, x):\n        h = self.lin(x)\n        {call}\n        return h\n"
    )
    method = "\n    def inner(self, t):\n" + textwrap.indent(inner, " " * 8)
    text = f"{MODEL.rstrip()}\n{init}{forward}{OUTER}{method}\n"
    namespace = {}
    exec("def unknown(function, *args):\n    return function(*args)", namespace)
    module = load_source(tmp_path, text)
    module.unknown = namespace["unknown"]
    return module.Net()


def verdict(model):
    """The verdict on the site that is marked."""
    verdicts = verdicts_from_source(survey_model(model)).sites
    lines = inspect.getsource(inspect.getmodule(type(model))).splitlines()
    place = f".py:{1 + next(n for n, line in enumerate(lines) if '# site' in line)} "
    (found,) = (verdict for site, verdict in verdicts.items() if place in str(site.site))
    return found


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("inner", NEUTRAL.values(), ids=NEUTRAL)
def test_what_a_function_has_made_itself_is_nobodys(tmp_path, inner, call):
    assert verdict(net(tmp_path, call, inner)).effect is Effect.NEUTRAL


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("inner", READ.values(), ids=READ)
def test_what_others_may_hold_stays(tmp_path, inner, call):
    found = verdict(net(tmp_path, call, inner))
    assert found.effect in (Effect.UNKNOWN, Effect.LOAD_BEARING)


@pytest.mark.parametrize("call", [*CALLS.values(), "h = self.inner(h)"], ids=[*CALLS, "followed"])
@pytest.mark.parametrize("inner", NUMBERS.values(), ids=NUMBERS)
def test_a_number_is_no_tensor(tmp_path, inner, call):
    model = net(tmp_path, call, inner)
    found = verdict(model)
    assert found.effect is Effect.NO_TENSOR
    plan = sm.plan_conversion(model)
    assert "overwrites no tensor" in str(plan)


@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("inner", [*NEUTRAL.values(), *NUMBERS.values()])
def test_the_same_is_computed(tmp_path, inner, call):
    model = net(tmp_path, call, inner)
    x = torch.linspace(-1, 2, 9).view(3, 3)
    expected = model(x)
    assert torch.equal(sm.convert_model(model)(x), expected)
