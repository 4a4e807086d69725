"""Verdicts from source alone: functions and modules in containers, one of several, and nested."""

import gc
import textwrap
import weakref

import pytest
import torch
from sources import load_source
from test_liveness import HEAD as MODEL
from test_liveness import effects
from torch import nn

import safemodules as sm
from safemodules.conversion.decisions import verdicts_from_source
from safemodules.conversion.survey import survey_model
from safemodules.mutation.liveness.verdicts import Effect

FUNCTIONS = """
def other(t):
    return t * 1


TABLE = [other, shift]
NAMED = {"other": other, "shift": shift}


"""
HEAD = MODEL.replace("class Net", f"{FUNCTIONS}class Net", 1)
# What calls `shift`, which overwrites `h`, where the text does not name it.
CALLED = {
    "appended": "fs = []\nfs.append(shift)\nfs[0](h)",
    "stored": "fs = [other]\nfs[0] = shift\nfs[0](h)",
    "in a dict": "fs = {}\nfs['f'] = shift\nfs['f'](h)",
    "in a dict by update": "fs = {}\nfs.update(f=shift)\nfs['f'](h)",
    "one of two": "f = shift if x.sum() > -99 else other\nf(h)",
    "one of two, by or": "f = x.sum() < -99 and other or shift\nf(h)",
    "one of two branches": "f = other\nif x.sum() > -99:\n    f = shift\nf(h)",
    "an attribute": "self.kept = shift\nself.kept(h)",
    "an attribute of a child": "self.holder.kept = shift\nself.holder.kept(h)",
    "a table by number": "i = int(x.shape[0] > -1)\nTABLE[i](h)",
    "a table by name": "n = 'sh' + str('ift')\nNAMED[n[:]](h)",
    "a sum of lists": "fs = [other] + [shift]\nfs[1](h)",
    "starred": "a, *fs = (other, shift)\nfs[0](h)",
    "a tuple grows": "fs = (other,)\nfs += (shift,)\nfs[1](h)",
    "returned": """
        def pick():
            if x.sum() > -99:
                return shift
            return other

        f = pick()
        f(h)
        """,
    "a nested function": """
        g = h

        def one():
            g.add_(1)

        def two():
            pass

        f = one if x.sum() > -99 else two
        f()
        """,
    "popped": "fs = [other, shift]\nfs.pop()(h)",
    "a set": "fs = {shift}\nfor f in fs:\n    f(h)",
    "a generator": "for f in (f for f in (shift,)):\n    f(h)",
    "a default": "def run(f=shift):\n    f(h)\n\nrun()",
    "a lambda": "f = lambda t: shift(t)\nf(h)",
    "mapped": "list(map(shift, [h]))",
    "values": "fs = dict(f=shift)\nfor f in fs.values():\n    f(h)",
    "enumerated with values": "for f, v in zip([shift], x):\n    f(h)",
    "walrus": "(f := shift)(h)",
}
# What reads `h` after it was overwritten.
READ = {
    "one of two nested": """
        g = h

        def one():
            return g * 2

        def two():
            return x

        f = one if x.sum() > -99 else two
        h += 1  # site
        return f() + h
        """,
    "bound later": """
        def one():
            return g * 2

        def two():
            return x

        f = one if x.sum() > -99 else two
        g = h
        h += 1  # site
        return f() + h
        """,
    "a nested one in a list": """
        def one():
            return g * 2

        fs = []
        fs.append(one)
        g = h
        h += 1  # site
        return fs[0]() + h
        """,
    "a lambda in a list": """
        fs = [lambda: g * 2, 1]
        g = h
        h += 1  # site
        return fs[0]() + h
        """,
    "a nested in an attribute": """
        g = h
        self.kept = lambda: g * 2
        h += 1  # site
        return self.kept() + h
        """,
    "returned closure": """
        def outer(t):
            def inner():
                return t * 2
            return inner

        f = outer(h)
        h += 1  # site
        return f() + h
        """,
    "returned closures": """
        def outer(t):
            if x.sum() > -99:
                return lambda: t * 2
            return lambda: x

        f = outer(h)
        h += 1  # site
        return f() + h
        """,
}


def net(tmp_path, body):
    text = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    return load_source(tmp_path, f"{HEAD}    def forward(self, x):\n{text}\n").Net()


def computes_the_same(model):
    x = torch.randn(3, 3)
    expected = model(x)
    return torch.equal(sm.convert_model(model)(x), expected)


@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
@pytest.mark.parametrize("body", CALLED.values(), ids=CALLED)
def test_a_function_is_not_lost_where_it_is_held(tmp_path, body):
    body = textwrap.dedent(body).strip()
    first = "y = shift(self.lin(x))\nh = self.lin(x)"
    assert computes_the_same(net(tmp_path, f"{first}\n{body}\nreturn h * 2 + y"))


@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
@pytest.mark.parametrize("body", READ.values(), ids=READ)
def test_a_nested_function_reads_what_its_names_stand_for(tmp_path, body):
    model = net(tmp_path, f"h = self.lin(x)\n{textwrap.dedent(body).strip()}")
    found = effects(model)
    assert [v for v in found if v.read or v.effect is not Effect.NEUTRAL], found
    assert computes_the_same(model)


@pytest.mark.parametrize(
    "callees", ["[self.adds, self.relu]", "(self.adds, self.relu)", "self.pair", "self.named"]
)
def test_one_of_several_modules_is_run_as_each_of_them(tmp_path, callees):
    key = "'ab'[len(x.shape) % 2]" if callees == "self.named" else "int(x.shape[0] > -1)"
    model = net(tmp_path, f"m = {callees}[{key}]\nh = self.lin(x)\nreturn m(h)")
    model.pair = nn.ModuleList([model.adds, model.relu])
    model.named = nn.ModuleDict({"a": model.adds, "b": model.relu})
    found = effects(model)
    assert {verdict.effect for verdict in found} == {Effect.NEUTRAL} and len(found) == 2


UNSEEN = {
    "what unknown code returns": "v = unknown(h)",
    "what unknown code was given": "unknown(h)\n    v = h",
}


@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
@pytest.mark.parametrize("made", UNSEEN.values(), ids=UNSEEN)
def test_a_flag_that_the_inputs_reach_elsewhere_is_not_decided_by_them(tmp_path, made):
    """Out of place it computes the same where they lead, and something else on another path."""
    body = f"""
h = self.lin(x)
if x.sum() > 0:
    {made}
    v = self.relu(v)
    return v + h
return self.relu(self.lin(h))"""
    namespace = {}
    exec("def unknown(t):\n    return t", namespace)
    model = net(tmp_path, body)
    type(model).forward.__globals__.update(namespace)
    example, other = -torch.rand(3, 3), torch.rand(3, 3)
    expected = [model(example), model(other)]
    sm.convert_model(model, example)
    assert all(
        torch.equal(model(x), out) for x, out in zip((example, other), expected, strict=True)
    )


LATER = {
    "by its name": "x.mul_(2)",
    "by another name": "y.view(-1).mul_(2)",
    "by a function in a list": "[shift][0](y)",
    "by unknown code": "unknown(y)",
    "in the next iteration": "",
}


@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
@pytest.mark.parametrize("given", [False, True], ids=["without inputs", "with other inputs"])
@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_a_loop_whose_input_is_overwritten_later_is_not_checkpointed(tmp_path, later, given):
    inner = "" if later else "\n        x.mul_(0.5)"
    body = f"""
x = x * 1
y = x
if len(x) > 2:
    for block in self.blocks:
        z = x + 1
        h = block(torch.ones_like(x)) + z{inner}
    {later or "pass"}
    return h.sum() + y.sum()
return y"""
    namespace = {}
    exec("def unknown(t):\n    t.mul_(2)", namespace)
    model = net(tmp_path, body)
    type(model).forward.__globals__.update(namespace)
    sm.convert_model(model, torch.randn(2, 3) if given else None)
    model(torch.randn(3, 3, requires_grad=True)).backward()


def test_a_model_is_not_kept_alive(tmp_path):
    model = net(tmp_path, "fs = [self.relu, self.adds]\nreturn fs[len(x) % 2](self.lin(x))")
    verdicts_from_source(survey_model(model))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
