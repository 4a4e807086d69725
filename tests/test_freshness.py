"""Without example inputs only what is plainly fresh is swapped."""

import copy
import textwrap
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from sources import load_source
from torch import nn

import safemodules as sm
from safemodules.mutation.finder import find
from safemodules.mutation.fresh_tables import FRESH_FUNCTIONS, FRESH_METHODS, FRESH_MODULES
from safemodules.mutation.freshness import analyse_text
from safemodules.mutation.resolution import Context
from safemodules.mutation.source import source_of


def decisions(model):
    return {site.site.source: site.decision for site in sm.plan_conversion(model).sites}


def load(tmp_path, body, head=""):
    """A module `Net` whose forward has a given body, from a file of its own."""
    path = tmp_path / "net.py"
    text = textwrap.dedent(
        """
        import torch
        import torch.nn.functional as F
        from torch import nn

        HEAD
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(3, 3)
                self.bn = nn.BatchNorm1d(3)
                self.relu = nn.ReLU(inplace=True)
                self.drop = nn.Dropout(0.5, inplace=True)
                self.identity = nn.Identity()
                self.seq = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3))

            def forward(self, x):
        """
    ).replace("HEAD", textwrap.dedent(head))
    path.write_text(text + textwrap.indent(textwrap.dedent(body).strip(), " " * 8) + "\n")
    namespace = {"__name__": "fresh_net", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    return namespace["Net"]()


SWAPPED = {
    "sum of a product": "h = self.lin(x) * 2\nh += 1  # site\nreturn h",
    "result of a layer": "h = self.lin(x)\nh.mul_(2)  # site\nreturn h",
    "chain on one name": "h = torch.sigmoid(x)\nh.add_(1).mul_(x)  # site\nreturn h",
    "chain in a return": "h = torch.sigmoid(x)\nreturn h.add_(1).mul_(x)  # site",
    "temporary": "return torch.tanh(x).add_(1)  # site",
    "function on a layer": "return F.relu(self.bn(x), inplace=True)  # site",
    "both branches fresh": """
        if x.sum() > 0:
            h = self.lin(x)
        else:
            h = self.bn(x)
        h += x  # site
        return h
        """,
    "remade in each iteration": """
        for _ in range(2):
            h = self.lin(x)
            h += 1  # site
            x = torch.tanh(h)
        return x
        """,
    "slice of a result": "h = self.lin(x).softmax(1)\nh[:, 0] = 0  # site\nreturn h",
    "slice added to": "h = torch.tanh(x)\nh[:, :1] += 1  # site\nreturn h",
    "read before": "h = self.lin(x)\ny = h.sigmoid()\nh += y  # site\nreturn h",
    "chunks": "a, b = self.lin(x).chunk(2, 1)\na += 1  # site\nreturn a",
    "captured by a lambda": "h = self.lin(x)\nf = lambda: h\nh += 1  # site\nreturn f() + h",
    "named in a comprehension": "h = self.lin(x)\nfs = [h for _ in '1']\nh += 1  # site\nreturn h",
    "alias made later in the loop": """
        h, y = self.lin(x), 0
        h = self.lin(x)
        for _ in range(2):
            h += 1  # site
            y = h
        return y + h
        """,
    "shape read before": "h = self.lin(x)\nn = h.shape[0]\nh += n  # site\nreturn h",
}

KEPT = {
    "argument": "x += 1  # site\nreturn x",
    "second name": "h = self.lin(x)\ny = h\nh += 1  # site\nreturn y * h",
    "view taken before": "h = self.lin(x)\ny = h[:, :1]\nh += 1  # site\nreturn y * h",
    "kept in a list": "h = self.lin(x)\nfs = [h]\nh += 1  # site\nreturn fs[0] + h",
    "appended": "fs = []\nh = self.lin(x)\nfs.append(h)\nh += 1  # site\nreturn fs[0] + h",
    "kept on self": "h = self.lin(x)\nself.h = h\nh += 1  # site\nreturn h",
    "given to a function": "h = self.lin(x)\ny = keep(h)\nh += 1  # site\nreturn h + y",
    "layer that returns its input": "h = self.identity(x)\nh += 1  # site\nreturn h",
    "dropout of an argument": "h = F.dropout(x, 0.5, self.training)\nh += 1  # site\nreturn h",
    "one branch an alias": """
        h = self.lin(x)
        if x.sum() > 0:
            h = x
        h += 1  # site
        return h
        """,
    "held by an expression": "h = self.lin(x)\ny = h + F.relu(h, inplace=True)  # site\nreturn y",
    "held by a call": "h = self.lin(x)\ny = torch.add(h, h.mul_(2))  # site\nreturn y",
    "held by an augmented assignment": "h = self.lin(x)\nh += h.relu_()  # site\nreturn h",
    "either of two": "h = self.lin(x)\ny = h if self.training else x\ny += 1  # site\nreturn y + h",
    "element of a fresh list": "fs = [x] + [x]\nfs[0] += 1  # site\nreturn x",
    "result of a method with a second name": """
        h = self.lin(x)
        y = h.add_(1)
        h.mul_(2)  # site
        return y
        """,
    "second name of what a method returns": """
        h = self.lin(x)
        y = h.relu_()
        y.mul_(2)  # site
        return h + y
        """,
    "second name of what a function returns": """
        h = self.lin(x)
        y = F.relu(h, inplace=True)
        y += 1  # site
        return h + y
        """,
    "alias in a try": """
        h = self.lin(x)
        try:
            y = h
        except ValueError:
            y = x
        h += 1  # site
        return y
        """,
    "alias by a with": """
        h = self.lin(x)
        with holder(h):
            h += 1  # site
        return h
        """,
}
HEAD = """
kept = []
def keep(t):
    kept.append(t)
    return t
class holder:
    def __init__(self, t): self.t = t
    def __enter__(self): return self.t
    def __exit__(self, *e): return None
"""


def verdicts_at_site(model):
    found = {s for source, s in decisions(model).items() if "# site" in source}
    assert found, "no site was found"
    return found


@pytest.mark.parametrize("body", SWAPPED.values(), ids=SWAPPED)
def test_a_plainly_fresh_tensor_is_swapped_and_computes_the_same(tmp_path, body):
    model = load(tmp_path, body, HEAD)
    assert verdicts_at_site(model) == {"swap"}
    x = torch.randn(4, 3)
    original = copy.deepcopy(model)
    sm.convert_model(model)
    for mode in (True, False):
        with torch.no_grad():  # with a graph, a write to one of several views is refused
            assert torch.equal(model.train(mode)(x.clone()), original.train(mode)(x.clone()))


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_what_may_have_a_second_name_is_kept(tmp_path, body):
    assert verdicts_at_site(load(tmp_path, body, HEAD)) == {"keep"}


def flags(tmp_path, body):
    model = load(tmp_path, body)
    found = {}
    for site in sm.plan_conversion(model).sites:
        if str(site.site.kind) == "module flag":
            found[site.site.module] = site.decision
    return found


@pytest.mark.parametrize(
    ("body", "name", "decision"),
    [
        ("return self.relu(self.lin(x))", "relu", "swap"),
        ("h = self.lin(x)\nh = self.relu(h)\nreturn h", "relu", "swap"),
        ("h = self.lin(x)\nreturn self.relu(h)", "relu", "swap"),
        ("h = self.lin(x)\ny = self.relu(h)\nreturn y + h", "relu", "keep"),
        ("return self.relu(x) + x", "relu", "keep"),
        ("h = self.relu(self.lin(x))\nreturn self.relu(x) + h", "relu", "keep"),
        ("return self.relu(self.drop(self.lin(x)))", "relu", "swap"),
        ("return self.relu(self.drop(x))", "relu", "keep"),
        ("return self.seq(self.lin(x))", "seq.0", "swap"),
        ("return self.seq(x) + x", "seq.0", "keep"),
        ("for m in self.seq:\n    x = m(x)\nreturn x", "seq.0", "keep"),
        ("return self.seq[0](self.lin(x))", "seq.0", "swap"),
        ("f = self.relu\nreturn f(self.lin(x)) + f(x)", "relu", "keep"),
        ("return [m(x) for m in self.children()][0]", "relu", "keep"),
        ("return x", "relu", "keep"),
    ],
)
def test_a_flag_is_switched_only_if_every_call_gives_a_fresh_tensor(tmp_path, body, name, decision):
    assert flags(tmp_path, body)[name] == decision


def test_flags_in_a_sequential_depend_on_the_layer_before():
    chain = nn.Sequential(
        OrderedDict(
            first=nn.ReLU(inplace=True),
            conv=nn.Conv2d(1, 1, 1),
            second=nn.ReLU(inplace=True),
            drop=nn.Dropout(),
            third=nn.ReLU(inplace=True),
            flat=nn.Flatten(),
            fourth=nn.ReLU(inplace=True),
        )
    )
    found = {site.site.module: site.decision for site in sm.plan_conversion(chain).sites}
    # the first one overwrites the caller's input
    assert found == {"first": "keep", "second": "swap", "third": "swap", "fourth": "swap"}


def test_a_hook_that_sees_the_tensor_keeps_the_flag():
    chain = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    chain[0].register_forward_hook(lambda module, args, out: None)
    assert sm.plan_conversion(chain).sites[0].decision == "keep"


def test_writes_to_a_new_tensor_that_nobody_has_read_stay_in_place(tmp_path):
    body = """
        out = x.new_zeros(4, 3)
        for i in range(4):
            out[i] = self.lin(x[i])  # site
        return out
        """
    assert verdicts_at_site(load(tmp_path, body)) == {"keep"}
    body = "m = torch.ones_like(x)\ny = self.lin(x) * m\nm[0] = 2  # site\nreturn y * m"
    assert verdicts_at_site(load(tmp_path, body)) == {"swap"}


ARGUMENTS = {
    nn.Bilinear: (2, 2, 2),
    nn.Embedding: (5, 2),
    nn.GroupNorm: (1, 2),
    nn.LayerNorm: (2,),
    nn.LocalResponseNorm: (2,),
    nn.GLU: (1,),
    nn.Softmax: (1,),
    nn.LogSoftmax: (1,),
    nn.Linear: (2, 2),
}


# SyncBatchNorm runs on accelerators alone
@pytest.mark.parametrize(
    "cls", sorted(FRESH_MODULES - {nn.SyncBatchNorm}, key=lambda cls: cls.__name__)
)
@pytest.mark.parametrize("training", [True, False])
def test_modules_of_the_table_return_new_memory(cls, training):
    name = cls.__name__
    dims = next(
        (int(name[i]) for i in range(len(name)) if name[i : i + 2] in ("1d", "2d", "3d")), 2
    )
    if name.startswith("Conv"):
        arguments = (2, 2, 1)
    elif "Pool" in name or name.startswith(("BatchNorm", "InstanceNorm")):
        arguments = (1,) if "Pool" in name and "Adaptive" not in name else (2,)
    else:
        arguments = ARGUMENTS.get(cls, ())
    module = cls(*arguments).train(training)
    shape = (2, 2, *[2] * dims) if name not in ("Linear", "LayerNorm", "Bilinear") else (2, 2)
    x = torch.randn(shape)
    inputs = (x, x) if cls is nn.Bilinear else (x.abs().long(),) if cls is nn.Embedding else (x,)
    out = module(*inputs)
    storages = {t.untyped_storage().data_ptr() for t in (*inputs, *module.state_dict().values())}
    assert out.untyped_storage().data_ptr() not in storages


@pytest.mark.parametrize("name", sorted(n for n in FRESH_METHODS if hasattr(torch.Tensor, n)))
def test_methods_of_the_table_return_new_memory(name):
    x = torch.rand(3, 3) + 0.5
    two = {"addmm": (x, x), "new_full": ((2,), 1.0), "full_like": (1.0,)}
    operand = ["add", "bmm", "div", "masked_fill", "matmul", "mm", "mul", "pow", "sub"]
    if name in ("bmm",):
        x = x[None]
    arguments = two.get(name, ())
    if name in operand:
        arguments = (x,) if name != "masked_fill" else (x > 1, 0.0)
    elif name in ("softmax", "log_softmax", "cumsum", "cumprod"):
        arguments = (0,)
    elif name in ("new_empty", "new_ones", "new_zeros"):
        arguments = ((2,),)
    elif name == "clamp":
        arguments = (0.1,)
    out = getattr(x, name)(*arguments)
    assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_functions_of_the_table_are_not_in_place():
    assert F.relu in FRESH_FUNCTIONS and torch.relu_ not in FRESH_FUNCTIONS
    assert torch.reshape not in FRESH_FUNCTIONS and F.dropout not in FRESH_FUNCTIONS


BEYOND = {
    "break": "for i in range(3):\n    if i:\n        y = h\n        break\n    h = torch.sin(x)",
    "continue": "for i in range(3):\n    y = h\n    if i:\n        continue\n    h = torch.sin(x)",
    "a block that swallows": "with suppress(ValueError):\n    y = h\n    h = torch.sin(x)",
    "a plus": "y = +h",
    "all names": "y = locals()['h']",
}


@pytest.mark.parametrize("body", BEYOND.values(), ids=BEYOND)
def test_paths_that_are_not_followed_prove_nothing(tmp_path, body):
    body = textwrap.indent(body, " " * 4)
    text = "from contextlib import suppress\nimport torch\n\n\n"
    text += f"def f(x):\n    h = torch.sin(x)\n{body}\n    h += 1\n    return y\n"
    function = load_source(tmp_path, text).f
    source, context = source_of(function), Context(function)
    sites = find(source.node, context).sites
    assert sites and not analyse_text(source.node, context, sites).sites
