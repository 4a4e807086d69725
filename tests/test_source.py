"""The text of a function is found, and proven to be the text of what runs."""

import ast
import linecache
import os
import stat
import sys
import types

import pytest
import torch
from sources import load_source
from torch import nn

import safemodules as sm
from safemodules.mutation.finder import find
from safemodules.mutation.found import Obstacle
from safemodules.mutation.resolution import Context
from safemodules.mutation.scopes import function_scope, walk_scopes
from safemodules.mutation.source import NoSourceError, source_of

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        h = torch.sigmoid(x)
        h += 1
        return h
"""


def converts(model):
    sm.convert_model(model)
    x = torch.randn(3)
    expected = torch.sigmoid(x) + 1
    assert sm.is_converted(model) and torch.equal(model(x), expected)


def write(tmp_path, name, data):
    path = tmp_path / f"{name}.py"
    path.write_bytes(data)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    exec(compile(data, str(path), "exec"), vars(module))
    return module


@pytest.mark.parametrize(
    "data",
    [
        NET.encode(),
        NET.replace("\n", "\r\n").encode(),
        NET.replace("    ", "\t").encode(),
        b"\xef\xbb\xbf" + NET.encode(),
        b"# -*- coding: latin-1 -*-\nname = '\xe9\xe8'\n" + NET.encode(),
        ("name = '±é'; " + NET.strip().splitlines()[0] + "\n").encode()
        + NET.replace("import torch\n", "", 1).encode(),
        NET.replace("class Net", "\x0c\nclass Net").encode(),
        NET.replace("\n", "\n\n").encode(),
        NET.rstrip().encode(),
        ("if True:\n" + "".join(f"    {line}\n" for line in NET.splitlines())).encode(),
        (
            "try:\n" + "".join(f"    {line}\n" for line in NET.splitlines()) + "finally: pass"
        ).encode(),
    ],
    ids=["plain", "crlf", "tabs", "bom", "latin-1", "utf-8 before", "form feed", "blank lines"]
    + ["no newline at the end", "inside an if", "inside a try"],
)
def test_text_is_found_in_every_encoding_and_layout(tmp_path, data):
    converts(write(tmp_path, "encoded", data).Net())


def test_a_class_made_inside_a_function_is_found(tmp_path):
    text = "def make(scale):\n" + "".join(f"    {line}\n" for line in NET.splitlines())
    text = text.replace("h += 1", "h += scale") + "    return Net\n"
    converts(load_source(tmp_path, text).make(1)())


def test_a_file_edited_since_the_import_is_refused_and_nothing_is_changed(tmp_path):
    module = load_source(tmp_path, NET)
    model = module.Net()
    path = tmp_path / f"{module.__name__}.py"
    path.write_text(NET.replace("h += 1", "h += 2"))
    os.utime(path, (0, 0))
    with pytest.raises(sm.SourceChangedError, match=r"Net.forward at .*:6.*Import it again"):
        sm.convert_model(model)
    assert type(model) is module.Net
    path.write_text(NET.replace("    def", "    de"))
    os.utime(path, (1, 1))
    with pytest.raises(sm.SourceChangedError, match="does not parse"):
        sm.convert_model(model)


def test_an_edit_that_leaves_the_code_as_it_was_is_accepted(tmp_path):
    module = load_source(tmp_path, NET)
    path = tmp_path / f"{module.__name__}.py"
    path.write_text(NET + "\n# a comment at the end\n")
    os.utime(path, (0, 0))
    converts(module.Net())


def test_a_vanished_file_is_refused(tmp_path):
    module = load_source(tmp_path, NET)
    (tmp_path / f"{module.__name__}.py").unlink()
    linecache.checkcache()
    with pytest.raises(sm.SourceError, match="has vanished"):
        sm.convert_model(module.Net())


def test_a_read_only_file_is_no_hindrance(tmp_path):
    module = load_source(tmp_path, NET)
    (tmp_path / f"{module.__name__}.py").chmod(stat.S_IRUSR)
    converts(module.Net())


def test_code_without_source_is_skipped_with_the_reason():
    namespace = {}
    exec(NET, namespace)
    plan = sm.plan_conversion(namespace["Net"]())
    assert not plan.sites and "made by exec" in str(plan.skipped[0])


@pytest.mark.parametrize("second", ["tanh_", "relu_"])
def test_lambdas_on_one_line_are_told_apart_or_refused(tmp_path, second):
    module = load_source(tmp_path, f"f, g = (lambda t: t.relu_()), (lambda t: t.{second}())\n")
    for function, name in ((module.f, "relu_"), (module.g, second)):
        if sys.version_info < (3, 11):  # whose code does not tell its columns
            with pytest.raises(sm.SourceError, match="write one lambda a line"):
                source_of(function)
        else:
            assert ast.unparse(source_of(function).node) == f"lambda t: t.{name}()"


def test_built_in_functions_have_no_source():
    namespace = {}
    exec("def f(): pass", namespace)
    with pytest.raises(NoSourceError):
        source_of(namespace["f"])


def test_code_made_by_exec_has_no_source_where_other_text_has_that_name(monkeypatch):
    for text in ("import sys\n", "def f(): return 1\n", "not python\n"):
        lines = text.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, "<string>", (len(text), None, lines, "<string>"))
        test_built_in_functions_have_no_source()


class Decorated(nn.Module):
    def forward(self, x):
        return x


def test_a_function_whose_code_was_replaced_is_refused(tmp_path):
    module = load_source(tmp_path, NET + "\n\ndef other(self, x):\n    return x\n")
    module.Net.forward.__code__ = module.other.__code__.replace(
        co_firstlineno=module.Net.forward.__code__.co_firstlineno
    )
    with pytest.raises(sm.SourceChangedError):
        sm.convert_model(module.Net())


# -- scopes and obstacles -------------------------------------------------------------------


def scope_of(text):
    return function_scope(ast.parse(text).body[0], None)


def test_names_bound_in_every_way_are_local():
    scope = scope_of(
        """
def f(a, b=0, *c, d, **e):
    global g
    h = i = 1
    j, (k, *l) = 1, (2, 3)
    m: int = 1
    n += 1
    for o in a: pass
    with a as p: pass
    import q.r, s as t
    from u import v as w
    try: pass
    except ValueError as x: pass
    def y(): z = 1
    [aa for ab in a if (ac := 1)]
    match a:
        case [ad, *ae]: pass
        case {"k": af, **ag}: pass
    g = 2
"""
    )
    expected = "a b c d e h i j k l m n o p q t w x y ac ad ae af ag".split()
    assert sorted(scope.names) == sorted(expected)


@pytest.mark.parametrize(
    ("body", "rebindable"),
    [
        ("SITE(x)", True),
        ("y = [SITE(x) for i in x]", True),
        ("y = [SITE(i) for i in x]", False),
        ("y = [i for i in SITE(x)]", False),
        ("y = [[j for j in SITE(x)] for i in x]", False),
        ("y = lambda: SITE(x)", False),
        ("y = lambda x: SITE(x)", True),
        ("def g(t=SITE(x)): pass", True),
        ("def g(): SITE(x)", False),
        ("def g():\n        nonlocal x\n        SITE(x)", True),
        ("global z\n    SITE(z)", False),
        ("SITE(unknown)", False),
    ],
)
def test_a_name_is_rebound_only_where_that_binds_the_name_that_is_read(body, rebindable):
    node = ast.parse(f"def f(x):\n    {body}").body[0]
    [(call, scope)] = [
        (inner, scope)
        for inner, scope in walk_scopes(node)
        if isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == "SITE"
    ]
    assert scope.rebindable(call.args[0].id) is rebindable


class Obstacles(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.hidden = torch.zeros(3)
        self.lin = nn.Linear(3, 3)

    def forward(self, x, box):
        self.steps += 1  # STATE
        self.hidden.mul_(2)  # STATE
        self.hidden[0] = 1  # STATE
        x.data.add_(1)  # BYPASS
        self.lin.weight.data.clamp_(0)  # BYPASS
        x.view(-1).add_(1)  # VIEW
        x.T.add_(1)  # VIEW
        x.detach().zero_()  # VIEW
        x[0].view(-1)[1:].add_(1)  # VIEW
        box.tensor.add_(1)  # ATTRIBUTE
        (x if box else box).add_(1)  # CHOICE
        y = [t.add_(1) for t in x]  # NAME
        y = [x[len(box)].add_(1)]  # KEYS
        torch.max(x, 0, out=(x, x))  # ARGUMENTS
        torch.relu_(*y)  # ARGUMENTS
        for x[0] in y:  # TARGET
            pass
        x[0].add_(1).mul_(2)  # INNER
        nn.init.zeros_(self.lin.weight)
        x.requires_grad_().detach_()
        return x


def test_what_cannot_be_rewritten_names_its_obstacle():
    source = source_of(Obstacles.forward)
    findings = find(source.node, Context(Obstacles.forward, Obstacles, (Obstacles(),)))
    for site in findings.sites:
        line = source.file.line(site.lineno)
        expected = line.partition("# ")[2]
        if expected == "INNER" and site.op == "add_":
            assert site.obstacle is None
            continue
        assert site.obstacle is Obstacle[expected], (line, site.op, site.obstacle)
    lines = {site.lineno for site in findings.sites}
    start = source.node.lineno
    text = source.file.data.decode().splitlines()[start : source.node.end_lineno]
    assert {
        n for n, line in enumerate(text, start + 1) if line.partition("# ")[2].isupper()
    } == lines


def no_tensor(x, box, *args, n=0, text="", **kwargs):
    kwargs["cache"] = x
    kwargs[text] = x
    box["masks"] = x
    box[f"x_{n}"] = x
    text += " and more"
    box.names += (x,)
    box.list += [x]
    box.texts += f"{n}"
    box[n] = tuple(box[n])
    args = list(args)
    args[n] = x
    return kwargs, args


def perhaps_a_tensor(x, box, *args, n=0, text="", **kwargs):
    n += x
    box[n] = x
    box[text] = x
    box.count += n
    for kwargs in box:
        kwargs[n] = x
    x[..., 0] = 1
    args = args[0]
    args[n] = x


def test_what_surely_writes_no_tensor_is_no_site():
    for function, expected in ((no_tensor, False), (perhaps_a_tensor, True)):
        source = source_of(function)
        found = {site.lineno for site in find(source.node, Context(function)).sites}
        text = source.file.data.decode().splitlines()
        lines = range(source.node.lineno + 1, source.node.end_lineno + 1)
        written = {n for n in lines if " = " in text[n - 1] or " += " in text[n - 1]}
        assigned = {n for n in written if "args = " not in text[n - 1]}
        assert found == (assigned if expected else set())
