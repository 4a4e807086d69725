"""Random programs compute the same after conversion, in every mode and on other inputs."""

import copy
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from program_strategy import programs
from sources import load_source
from tensor_strategy import bits, examples, storage_bits
from torch import nn

import safemodules as sm

pytestmark = pytest.mark.filterwarnings("ignore")


def build(text):
    """The model of a program; always with the same weights."""
    with tempfile.TemporaryDirectory() as directory:
        module = load_source(Path(directory), text)
        torch.manual_seed(0)
        # the text stays known to linecache, which has read it by now
        net = module.Net().double()
        yield net


def inputs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 4, dtype=torch.float64, generator=generator) * 2 - 1


EXAMPLE = inputs(3, 0)
INPUTS = (EXAMPLE, inputs(3, 1), inputs(5, 2))


@dataclass
class Run:
    """What one run of a model has shown."""

    outputs: list
    state: dict
    handed: bytes
    gradients: list | None


def run(model, x, *, train, graph):
    """Run a model once, with a seed, and put its state back."""
    saved = {name: t.detach().clone() for name, t in model.state_dict().items()}
    model.train(train)
    x = x.clone()
    leaf = x.clone().requires_grad_(graph)
    handed = leaf * 1 if graph else leaf  # wild programs write to it
    torch.manual_seed(7)
    with torch.set_grad_enabled(graph):
        result = model(handed)
    outputs = list(result) if isinstance(result, list) else [result]
    state = {name: t.detach().clone() for name, t in model.state_dict().items()}
    seen = storage_bits(handed.detach())
    found = None
    if graph:
        wanted = [leaf, *model.parameters()]
        total = sum((o * weights(o)).sum() for o in outputs)
        try:
            found = list(torch.autograd.grad(total, wanted, allow_unused=True))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
    model.load_state_dict(saved)
    return Run([o.detach() for o in outputs], state, seen, found)


def weights(tensor):
    return torch.linspace(0.5, 1.5, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)


def assert_same_bits(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert bits(got) == bits(expected)


def assert_same_run(got, expected):
    assert len(got.outputs) == len(expected.outputs)
    for one, other in zip(got.outputs, expected.outputs, strict=True):
        assert_same_bits(one, other)
    for name, value in expected.state.items():
        assert_same_bits(got.state[name], value)
    assert got.handed == expected.handed
    if expected.gradients is not None:
        assert got.gradients is not None
        for one, other in zip(got.gradients, expected.gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert_same_bits(one, other)


def assert_slope(model, found, x, *, train, eps=1e-6):
    """A gradient is the slope of the model's own forward along one random direction."""
    generator = torch.Generator().manual_seed(3)
    wanted = [x, *model.parameters()]
    moves = [torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in wanted]
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, move in zip(wanted[1:], moves[1:], strict=True):
                parameter += sign * eps * move
            seen = run(model, x + sign * eps * moves[0], train=train, graph=False)
            values.append(sum((o * weights(o)).sum() for o in seen.outputs).item())
            for parameter, move in zip(wanted[1:], moves[1:], strict=True):
                parameter -= sign * eps * move
    slope = (values[0] - values[1]) / (2 * eps)
    along = sum(
        (g * move).sum().item() for g, move in zip(found, moves, strict=True) if g is not None
    )
    assert along == pytest.approx(slope, rel=1e-4, abs=1e-4)


def differentiable(example):
    """An example input from which the conversion sees what a gradient to it needs."""
    return None if example is None else example.clone().requires_grad_()


def all_modes():
    return [(train, graph) for train in (True, False) for graph in (True, False)]


def assert_converted(original, converted, some_inputs, *, smooth=True):
    """The same function; gradients of the converted model are right where the original raises.

    With ``smooth`` these are the slopes of the original's forward: it holds nothing that a
    gradient does not see on purpose, and no single precision.
    """
    for x in some_inputs:
        for train, graph in all_modes():
            expected = run(original, x, train=train, graph=graph)
            got = run(converted, x, train=train, graph=graph)
            assert_same_run(got, expected)
            if smooth and graph and expected.gradients is None and got.gradients is not None:
                assert_slope(original, got.gradients, x, train=train)


def classes(model):
    return {name: type(module) for name, module in model.named_modules()}


def is_smooth(text):
    return not any(word in text for word in ("no_grad", ".float()", "detach"))


def check_conversion(original, example, some_inputs, *, smooth=True):
    """Convert a copy of a model, compare it, revert it, compare it again."""
    model = copy.deepcopy(original)
    before = classes(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sm.ConversionWarning)
        assert sm.convert_model(model, differentiable(example)) is model
    assert_converted(original, model, some_inputs, smooth=smooth)
    for train in (True, False) if example is not None else ():
        assert run(model, example, train=train, graph=True).gradients is not None, "it clashes"
    sm.revert_model(model)
    assert classes(model) == before
    assert not sm.is_converted(model)
    for train, graph in all_modes():
        expected = run(original, example if example is not None else EXAMPLE, train=train, graph=graph)
        got = run(model, example if example is not None else EXAMPLE, train=train, graph=graph)
        assert_same_run(got, expected)


@given(text=programs())
@examples(100)
def test_a_converted_program_computes_what_it_did(text):
    for net in build(text):
        check_conversion(net, EXAMPLE, INPUTS, smooth=is_smooth(text))
        check_conversion(net, None, INPUTS, smooth=is_smooth(text))


@given(text=programs(wild=True))
@examples(60)
def test_a_program_with_aliases_is_never_changed_by_its_conversion(text):
    """Without inputs only plain sites are swapped; with inputs a difference is an error."""
    for net in build(text):
        try:
            run(net, EXAMPLE, train=True, graph=True)
        except RuntimeError:
            return  # the program itself is refused by torch
        check_conversion(net, None, INPUTS, smooth=is_smooth(text))
        model = copy.deepcopy(net)
        before = classes(model)
        try:
            sm.convert_model(model, differentiable(EXAMPLE))
        except sm.MismatchError:
            assert classes(model) == before
            return
        assert_converted(net, model, [EXAMPLE], smooth=is_smooth(text))
