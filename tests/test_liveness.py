"""Verdicts from source alone: who may read what a site overwrites."""

import textwrap

import pytest
import torch
from sources import load_source
from torch import nn

from safemodules.conversion.decisions import (
    UNDECIDED,
    decide_without_inputs,
    verdicts_from_source,
)
from safemodules.conversion.stale_reads import StaleReads
from safemodules.conversion.survey import survey_model
from safemodules.conversion.trial import converted
from safemodules.mutation.liveness import kinds, run
from safemodules.mutation.liveness.verdicts import Effect
from safemodules.trees import CallArguments

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn


class Adds(nn.Module):
    def forward(self, t):
        t += 1  # in a child
        return t


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, t):
        self.kept = t
        return t * 1


def shift(t):
    t += 1  # in a function
    return t


def first(ts):
    return ts[0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5, inplace=True)
        self.adds = Adds()
        self.holder = Holder()
        self.none = None
        self.on = True
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.register_buffer("table", torch.zeros(3))

"""

NEUTRAL = {
    "rebound": "h = self.lin(x)\nh += 1  # site\nreturn h",
    "a child that returns it": "h = self.lin(x)\nh = self.adds(h)\nreturn h * h",
    "a function that returns it": "h = self.lin(x)\nreturn shift(h)",
    "a list that is not read again": "h = self.lin(x)\nfs = [h]\nh += 1  # site\nreturn h",
    "another entry": "fs = (self.lin(x), self.lin(x))\nh = fs[0]\nh += 1  # site\nreturn h + fs[1]",
    "made anew in each pass": """
        outs = []
        for block in self.blocks:
            x = block(x)
            x.relu_()  # site
            outs.append(x)
        return torch.cat(outs)
        """,
    "a branch that cannot be taken": """
        h = self.lin(x)
        y = h if self.none is not None else x
        h += 1  # site
        return h + y
        """,
    "an early return": """
        h = self.lin(x)
        if x.sum() > 0:
            return h
        y = h
        h = h * 2
        h += 1  # site
        return h + y
        """,
    "only its shape is read": "h = self.lin(x)\ny = h\nh += 1  # site\nreturn h.view(y.shape)",
    "a form of it": "h = self.lin(x)\ny = h\nh += 1  # site\nreturn h + torch.zeros_like(y)",
    "a view that is dropped": "h = self.lin(x)\ny = h[:, :1]\ny = x\nh += 1  # site\nreturn h + y",
    "a comprehension": """
        hs = [block(x) for block in self.blocks]
        h = torch.stack(hs).sum(0)
        h += 1  # site
        return h
        """,
    "a nested function": """
        h = self.lin(x)

        def twice(t):
            return t * 2

        y = twice(h)
        h += 1  # site
        return h + y
        """,
    "a flag": "return self.relu(self.lin(x))",
    "dropout of a result": "h = self.lin(x)\nh = self.drop(h)\nreturn h + x",
}
READ = {
    "a second name": "h = self.lin(x)\ny = h\nh += 1  # site\nreturn y * h",
    "a view": "h = self.lin(x)\ny = h[:, :1]\nh += 1  # site\nreturn y * h",
    "a transposed view": "h = self.lin(x)\ny = h.t()[0]\nh += 1  # site\nreturn y.sum() * h",
    "one of several views": "h = self.lin(x)\na, b = h.chunk(2, 1)\na += 1  # site\nreturn h",
    "detached": "h = self.lin(x)\ny = h.detach()\nh += 1  # site\nreturn h + y",
    "perhaps a copy": "h = self.lin(x)\ny = h.reshape(-1)\nh += 1  # site\nreturn y.sum() + h",
    "a list": "fs = []\nh = self.lin(x)\nfs.append(h)\nh += 1  # site\nreturn torch.cat(fs) + h",
    "a dict": "d = {'h': self.lin(x)}\nh = d['h']\nh += 1  # site\nreturn d['h'] + h",
    "a tuple": "p = (self.lin(x), x)\nh = p[0]\nh += 1  # site\nreturn p[0] + h",
    "an attribute": "h = self.lin(x)\nself.h = h\nh += 1  # site\nreturn h",
    "a child that keeps it": "h = self.lin(x)\ny = self.holder(h)\nh += 1  # site\nreturn h + y",
    "a closure": """
        h = self.lin(x)
        y = h

        def later():
            return y * 2

        h += 1  # site
        return later() + h
        """,
    "what a function returns of a list": """
        h = self.lin(x)
        y = first([h, x])
        h += 1  # site
        return y + h
        """,
    "a child that overwrites": "h = self.lin(x)\nself.adds(h)  # site\nreturn h",
    "a function that overwrites": "h = self.lin(x)\nshift(h)  # site\nreturn h",
    "returned twice": "h = self.lin(x)\ny = h\nh += 1  # site\nreturn h, y",
    "the caller's": "x += 1  # site\nreturn x",
    "the caller's, through dropout": "h = F.dropout(x, 0.5)\nh += 1  # site\nreturn h",
    "on one path": """
        h = self.lin(x)
        y = x
        if x.sum() > 0:
            y = h
        h += 1  # site
        return y + h
        """,
    "in a later pass": """
        h, y = self.lin(x), x
        for i in range(3):
            z = h
            h += 1  # site
            y = y + z
        return y
        """,
    "passed along in a while": """
        h = self.lin(x)
        a = b = c = x
        while x.sum() < 3:
            a, b, c = b, c, h
            h += 1  # site
            x = x + a
        return x
        """,
    "in the third pass": """
        h = self.lin(x)
        y, i = x, 0
        while x.sum() < 3:
            if i == 2:
                y = h
                h += 1  # site
            i = i + 1
            x = x + 1
        return y + h
        """,
    "in the third pass, counted by an attribute": """
        h = self.lin(x)
        y, self.count = x, 0
        while x.sum() < 3:
            if self.count == 2:
                y = h
                h += 1  # site
            self.count = self.count + 1
            x = x + 1
        return y + h
        """,
    "in the third pass, counted in place": """
        h = self.lin(x)
        y, self.count = x, 0
        while x.sum() < 3:
            if self.count == 2:
                y = h
                h += 1  # site
            self.count += 1
            x = x + 1
        return y + h
        """,
    "counted in place": """
        h = self.lin(x)
        self.count = 0
        self.count += 1
        if self.count == 1:
            y = h
            h += 1  # site
            return y + h
        return h
        """,
    "in the third pass, through functions": """
        h = self.lin(x)
        first, second, third = torch.sin, torch.cos, shift
        for t in x:
            first(h)  # site
            first, second, third = second, third, first
        return h
        """,
    "after a break": """
        h = self.lin(x)
        for i in range(3):
            y = h
            if x.sum() > i:
                break
            y = x
        h += 1  # site
        return y + h
        """,
    "in a handler": """
        h = self.lin(x)
        try:
            y = h
            x = self.lin(x)
        except ValueError:
            y = x
        h += 1  # site
        return y
        """,
    "overwritten again": "h = self.lin(x)\ny = h[:]\ny += 1  # site\nh[...] = 2\nreturn h + y",
    "zeroed again": "h = self.lin(x)\ny = h[:]\ny += 1  # site\nh.zero_()\nreturn h + y",
    "copied to again": "h = self.lin(x)\ny = h[:]\ny += 1  # site\nh.copy_(x)\nreturn h + y",
    "data of a factory": "h = self.lin(x)\ny = h\nh += 1  # site\nreturn h + x.new_tensor(y)",
    "value of a factory": "h = self.lin(x)\ny = h[0, 0]\nh += 1  # site\nreturn x.new_full((), y)",
    "held by an expression": "h = self.lin(x)\nreturn h + F.relu(h, inplace=True)  # site",
    "held by an augmented assignment": "h = self.lin(x)\nh += h.relu_()  # site\nreturn h",
    "state": "h = self.table\nh += 1  # site\nreturn x + 1",
    "the skip of a flag": "h = self.lin(x)\nreturn self.relu(h) + h",
}


def net(tmp_path, body):
    body = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    return load_source(tmp_path, f"{HEAD}    def forward(self, x):\n{body}\n").Net()


def effects(model):
    """Verdicts of the sites that run, by whether they are the one that is marked."""
    return [v for v in verdicts_from_source(survey_model(model)).sites.values()
            if v.effect is not Effect.UNREACHED]  # fmt: skip


def stale(model, x):
    """What a run with every site swapped finds."""
    survey = survey_model(model)
    sites = [s for s in survey.sites() if getattr(s, "obstacle", None) is None]
    watch = StaleReads(sites)
    with converted(survey, sites):
        watch.run(model, CallArguments((x,), {}))
    return watch.found


@pytest.mark.parametrize("body", NEUTRAL.values(), ids=NEUTRAL)
def test_nobody_reads_the_old_tensor(tmp_path, body):
    model = net(tmp_path, body)
    assert {verdict.effect for verdict in effects(model)} == {Effect.NEUTRAL}
    assert not stale(model, torch.randn(3, 3))


@pytest.mark.parametrize("body", READ.values(), ids=READ)
def test_somebody_may_read_the_old_tensor(tmp_path, body):
    found = effects(net(tmp_path, body))
    assert [v for v in found if v.read or v.effect is not Effect.NEUTRAL], found


SURE = ("overwritten again", "zeroed again", "copied to again", "a second name", "a view",
        "one of several views", "a list", "a dict", "an attribute",
        "a child that overwrites", "a function that overwrites", "the caller's",
        "the skip of a flag")  # fmt: skip


@pytest.mark.parametrize("name", SURE)
def test_a_read_that_is_sure_is_load_bearing_and_has_a_line(tmp_path, name):
    model = net(tmp_path, READ[name])
    found = [v for v in effects(model) if v.effect is Effect.LOAD_BEARING]
    assert found
    assert all(v.reason for v in found)
    assert stale(model, torch.randn(3, 3))


@pytest.mark.parametrize("signature", ["*xs", "**xs"])
def test_the_model_may_be_given_any_number_of_arguments(tmp_path, signature):
    values = "xs" if signature == "*xs" else "xs.values()"
    body = f"""
        y = self.table * 1
        z = self.table * 1
        for t in {values}:
            z = y
            y += t.sum()  # site
        return z
        """
    model = load_source(
        tmp_path,
        f"{HEAD}    def forward(self, {signature}):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), " " * 8),
    ).Net()
    assert all(verdict.effect is not Effect.NEUTRAL for verdict in effects(model))


def net_with(tmp_path, function, body):
    """A model whose forward calls a function that has no source."""
    namespace = {}
    exec(function, namespace)
    model = net(tmp_path, body)
    type(model).forward.__globals__.update(namespace)
    return model


def test_what_is_not_looked_into_is_unknown_with_its_reason(tmp_path):
    body = "h = self.lin(x)\ny = keep(h)\nh += 1  # site\nreturn h + y"
    [verdict] = effects(net_with(tmp_path, "def keep(t):\n    return t", body))
    assert verdict.effect is Effect.UNKNOWN
    assert "held elsewhere" in verdict.reason


# Which module is called is known, or that it is not known.
CHOSEN = {
    "counted from one": "for i, m in enumerate(self.mods, start=1):\n    h = m(h)",
    "counted from elsewhere": "for i, m in enumerate(self.mods, int(x.sum())):\n    h = m(h)",
    "a part of a sequence": "h = self.seq[0:2](h)",
    "one of two": "m = self.relu if x.sum() > 0 else self.adds\nh = m(h)",
    "in a mixed list": "fs = [self.relu, x]\nh = fs[0](h)",
    "in a mixed dict": "fs = {'m': self.relu, 'x': x}\nh = fs['m'](h)",
    "stored in a list": "fs = [x]\nfs[0] = self.relu\nh = fs[0](h)",
    "appended": "fs = []\nfs.append(self.relu)\nh = fs[0](h)",
    "handed on in a tuple": "h = foreign(((self.relu, x), h))",
    "handed on in a mixed list": "h = foreign([[self.relu, x], h])",
}


@pytest.mark.parametrize("body", CHOSEN.values(), ids=CHOSEN)
def test_a_module_that_may_be_called_is_not_called_unreached(tmp_path, body):
    function = "def foreign(given):\n    return given[0][0](given[1])"
    model = net_with(tmp_path, function, f"h = self.lin(x)\n{body}\nreturn h * 1")
    model.mods = nn.ModuleList([nn.ReLU(inplace=True), nn.Tanh()])
    model.seq = nn.Sequential(nn.ReLU(inplace=True), nn.Tanh(), nn.Tanh())
    ran = []
    for module in (m for m in model.modules() if isinstance(m, nn.ReLU)):
        module.register_forward_hook(lambda module, *_: ran.append(module))
    model(torch.rand(2, 3))
    for module in model.modules():
        module._forward_hooks.clear()
    survey = survey_model(model)
    verdicts = verdicts_from_source(survey).sites
    (module,) = ran
    (site,) = (s for s in survey.sites() if getattr(s, "module", None) is module)
    assert verdicts[site].effect is not Effect.UNREACHED


def test_what_is_kept_by_unknown_code_is_perhaps_read(tmp_path):
    body = "h = self.lin(keep(self.lin(x)))\nkeep(h)\nh = self.relu(h)\nreturn h * 1"
    model = net_with(tmp_path, "def keep(t):\n    return t", body)
    [verdict] = effects(model)
    assert verdict.effect is Effect.UNKNOWN and stale(model, torch.randn(2, 3)) == {}


# What code that is not looked into returns may be a list of what it was given.
LISTS = {
    "added": "gs = fs + fs\ng = gs[0]\ng += 1  # site\nreturn fs[0] * g",
    "repeated": "gs = fs * 2\ng = gs[1]\ng += 1  # site\nreturn fs[0] * g",
    "added to": "gs = [x] + fs\ng = gs[1]\ng += 1  # site\nreturn fs[0] * g",
    "copied": "gs = fs.copy()\ng = gs[0]\ng += 1  # site\nreturn fs[0] * g",
    "whatever it was updated to": "g = fs.update(x)\ng.add_(1)  # site\nreturn x * g",
    "of what it was updated with": "g = fs.update(x)\ng += 1  # site\nreturn x * g",
}


@pytest.mark.parametrize("body", LISTS.values(), ids=LISTS)
def test_a_list_from_elsewhere_may_hold_what_others_hold(tmp_path, body):
    function = "def pack(*ts):\n    return list(ts)"
    model = net_with(tmp_path, function, f"fs = pack(self.lin(x))\n{body}")
    assert Effect.NEUTRAL not in {verdict.effect for verdict in effects(model)}


STRIDED = {
    "transposed": "h = self.lin(x).t()\nh /= 3  # site\nreturn h @ x",
    "permuted by a function": "h = turned(self.lin(x))\nh /= 3  # site\nreturn h @ x",
    "permuted, then viewed": "h = self.lin(x).permute(1, 0)[None]\nh /= 3  # site\nreturn h @ x",
    "a method": "h = self.lin(x).t()\nh.div_(3)  # site\nreturn h @ x",
    "a flag": "h = self.lin(x).t()\nreturn self.relu(h) @ x",
    "through dropout": "h = F.dropout(self.lin(x).t(), 0.5)\nh /= 3  # site\nreturn h @ x",
    "on one path": """
        h = self.lin(x)
        if x.sum() > 0:
            h = h.t()
        h /= 3  # site
        return h @ x
        """,
}


@pytest.mark.parametrize("body", STRIDED.values(), ids=STRIDED)
def test_a_write_through_other_strides_is_left_to_example_inputs(tmp_path, body):
    """Out of place the gradient has other strides, and sums of it are rounded otherwise."""
    text = (
        HEAD
        + "    def forward(self, x):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    )
    model = load_source(
        tmp_path,
        text.replace("\nclass Net", "\ndef turned(t):\n    return t.permute(1, 0)\n\n\nclass Net"),
    ).Net()
    found = decide_without_inputs(survey := survey_model(model), verdicts_from_source(survey).sites)
    ran = [
        d
        for s, d in found.items()
        if "in a " not in s.site.source and d.reason.startswith(UNDECIDED)
    ]
    assert [decision.verdict for decision in ran] == ["keep"]
    assert "another order" in ran[0].reason


def test_a_call_that_takes_too_long_is_given_up_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_STEPS", 400)
    lines = "\n".join(f"    t = t + {i}" for i in range(200))
    body = "y = long(self.lin(x))\nh = self.lin(y)\nh += 1  # site\nreturn h + y"
    text = f"\ndef long(t):\n    t += 1\n{lines}\n    return t\n"
    model = load_source(
        tmp_path,
        HEAD.replace("\nclass Net", f"{text}\n\nclass Net")
        + "    def forward(self, x):\n"
        + textwrap.indent(body, " " * 8)
        + "\n",
    ).Net()
    found = {verdict.effect: verdict.reason for verdict in effects(model)}
    assert found.keys() == {Effect.NEUTRAL, Effect.UNKNOWN}
    assert found[Effect.UNKNOWN] == "it is too long"


def test_many_tensors_that_are_held_elsewhere_are_one(tmp_path):
    calls = "\n".join(f"y{i} = pack(self.lin(x))\nys.append(y{i})" for i in range(30))
    rest = """
        y = ys[int(x.sum())] if x.sum() > 0 else x
        if x.sum() > 1:
            y = pack(y)
        h = self.lin(y)
        h += 1  # site
        g = ys[1][0]
        g += 1
        return h + y
        """
    body = f"ys = [x]\n{calls}\n{textwrap.dedent(rest)}"
    model = net_with(tmp_path, "def pack(*ts):\n    return list(ts)", body)
    first, second = effects(model)
    assert first.effect is Effect.NEUTRAL
    assert second.effect is Effect.UNKNOWN


@pytest.mark.parametrize(
    ("name", "fresh"),
    [("relu", True), ("matmul", True), ("cat", True), ("reshape", False), ("dropout", False),
     ("view", False), ("einsum", False), ("to", False), ("chunk", False), ("add", True)],
)  # fmt: skip
def test_what_returns_new_memory_is_read_off_torch_where_that_can_be_relied_on(name, fresh):
    assert kinds.is_fresh(name) is fresh


COMPOSITES = {
    "conv2d": lambda f, x: f(x[None, None], torch.ones(1, 1, 1, 1)),
    "linear": lambda f, x: f(x, torch.eye(3)),
    "layer_norm": lambda f, x: f(x, (3,)),
    "softmax": lambda f, x: f(x, 1),
    "adaptive_avg_pool2d": lambda f, x: f(x[None], 3),
    "interpolate": lambda f, x: f(x[None, None], scale_factor=1),
    "normalize": lambda f, x: f(x),
    "relu6": lambda f, x: f(x),
    "hardswish": lambda f, x: f(x),
    "max_pool2d": lambda f, x: f(x[None], 1),
    "avg_pool1d": lambda f, x: f(x, 1),
    "batch_norm": lambda f, x: f(x, None, None, training=True),
    "repeat_interleave": lambda f, x: f(x, 1, dim=0),
    "tensor": lambda f, x: f([x[0, 0], x[0, 1]]),
    "sort": lambda f, x: f(x[:1, :1])[0],
    "topk": lambda f, x: f(x[:1, :1], 1)[0],
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_of_the_table_return_new_memory_even_where_nothing_is_to_do(name):
    x = torch.randn(3, 3)
    function = getattr(nn.functional, name, None) or getattr(torch, name)
    out = COMPOSITES[name](function, x)
    assert name in kinds.FRESH_COMPOSITES
    assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
