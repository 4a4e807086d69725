"""Random programs compute the same after conversion, in every mode and on other inputs."""

import copy
import re
import tempfile
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, reject
from program_strategy import HEAD, INIT, programs
from sources import load_source
from tensor_strategy import bits, examples, storage_bits

import safemodules as sm

pytestmark = pytest.mark.filterwarnings("ignore")


def build(text):
    """The model of a program, while its file is there; always with the same weights."""
    with tempfile.TemporaryDirectory() as directory:
        module = load_source(Path(directory), text)
        torch.manual_seed(0)
        yield module.Net().double()


# Where the operand is a column of the target, torch reads it in part as it was overwritten, and
# its gradient does not know: see the test below.
OVERLAPPING = re.compile(r"(?:[-+*/|&^]=|\w_\().*\[:, :1\]")


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 4, dtype=torch.float64, generator=generator) * 2 - 1


EXAMPLE = inputs(3, 0)
INPUTS = (EXAMPLE, inputs(5, 2))
TRIAL_SEED = 0  # with which a conversion runs the example inputs
MODES = [(train, graph) for train in (True, False) for graph in (True, False)]


@dataclass
class Run:
    """What one run of a model has shown."""

    outputs: list
    buffers: dict
    handed: bytes
    gradients: list | None


def run(model, x, *, train, graph, seed=7):
    """Run a model once, from one seed, and put its buffers back."""
    saved = {name: t.clone() for name, t in model.named_buffers()}
    model.train(train)
    leaf = x.clone().requires_grad_(graph)
    handed = leaf * 1 if graph else leaf  # wild programs write to it
    torch.default_generator.manual_seed(seed)
    with torch.set_grad_enabled(graph):
        result = model(handed)
    outputs = list(result) if isinstance(result, list) else [result]
    buffers = {name: t.clone() for name, t in model.named_buffers()}
    seen = storage_bits(handed.detach())
    found = None
    if graph:
        wanted = [leaf, *model.parameters()]
        try:
            found = list(torch.autograd.grad(weighed(outputs), wanted, allow_unused=True))
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
    for name, buffer in model.named_buffers():
        buffer.copy_(saved[name])
    return Run([o.detach() for o in outputs], buffers, seen, found)


def weighed(outputs):
    """A number in which every element of the outputs counts differently."""
    weights = [torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype) for o in outputs]
    return sum((o.flatten() * w).sum() for o, w in zip(outputs, weights, strict=True))


class Original:
    """A model whose runs are kept.

    Attributes:
        model: the model; it is never converted.
        smooth: a gradient is the slope of its forward: it holds nothing that a gradient does
            not see on purpose, no single precision, and no operand that may overlap the target.
    """

    def __init__(self, model, text):
        self.model = model
        unseen = any(word in text for word in ("no_grad", ".float()", "detach"))
        self.smooth = not unseen and not OVERLAPPING.search(text)
        self.kept = {}

    def run(self, x, train, graph):
        key = id(x), train, graph
        if key not in self.kept:
            self.kept[key] = run(self.model, x, train=train, graph=graph)
        return self.kept[key]


def assert_same_bits(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert bits(got) == bits(expected)


def assert_same_run(got, expected):
    assert len(got.outputs) == len(expected.outputs)
    for one, other in zip(got.outputs, expected.outputs, strict=True):
        assert_same_bits(one, other)
    for name, value in expected.buffers.items():
        assert_same_bits(got.buffers[name], value)
    assert got.handed == expected.handed
    if expected.gradients is not None:
        assert got.gradients is not None
        for one, other in zip(got.gradients, expected.gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert_same_bits(one, other)


def values_along(model, x, moves, train, eps):
    """The forward at a point, and a step before and behind it in one direction."""
    values = []
    for step in (0, -eps, eps):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, move in zip(moved.parameters(), moves[1:], strict=True):
                parameter += step * move
        seen = run(moved, x + step * moves[0], train=train, graph=False)
        values.append(weighed(seen.outputs).item())
    return values


def assert_slope(model, found, x, train, eps=1e-6):
    """A gradient is the slope of the model's own forward along one random direction.

    Where the forward jumps or has a kink at the very point (a comparison of a zero with zero),
    it has none: its value there is not the mean of those on both sides.
    """
    generator = torch.Generator().manual_seed(3)
    wanted = [x, *model.parameters()]
    moves = [torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in wanted]
    here, before, behind = values_along(model, x, moves, train, eps)
    expected = (behind - before) / (2 * eps)
    # some units in the last place of large sums are in the differences
    rounding = 64 * torch.finfo(torch.float64).eps * max(abs(here), abs(before), abs(behind))
    if abs((before + behind) / 2 - here) > rounding + 1e-2 * eps * (1 + abs(expected)):
        return
    along = [(g * m).sum().item() for g, m in zip(found, moves, strict=True) if g is not None]
    assert sum(along) == pytest.approx(expected, rel=1e-4, abs=1e-4 + rounding / eps)


def differentiable(example):
    """An example input from which the conversion sees what a gradient to it needs."""
    return None if example is None else example.clone().requires_grad_()


def assert_converted(original, converted, some_inputs):
    """The same function; its gradients are right also where the original raises."""
    for x in some_inputs:
        for train, graph in MODES:
            expected = original.run(x, train, graph)
            got = run(converted, x, train=train, graph=graph)
            assert_same_run(got, expected)
            if graph and expected.gradients is None and got.gradients is not None:
                if original.smooth:
                    assert_slope(original.model, got.gradients, x, train)


def test_torch_has_no_gradient_of_operands_that_overlap():
    def overlapping(x):
        h = x * 1
        h += h[:, :1]
        return h

    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert not torch.autograd.gradcheck(overlapping, (x,), raise_exception=False)


def classes(model):
    return {name: type(module) for name, module in model.named_modules()}


def convert(model, example):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sm.ConversionWarning)  # there may be nothing to convert
        return sm.convert_model(model, differentiable(example))


def check_conversion(original, example, some_inputs=INPUTS):
    """Convert a copy of a model, compare it, revert it, compare it again."""
    model = copy.deepcopy(original.model)
    before = classes(model)
    assert convert(model, example) is model
    assert_converted(original, model, some_inputs)
    if example is not None:
        for train in (True, False):
            # where chance decides a branch, another seed reaches what the trial has not
            seen = run(model, example, train=train, graph=True, seed=TRIAL_SEED)
            assert seen.gradients is not None, "it clashes"
    sm.revert_model(model)
    assert classes(model) == before
    assert not sm.is_converted(model)
    for train, graph in MODES:
        got = run(model, EXAMPLE, train=train, graph=graph)
        assert_same_run(got, original.run(EXAMPLE, train, graph))


@given(text=programs())
@examples(100)
def test_a_converted_program_computes_what_it_did(text):
    for net in build(text):
        original = Original(net, text)
        check_conversion(original, EXAMPLE)
        check_conversion(original, None)


@given(text=programs(wild=True))
@examples(100)
def test_a_program_with_aliases_is_never_changed_by_its_conversion(text):
    for net in build(text):
        original = Original(net, text)
        try:
            original.run(EXAMPLE, True, True)
        except RuntimeError:
            reject()  # torch refuses it
        check_conversion(original, None)
        try:
            check_conversion(original, EXAMPLE)
        except sm.ConversionError:  # an operator that reads what it writes, for instance
            assert not sm.is_converted(net)


# -- programs that were wrong once, shrunk ----------------------------------------------------

FOUND = {
    "a clash that is written without a graph": """
        h = F.relu(self.lin(x) * 0.5, True)
        with torch.no_grad():
            h.mul_(0.5)
        return h + x
        """,
    "a clash that only a gradient to the input sees": """
        h = torch.sigmoid(x)
        h[0] = 0.5
        return h + x
        """,
    "an entry that is a copy has a value all the same": """
        h = torch.sigmoid(x)
        y = h[h > 0.5].mul_(2) + 1
        return h + y.sum()
        """,
    "an entry of a tuple is written through": """
        t = (torch.sigmoid(x), x)
        t[0][:, 0] = 1
        t[0][0].mul_(2)
        return t[0]
        """,
    "an entry of a copy is not written through": """
        h = torch.sigmoid(x)
        h[h > 0.5][0] += 1
        h[[0]][0] = 5
        return h
        """,
    "without a graph the history stays": """
        h = self.lin(x)
        with torch.no_grad():
            h.round_()
            h += 1
            h[0] = 2
        return h * x
        """,
    "what is overwritten has a gradient of zeros": """
        h = self.lin(x)
        h.zero_()
        g = self.lin(x)
        g.copy_(x)
        return h + g
        """,
    "in place, elu computes its gradient from the result": """
        h = F.elu(self.lin(x), inplace=True)
        h = F.celu(self.lin(h), 0.7, inplace=True)
        h = torch.selu_(self.lin(h))
        return F.elu_(self.lin(h), 0.3) * h
        """,
    "several items of one assignment are stored in their order": """
        h = torch.sigmoid(x)
        h[0], h[0, 0], h[:, 0], h[:] = x[1], 2, 3, x[0] * 2
        return h
        """,
    "an item is assigned what overwrites its tensor": """
        h = torch.sigmoid(x)
        h[0] = h.mul_(2)[1]
        h[1] = F.relu(h, inplace=True)[2] if x.shape[0] else 0
        return h
        """,
    "an index is bound by the same assignment": """
        h, i = x + 1, 0
        h[i], i = 2, 1
        h[0], h = 3, h * 2
        for i, h[i] in enumerate([5]):
            h[i], (i, *_) = i, (1, 2)
        return h + i
        """,
    "a write through a detached alias, under a clash": """
        y = torch.sigmoid(x * 2)
        v = y.detach()
        v += 0.5
        return y + x
        """,
    "a view was swapped, and its base is filled afterwards": """
        h = torch.sigmoid(x * 2)
        v = h.t().t()
        v[-1] = 0.5
        h[...] = 2
        w = v[:, :]
        h.zero_()
        return h + v + w
        """,
    "an operand is held while the next one overwrites it": """
        h = (x - x).sin_()
        y = h + F.relu(h, inplace=True)
        y.masked_fill_(x > 0.5, 0.1).addcmul_(x, x, value=0.5)
        return h + y
        """,
    "a kept flag is the saver of what is overwritten next": """
        y = x.clone()
        v = F.relu(x, inplace=True)
        v[0] = True
        return y + v + x
        """,
    "a kept module is the saver of what is overwritten next": """
        h = torch.sigmoid(x * 2)
        y = self.parts[1](h)
        z = y.t()
        z += 0.1
        return h * y
        """,
    "chance decides a branch, which the trial does not take": """
        h = torch.sigmoid(x)
        if self.drop(torch.ones_like(x)).mean() < 0.9:
            v = h
            v *= 2
        return h + x
        """,
    "a comma in a comment": """
        h = [torch.sigmoid(x)]
        y = torch.clamp_(h[0]  # low, high
                         , 0.2, 0.8) * 2
        return h[0] + y
        """,
}


@pytest.mark.parametrize("name", FOUND)
def test_a_program_found_before(name):
    text = HEAD + "class Net(nn.Module):\n" + INIT + "    def forward(self, x):\n"
    text += textwrap.indent(textwrap.dedent(FOUND[name]), " " * 8)
    for net in build(text):
        original = Original(net, text)
        check_conversion(original, EXAMPLE)
        check_conversion(original, None)
