"""Run-time helpers compute exactly what the in-place operators do, and overwrite nothing.

The oracle is always the original operator itself, on a copy of the target's whole storage.
"""

import inspect
import itertools
import operator
from collections import namedtuple
from types import SimpleNamespace

import inplace_arguments as made
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from tensor_strategy import (
    DTYPES,
    bits,
    examples,
    laid_out,
    operands,
    oracle_copy,
    random_values,
    scalars,
    seeds,
    shapes,
    storage_bits,
    storage_size,
    tensors,
)
from torch import Tensor, fx, nn

from safemodules.mutation.operators import (
    AUGMENTED_FUNCTIONS,
    RANDOM_FUNCTIONS,
    flagged_functions,
    function_twins,
    method_kind,
)
from safemodules.rewriting.out_of_place import TRAINING_SLOTS
from safemodules.rewriting.runtime import KEY, helper

pytestmark = pytest.mark.filterwarnings("ignore")

AUGMENTED = sorted(AUGMENTED_FUNCTIONS)
METHOD_NAMES = sorted(name for name in dir(Tensor) if method_kind(name))
FUNCTION_NAMES = sorted({function.__name__ for function in function_twins()})
DENSE = ("dense", "transposed", "gaps")


def outcome(call):
    """What a call returns or raises, and the random numbers it has drawn."""
    torch.manual_seed(0)
    try:
        result, error = call(), None
    except Exception as raised:
        result, error = None, raised
    return result, error, torch.get_rng_state()


def assert_same_tensor(got, expected):
    assert type(got) is type(expected)
    assert (got.dtype, got.shape, got.device) == (expected.dtype, expected.shape, expected.device)
    assert got.stride() == expected.stride()
    assert bits(got) == bits(expected)


def assert_same_outcome(got, expected):
    """Both return the same tensor, or both raise the same; both have drawn the same."""
    (result, error, stream), (true_result, true_error, true_stream) = got, expected
    assert (type(error), str(error)) == (type(true_error), str(true_error))
    assert torch.equal(stream, true_stream)
    if isinstance(true_result, Tensor):
        assert_same_tensor(result, true_result)
    else:
        assert result == true_result


def check(target, in_place, out_of_place, *read):
    """Compare ``in_place(copy of target)`` with ``out_of_place(target)``; nothing is written."""
    tensors_read = [target, *(t for t in read if isinstance(t, Tensor))]
    before = [(storage_bits(t), t._version) for t in tensors_read]
    expected = outcome(lambda: in_place(oracle_copy(target)))
    got = outcome(lambda: out_of_place(target))
    assert_same_outcome(got, expected)
    assert [(storage_bits(t), t._version) for t in tensors_read] == before


# -- values, layouts, errors ----------------------------------------------------------------


@pytest.mark.parametrize("name", AUGMENTED)
@given(data=st.data(), target=tensors())
@examples(15)
def test_augmented_operators_are_those_of_the_tensor(name, data, target):
    value = data.draw(operands(target))
    in_place, compute = AUGMENTED_FUNCTIONS[name][1], helper(name)
    check(target, lambda t: in_place(t, value), lambda t: compute(t, value), value)


def test_every_in_place_method_has_arguments_here():
    assert set(made.METHODS) == set(METHOD_NAMES)


@pytest.mark.parametrize("name", METHOD_NAMES)
@given(data=st.data())
@examples(4)
def test_methods_are_those_of_the_tensor(name, data):
    target = data.draw(made.inplace_targets(name))
    args, kwargs = made.METHODS[name](data.draw, target)
    check(
        target,
        lambda t: getattr(t, name)(*args, **kwargs),
        lambda t: helper(f"m_{name}")(t, *args, **kwargs),
        *args,
        *kwargs.values(),
    )


def test_every_in_place_function_has_arguments_here():
    assert set(FUNCTION_NAMES) <= {*made.METHODS, *made.FUNCTIONS}


@pytest.mark.parametrize("call", function_twins(), ids=lambda call: call.__name__)
@given(data=st.data())
@examples(3)
def test_functions_are_those_of_torch(call, data):
    name = call.__name__
    target = data.draw(made.inplace_targets(name))
    args, kwargs = {**made.METHODS, **made.FUNCTIONS}[name](data.draw, target)
    check(
        target,
        lambda t: call(t, *args, **kwargs),
        lambda t: helper("function")(call, t, *args, **kwargs),
        *args,
        *kwargs.values(),
    )


def test_every_flagged_function_has_arguments_here():
    assert set(made.FLAGGED) == set(flagged_functions())


@pytest.mark.parametrize("call", made.FLAGGED, ids=lambda call: call.__name__)
@given(data=st.data())
@examples(10)
def test_flagged_functions_are_those_of_torch(call, data):
    target = data.draw(made.inplace_targets(call.__name__))
    args = data.draw(st.sampled_from(made.FLAGGED[call]))
    position = flagged_functions()[call]
    slot = position if len(args) == position - 1 and data.draw(st.booleans()) else None
    given_args, kwargs = ((*args, True), {}) if slot else (args, {"inplace": True})
    check(
        target,
        lambda t: call(t, *given_args, **kwargs),
        lambda t: helper("flagged")(call, slot, t, *given_args, **kwargs),
    )


OUT = {
    "add": (torch.add, 2, {}),
    "cat": (lambda a, b, out: torch.cat([a, b], out=out), 2, {}),
    "clamp": (torch.clamp, 1, {"min": 0}),
    "exp": (torch.exp, 1, {}),
    "matmul": (torch.matmul, 2, {}),
    "mul": (torch.mul, 2, {}),
    "normal": (torch.normal, 2, {}),
    "rand": (lambda a, out: torch.rand(a.shape, out=out), 1, {}),
    "sum": (torch.sum, 1, {"dim": 0}),
    "where": (lambda a, b, out: torch.where(a > 0, a, b, out=out), 2, {}),
}


@pytest.mark.parametrize("name", OUT)
@given(data=st.data(), target=tensors())
@examples(10)
def test_out_is_written_into_new_memory(name, data, target):
    call, count, kwargs = OUT[name]
    args = [data.draw(operands(target, tensor_only=True)) for _ in range(count)]
    check(
        target,
        lambda t: call(*args, out=t, **kwargs),
        lambda t: helper("out")(call, *args, out=t, **kwargs),
        *args,
    )


def test_out_may_be_an_operand():
    a, b = torch.arange(3.0), torch.ones(3)
    assert helper("out")(torch.add, a, b, out=a).tolist() == [1, 2, 3]
    assert a.tolist() == [0, 1, 2]


# -- item assignment ------------------------------------------------------------------------


@st.composite
def keys(draw, shape):
    """An index: integers, slices, None, Ellipsis, masks, index tensors, lists, or a tuple."""
    if shape and draw(st.integers(0, 5)) == 0:
        return random_values(int(torch.Size(shape).numel()), torch.bool, draw(seeds)).reshape(shape)
    parts, dim, ellipsis = [], 0, False
    for _ in range(draw(st.integers(0, len(shape) + 1))):
        kinds = ["slice", "int", "slice", "none", "index", "list", "mask", "scalar tensor"]
        kind = draw(st.sampled_from(kinds if ellipsis else [*kinds, "ellipsis"]))
        if kind == "none":
            parts.append(None)
        elif kind == "ellipsis":
            parts.append(...)
            ellipsis, dim = True, len(shape)  # integers behind it would be of unknown dims
        elif dim < len(shape):
            parts.append(draw(_key_of_dim(kind, shape[dim])))
            dim += 1
    return tuple(parts) if len(parts) != 1 or draw(st.booleans()) else parts[0]


@st.composite
def _key_of_dim(draw, kind, size):
    inside = st.integers(-size, size - 1) if size else st.just(0)
    if kind == "slice":
        ends = st.one_of(st.none(), st.integers(-size - 1, size + 1))
        return slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2])))
    if kind == "int":
        return draw(inside)
    if kind == "mask":
        return random_values(size, torch.bool, draw(seeds))
    if kind == "scalar tensor":
        return torch.tensor(draw(inside))
    # without repetition: which of two values stays is not defined
    chosen = draw(st.lists(st.integers(0, max(size - 1, 0)), unique=True, max_size=2))
    return torch.tensor(chosen, dtype=torch.int64) if kind == "index" else chosen


def assigned(t, key, value):
    t[key] = value
    return t


@given(data=st.data(), target=tensors())
@examples(150)
def test_item_assignment_is_that_of_the_tensor(data, target):
    key = data.draw(keys(tuple(target.shape)))
    entry, _, _ = outcome(lambda: target[key])
    if isinstance(entry, Tensor) and data.draw(st.booleans()):
        value = data.draw(operands(entry))
    else:
        value = data.draw(scalars)
    how = data.draw(st.sampled_from(["set", "set_late"]))

    def out_of_place(t):
        place = helper("at")(t)
        if how == "set":
            return helper("set")(value, place, key)
        return helper("set_late")(place, key, value)

    check(target, lambda t: assigned(t, key, value), out_of_place, value)


# -- places ---------------------------------------------------------------------------------

Pair = namedtuple("Pair", "a b")
CONTAINERS = {
    "list": ("[0]", lambda held: [held, "other"]),
    "dict": ("['a']", lambda held: {"a": held, "b": 1}),
    "tuple": ("[1]", lambda held: ("other", held)),
    "namedtuple": ("[0]", lambda held: Pair(held, 1)),
    "namedtuple's field": (".a", lambda held: Pair(held, 1)),
    "attribute": (".a", lambda held: SimpleNamespace(a=held)),
}
INDICES = ("[0]", "[..., 0]", "[:1]", "[::2]", "[[0]]", "[None]", "[torch.tensor([True, False])]")
STATEMENTS = {
    "augmented": "{place} += value",
    "method": "{place}.mul_(value)",
    "function": "torch.exp_({place})",
    "flagged": "F.elu({place}, 0.5, inplace=True)",
    "random": "F.dropout({place}, 0.5, inplace=True)",
    "item": "{place}[0] = value",
}


def place_of(root, accessors):
    place = helper("at")(root)
    for accessor in accessors:
        if accessor.startswith("."):
            place = helper("attribute")(place, accessor[1:])
        else:
            place = helper("item")(place, eval("KEY" + accessor, {"KEY": KEY, "torch": torch}))
    return place


def run_helper(kind, place, value):
    if kind == "augmented":
        return helper("iadd_at")(place, value)
    if kind == "method":
        return helper("ma_mul_")(place, value)
    if kind == "function":
        return helper("function_at")(torch.exp_, place)
    if kind == "flagged":
        return helper("flagged_at")(F.elu, None, place, 0.5, inplace=True)
    if kind == "random":
        return helper("flagged_at")(F.dropout, None, place, 0.5, inplace=True)
    return helper("set_late")(place, 0, value)


def assert_same_tree(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, Tensor):
        assert_same_tensor(got, expected)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_same_tree(got[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same_tree(one, other)
    elif isinstance(expected, SimpleNamespace):
        assert_same_tree(vars(got), vars(expected))
    else:
        assert got == expected


@given(
    kind=st.sampled_from(sorted(STATEMENTS)),
    containers=st.lists(st.sampled_from(sorted(CONTAINERS)), max_size=3),
    indices=st.lists(st.sampled_from(INDICES), max_size=3),
    target=tensors((torch.float32,), st.sampled_from([(2, 2), (2, 2, 2)]), DENSE),
    value=st.sampled_from([2.0, 3]),
)
@examples(200)
def test_places_are_written_as_by_the_statement(kind, containers, indices, target, value):
    accessors = [CONTAINERS[name][0] for name in containers] + indices
    assume(accessors or kind == "item")

    def built(tensor):
        for name in reversed(containers):
            tensor = CONTAINERS[name][1](tensor)
        return tensor

    statement = STATEMENTS[kind].format(place="root" + "".join(accessors))
    before = storage_bits(target)

    def original():
        names = {"root": built(oracle_copy(target)), "value": value, "torch": torch, "F": F}
        try:
            exec(statement, names)
        except Exception as error:
            return str(error)
        return names["root"]

    def ours():
        root = built(target)
        try:
            return run_helper(kind, place_of(root, accessors), value)
        except Exception as error:
            return str(error)

    expected, _, stream = outcome(original)
    got, _, own_stream = outcome(ours)
    assert_same_tree(got, expected)
    assert torch.equal(stream, own_stream)
    assert storage_bits(target) == before


class Frozen:
    """Its attribute cannot be set."""

    def __init__(self, value):
        self._value = value

    value = property(lambda self: self._value)


@pytest.mark.parametrize("kind", ["item", "method"])
def test_what_cannot_take_a_new_tensor_has_its_own_written(kind):
    frozen = Frozen(torch.ones(2))
    place = place_of(frozen, [".value"])
    assert run_helper(kind, place, 3.0) is frozen
    assert frozen.value.tolist() == ([3, 1] if kind == "item" else [3, 3])


def test_what_a_reduction_returns_has_its_own_written():
    found = torch.eye(2).max(dim=0)
    assert helper("set_late")(place_of(found, [".values"]), 0, 5) is found
    assert found.values.tolist() == [5, 1]


def test_state_of_a_module_keeps_its_identity():
    module = nn.BatchNorm1d(2)
    mean, steps = module.running_mean, module.num_batches_tracked
    helper("set_late")(place_of(module, [".running_mean"]), 0, 5.0)
    helper("iadd_at")(place_of(module, [".num_batches_tracked"]), 1)
    helper("ma_mul_")(place_of(module, [".running_mean", "[0]"]), 2)
    assert module.running_mean is mean
    assert mean.tolist() == [10, 0]
    assert module.num_batches_tracked is steps
    assert steps.item() == 1


@torch.no_grad()
def test_a_parameter_is_written_in_place_by_every_helper():
    parameter = nn.Parameter(torch.zeros(2, 2))
    assert helper("iadd")(parameter, 1) is parameter
    assert helper("m_mul_")(parameter, 3) is parameter
    assert helper("function")(torch.sqrt_, parameter) is parameter
    assert helper("flagged")(F.relu, None, parameter, inplace=True) is parameter
    assert helper("set_late")(place_of(parameter, []), 0, 4.0) is parameter
    held = [parameter]
    assert helper("set_late")(place_of(held, ["[0]", "[0]"]), 0, 5.0) is held
    assert helper("ma_add_")(place_of(held, ["[0]", "[1]"]), 1) is held
    assert helper("iadd_at")(place_of(held, ["[0]"]), 1) is held
    assert held[0] is parameter
    out = torch.ones(2, 2)
    assert helper("out")(torch.add, parameter, out, out=parameter) is parameter
    assert parameter.flatten().tolist() == pytest.approx([7, 6, 3**0.5 + 3, 3**0.5 + 3])


# -- what is not a tensor -------------------------------------------------------------------


OTHERS = (3, 2.5, True, "ab", (1,), [1], {1: 2}, {1}, None)
OTHER_VALUES = (2, "c", (2,), [3], {3: 4}, {2}, torch.tensor(2))


@pytest.mark.parametrize("name", AUGMENTED)
def test_other_objects_keep_their_own_operators(name):
    def copied(target):
        return target.copy() if isinstance(target, list | dict | set) else target

    for target, value in itertools.product(OTHERS, OTHER_VALUES):
        expected = outcome(lambda: AUGMENTED_FUNCTIONS[name][1](copied(target), value))
        handed = copied(target)
        got = outcome(lambda: helper(name)(handed, value))
        assert_same_outcome(got, expected)
        if isinstance(target, list) and got[1] is None:
            assert got[0] is handed


def test_numpy_arrays_are_written_in_place():
    array = torch.ones(3).numpy()
    assert helper("iadd")(array, 2) is array
    assert array.tolist() == [3, 3, 3]
    target = torch.ones(3)
    assert_same_tensor(helper("iadd")(target, array), torch.full((3,), 4.0))
    assert target.tolist() == [1, 1, 1]


def test_objects_with_methods_of_such_names_are_called():
    calls = []
    other = SimpleNamespace(add_=lambda *args: calls.append(args))
    assert helper("m_add_")(other, 1) is None
    assert calls == [(1,)]


def test_traced_values_become_out_of_place_nodes():
    def traced(x):
        x = helper("iadd")(x, 1)
        x = helper("m_mul_")(x, 2)
        x = helper("function")(torch.relu_, x)
        return helper("flagged")(F.elu, None, x, inplace=True)

    graph = fx.symbolic_trace(traced)
    targets = [node.target for node in graph.graph.nodes if node.op.startswith("call")]
    assert targets == [operator.add, "mul", torch.relu, F.elu]
    x = torch.tensor([-1.0, 2.0])
    assert graph(x).tolist() == [0, 6]
    assert x.tolist() == [-1, 2]


# -- gradients ------------------------------------------------------------------------------


def gradients(storage, shape, layout, call, other, state):
    """The result of a call on a non-leaf tensor, and the gradients of its weighted sum."""
    leaf = storage.clone().requires_grad_(state != "constant")
    operand = other.clone().requires_grad_() if isinstance(other, Tensor) else other
    target = laid_out(leaf * 1, shape, layout)
    torch.manual_seed(0)
    if state == "no_grad":
        with torch.no_grad():
            result = call(target, operand)
    else:
        result = call(target, operand)
    if not result.requires_grad:
        return result, []
    inputs = [t for t in (leaf, operand) if isinstance(t, Tensor) and t.requires_grad]
    weights = torch.linspace(1, 2, result.numel(), dtype=result.dtype).reshape(result.shape)
    found = torch.autograd.grad((result * weights).sum(), inputs, allow_unused=True)
    return result, list(found)


GRADIENTS = {
    "iadd": (operator.iadd, helper("iadd")),
    "imul": (operator.imul, helper("imul")),
    "itruediv": (operator.itruediv, helper("itruediv")),
    "sub_": (lambda t, v: t.sub_(v), helper("m_sub_")),
    "clamp_": (lambda t, v: t.clamp_(0, 1), lambda t, v: helper("m_clamp_")(t, 0, 1)),
    "zero_": (lambda t, v: t.zero_(), lambda t, v: helper("m_zero_")(t)),
    "copy_": (lambda t, v: t.copy_(v), helper("m_copy_")),
    "normal_": (lambda t, v: t.normal_(), lambda t, v: helper("m_normal_")(t)),
    "masked_fill_": (
        lambda t, v: t.masked_fill_(t > 0, 2),
        lambda t, v: helper("m_masked_fill_")(t, t > 0, 2),
    ),
    "relu_": (lambda t, v: torch.relu_(t), lambda t, v: helper("function")(torch.relu_, t)),
    "elu": (
        lambda t, v: F.elu(t, inplace=True),
        lambda t, v: helper("flagged")(F.elu, None, t, inplace=True),
    ),
    "dropout": (
        lambda t, v: F.dropout(t, 0.5, True, True),
        lambda t, v: helper("flagged")(F.dropout, 3, t, 0.5, True, True),
    ),
    "item": (
        lambda t, v: assigned(t, (..., slice(1)), 3.0),
        lambda t, v: helper("set")(3.0, helper("at")(t), (..., slice(1))),
    ),
    "item from operand": (
        lambda t, v: assigned(t, ..., v),
        lambda t, v: helper("set_late")(helper("at")(t), ..., v),
    ),
    "entry": (
        lambda t, v: _augment_entry(t, v),
        lambda t, v: helper("imul_at")(place_of(t, ["[..., :1]"]), 2),
    ),
}


def _augment_entry(t, v):
    t[..., :1] *= 2
    return t


def assert_same_gradients(in_place, out_of_place, *how):
    """Both give the same result and gradients, unless the original or its backward raises."""
    try:
        expected, true_grads = gradients(*how[:3], in_place, *how[3:])
    except Exception:
        return
    got, grads = gradients(*how[:3], out_of_place, *how[3:])
    assert_same_tensor(got.detach(), expected.detach())
    assert got.requires_grad == expected.requires_grad
    assert [g is None for g in grads] == [g is None for g in true_grads]
    for one, true in zip(grads, true_grads, strict=True):
        assert one is None or bits(one) == bits(true)


@pytest.mark.parametrize("name", GRADIENTS)
@given(
    shape=shapes,
    layout=st.sampled_from(["dense", "gaps", "transposed", "channels last"]),
    state=st.sampled_from(["grad", "grad", "no_grad", "constant"]),
    scalar=st.booleans(),
    seed=seeds,
)
@examples(12)
def test_gradients_are_those_of_the_in_place_operator(name, shape, layout, state, scalar, seed):
    in_place, out_of_place = GRADIENTS[name]
    assume(shape or name not in {"item", "entry"})
    storage = random_values(storage_size(shape, layout), torch.float64, 3 * seed + 1)
    size = int(torch.Size(shape).numel())
    other = random_values(size, torch.float64, 3 * seed + 2).reshape(shape)
    if scalar and name not in {"copy_", "item from operand"}:
        other = 2.5
    assert_same_gradients(in_place, out_of_place, storage, shape, layout, other, state)


CALLS = [
    *((name, made.METHODS[name]) for name in METHOD_NAMES),
    *((call, made.FUNCTIONS[call.__name__]) for call in function_twins()
      if call.__name__ in made.FUNCTIONS),
    *((call, made._one(*arguments)) for call, arguments in made.FLAGGED.items()),
]  # fmt: skip


@pytest.mark.parametrize(("call", "arguments"), CALLS, ids=lambda c: getattr(c, "__name__", c))
@given(data=st.data(), seed=seeds)
@examples(2)
def test_gradients_of_every_call_are_those_in_place(call, arguments, data, seed):
    name = call if isinstance(call, str) else call.__name__
    shape = tuple(data.draw(made.inplace_targets(name)).shape)
    storage = random_values(storage_size(shape, "dense"), torch.float64, 3 * seed + 1)
    target = laid_out(storage, shape, "dense")
    args, kwargs = arguments(data.draw, target)

    def in_place(t, _):
        if isinstance(call, str):
            return getattr(t, name)(*args, **kwargs)
        return call(t, *args, inplace=True) if call in made.FLAGGED else call(t, *args)

    def out_of_place(t, _):
        if isinstance(call, str):
            return helper(f"m_{name}")(t, *args, **kwargs)
        if call in made.FLAGGED:
            return helper("flagged")(call, None, t, *args, inplace=True)
        return helper("function")(call, t, *args)

    assert_same_gradients(in_place, out_of_place, storage, shape, "dense", 2.5, "grad")


def test_an_overwrite_without_a_graph_keeps_the_history():
    """A straight-through estimator: the gradient does not see what no_grad has done."""
    x = torch.tensor([0.2, 3.0], requires_grad=True)
    h = x * 2
    with torch.no_grad():
        h = helper("m_round_")(h)
        h = helper("iadd")(h, 1)
        h = helper("set_late")(helper("at")(h), 0, 7.0)
        h = helper("function")(torch.square_, h)
        h = helper("out")(torch.add, h, 1, out=h)
    assert h.tolist() == [50, 50]
    h.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_random_functions_know_where_their_training_flag_stands():
    for function, (slot, default) in TRAINING_SLOTS.items():
        parameters = list(inspect.signature(function).parameters.values())
        assert (parameters[slot].name, parameters[slot].default) == ("training", default)
    assert set(TRAINING_SLOTS) == RANDOM_FUNCTIONS & set(flagged_functions())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_helpers_run_under_vmap(dtype):
    def add_one(x):
        return helper("m_fill_")(helper("iadd")(x.t(), x.t()[:, ::2][:, :1]).t()[::2], 1)

    x = torch.ones(3, 4, 4, dtype=dtype)
    expected = [add_one(part) for part in x]
    assert torch.equal(torch.vmap(add_one)(x), torch.stack(expected))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_helpers_compile_into_one_graph(backend):
    def run(x):
        h = helper("iadd")(x.sigmoid(), x.double())
        h = helper("m_mul_")(h, 2)
        h = helper("flagged")(F.elu, None, h, inplace=True)
        h = helper("set_late")(helper("at")(h), 0, 1.0)
        with torch.no_grad():
            return helper("m_clamp_")(h, 0, 1)

    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    compiled = torch.compile(run, fullgraph=True, backend=backend)(x)
    assert_same_tensor(compiled, run(x))
    assert compiled.requires_grad
