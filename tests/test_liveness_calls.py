"""Verdicts from source alone, through calls that hand arguments on and objects made on the way."""

import textwrap

import pytest
import torch
from sources import load_source
from test_liveness import effects, stale

import safemodules as sm
from safemodules.mutation.liveness.verdicts import Effect

HEAD = """
import functools
from dataclasses import dataclass
import torch
from torch import nn


def passes(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@passes
def shifted(t, *others, held=None):
    t += 1  # site
    return t if held is None else t + held


def spread(t, **options):
    return shifted(t, **options)


def popped(t, **options):
    options.pop("held", None)
    return shifted(t, **options)


def rest(*args):
    return shifted(*args[1:])


def bound(t, **options):
    options["held"] = t
    return shifted(t, **options)


def renamed(t, **options):
    same = options
    same["held"] = t
    return shifted(t, **options)


def updated(t, **options):
    options.update(held=t)
    return shifted(t, **options)


def enclosed(t, **options):
    def bind():
        options["held"] = t

    bind()
    return shifted(t, **options)


def handed(t, **options):
    fill(options, t)
    return shifted(t, **options)


def fill(options, t):
    options["held"] = t


def counted(t, **options):
    options["n"] = 0
    options["n"] += 1
    return numbered(t, **options)


def numbered(t, n=1):
    y = t
    t += 1  # site
    return t + y if n == 1 else t


class Pair:
    def __init__(self, a, b=None):
        self.a, self.b = a, b

    @property
    def double(self):
        return self.a * 2

    def total(self):
        return self.a.sum()

    def write(self):
        self.a.add_(1)

    def __call__(self):
        return self.a

    def __getitem__(self, key):
        return self.a * 2

    def __iter__(self):
        return iter([self.a])

    def __add__(self, other):
        return self.a + other

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.b = self.a * 2


@dataclass
class Record:
    a: torch.Tensor

    def mean(self):
        return self.a


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.seq = nn.Sequential(nn.Linear(3, 3))

"""
NEUTRAL = {
    "through a decorator": "return shifted(h)",
    "through named arguments": "return spread(h, held=x)",
    "a named argument that is taken out": "return popped(h, held=h)",
    "the rest of the arguments": "return rest(h, self.lin(x)) + h",
    "an object that was asked before": "y = Pair(h).total()\nh += 1  # site\nreturn h + y",
    "another attribute": "p = Pair(x)\nh += 1  # site\nreturn h + p()",
    "a forward that is called by name": "h = self.seq.forward(x)\nh += 1  # site\nreturn h",
    "one of the keys": "if 'a' in ('b', 'c'):\n    y = h\nh += 1  # site\nreturn h",
}
READ = {
    "a named argument": "return spread(h, held=h)",
    "the rest of the arguments": "return rest(x, h) + h",
    "a named argument that is bound": "return bound(h)",
    "bound under another name": "return renamed(h)",
    "updated": "return updated(h)",
    "bound by a nested function": "return enclosed(h)",
    "bound by a function": "return handed(h)",
    "a number that is counted up": "return counted(h)",
    "a method of an object": "p = Pair(h)\nh += 1  # site\nreturn h + p.total()",
    "a property": "p = Pair(h)\nh += 1  # site\nreturn h + p.double",
    "an object that is called": "p = Pair(h)\nh += 1  # site\nreturn h + p()",
    "an item of an object": "p = Pair(h)\nh += 1  # site\nreturn h + p[0]",
    "a loop over an object": "p = Pair(h)\nh += 1  # site\nreturn h + sum(t for t in p)",
    "an operator of an object": "p = Pair(h)\nh += 1  # site\nreturn h + (p + 1)",
    "an object that is left": "p = Pair(h)\nwith p:\n    h += 1  # site\nreturn h + p.b",
    "an object that overwrites": "y = h[:1]\ny += 1  # site\nPair(h).write()\nreturn h",
    "a record": "r = Record(h)\nh += 1  # site\nreturn h + r.mean()",
}


FIRST = "h = self.lin(x)\n"


def net(tmp_path, body, head=HEAD, signature="self, x"):
    body = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    return load_source(tmp_path, f"{head}    def forward({signature}):\n{body}\n").Net()


@pytest.mark.parametrize("body", NEUTRAL.values(), ids=NEUTRAL)
def test_nobody_reads_the_old_tensor(tmp_path, body):
    model = net(tmp_path, FIRST + body)
    assert {verdict.effect for verdict in effects(model)} == {Effect.NEUTRAL}
    assert not stale(model, torch.randn(3, 3))


@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
@pytest.mark.parametrize("body", READ.values(), ids=READ)
def test_somebody_may_read_the_old_tensor(tmp_path, body):
    model = net(tmp_path, FIRST + body)
    found = effects(model)
    assert [v for v in found if v.read or v.effect is not Effect.NEUTRAL], found
    x = torch.randn(3, 3)
    expected = model(x)
    assert torch.equal(sm.convert_model(model)(x), expected)


@pytest.mark.parametrize("signature", ["self, x, **options", "self, *args, **options"])
def test_what_the_caller_may_name_is_not_taken_for_its_default(tmp_path, signature):
    first = "x" if "x" in signature else "args[0]"
    body = f"""
        h = self.lin({first})
        held = named(h, **options)
        h += 1  # site
        return h if held is None else h + held
        """
    named = "def named(t, keep=False):\n    return t if keep else None\n\n\n"
    head = HEAD.replace("class Net", f"{named}class Net")
    model = net(tmp_path, body, head, signature)
    assert all(verdict.effect is not Effect.NEUTRAL for verdict in effects(model))


def test_a_call_that_must_raise_ends_its_path(tmp_path):
    body = """
        h = self.lin(x)
        if x.sum() > 0:
            y = spread(h, nothing=h)
        h += 1  # site
        return h
        """
    assert {verdict.effect for verdict in effects(net(tmp_path, body))} <= {
        Effect.NEUTRAL,
        Effect.UNREACHED,
    }


GLOBALS = """
KEPT = None


def remember(t):
    globals()["KEPT"] = t


"""


def test_globals_change_names_of_their_own_module_alone(tmp_path):
    body = """
        h = self.lin(x)
        y = KEPT
        remember(h)
        h += 1  # site
        return h if y is None else h + y
        """
    head = HEAD.replace("class Net", f"{GLOBALS}class Net")
    [verdict] = effects(net(tmp_path, body, head))
    assert verdict.effect is not Effect.NEUTRAL
    body = "remember(x)\nh = self.lin(x)\nif self.on:\n    h += 1  # site\nreturn h"
    model = net(tmp_path, body, head)
    model.on = True
    assert {verdict.effect for verdict in effects(model)} == {Effect.NEUTRAL}
