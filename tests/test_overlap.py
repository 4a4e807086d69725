"""Operands that share memory with what is overwritten: the result is the original's.

The oracle is the statement itself, on a copy of the whole storage.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sources import load_source
from tensor_strategy import bits, examples, storage_bits
from test_rewriting import swap_everything
from torch import fx

import safemodules as sm
from safemodules.rewriting.inference import out_of_place
from safemodules.rewriting.overlap import share_elements
from safemodules.rewriting.runtime import helper

SIZE = 40  # so that kernels take several elements at once, and some one by one

# bodies of a forward, in which an operand has elements in common with the target
OVERLAPPING = {
    "shifted columns": "h[:, 1:] += h[:, :-1]",
    "shifted columns, backwards": "h[:, :-1] -= h[:, 1:]",
    "a column of it": "h -= h[:, 0:1]",
    "a column, by a method": "h.mul_(h[:, 0:1])",
    "a column, by a keyword": "h.clamp_(min=h[:, 3:4])",
    "two columns": "h.addcmul_(h[:, 1:2], h[:, :1])",
    "a column, by a function": "torch.xlogy_(h, h[:, 0:1])",
    "assigned": "h[:, 1:] = h[:, :-1]",
    "assigned backwards": "h[:, :-1] = h[:, 1:]",
    "assigned in a container": "d = {'a': [h]}\nd['a'][0][:, 2:] = h[:, :-2]\nh = d['a'][0]",
    "assigned to indices": "h = h[:, :-1]\nh[torch.tensor([1, 2, 3])] = h[2:5]",
    "copied": "h[:, 1:].copy_(h[:, :-1])",
    "two views": "a = h[:, 1:]\nb = h[:, :-1]\na += b",
    "two views, by a method": "a = h[:, 2:]\nb = h[:, :-2]\na.div_(b)",
    "rows by columns": "h[1] += h[:, 1]",
    "transposed": "h.T[1:] += h.T[:-1]",
    "in a list": "d = [h]\nd[0][:, 1:] *= d[0][:, :-1]\nh = d[0]",
    "of another dtype": "h[:, 1:] += h.view(torch.int32)[:, :-1]",
    "out": "a = h[:, 1:]\ntorch.add(h[:, :-1], 1, out=a)",
    "a product": "h.addmm_(h, h)",
    "out of a product": "torch.mm(h, h, out=h)",
}
# the same, where torch reads everything before it writes it, or refuses to run
APART = {
    "itself": ("h += h", True),
    "itself, by a method": ("h.mul_(h)", True),
    "itself, as another view": ("h.mul_(h.view(SIZE, SIZE))", True),
    "other columns": ("h[:, 2] += h[:, 0]", True),
    "every other column": ("h[:, ::2] += h[:, 1::2]", True),
    "chunks": ("a, b = h.chunk(2, 1)\na += b\nh = a", True),
    "chunks, by a method": ("a, b = h.chunk(2, 1)\nh = a.mul_(b)", True),
    "assigned from elsewhere": ("h[:, :3] = h[:, 3:6]", True),
    "assigned to itself": ("h[:, :3] = h[:, :3]", True),
    "out": ("torch.add(h, h, out=h)", True),
    "its own mask": ("m = h > 0.5\nm[m] = False\nh = h * m", True),
    "rows": ("h[1:] += h[:-1]", False),
    "transposed": ("h += h.T", False),
    "indexed by itself": ("k = (h * SIZE).long()[0]\nk[k] = 1\nh = h + k", False),
}
GRADIENTS = ["constant", "grad", "no_grad"]

TEXT = """
import torch
from torch import nn

SIZE = {size}


class Net(nn.Module):
    def forward(self, h):
        {body}
        return h
"""


def nets(tmp_path, body):
    """A model, and one with every site of it swapped, whoever reads the old tensor."""
    text = TEXT.format(size=SIZE, body=body.replace("\n", "\n" + " " * 8))
    source = load_source(tmp_path, text)
    model, original = source.Net(), source.Net()
    swap_everything(model)
    return model, original


def outcome(net, state):
    """What comes out, and the gradient or that there is none."""
    torch.manual_seed(0)
    x = torch.rand(SIZE, SIZE, requires_grad=state != "constant")
    h = x * 1  # saves nothing
    with torch.set_grad_enabled(state != "no_grad"), out_of_place():
        out = net(h)
    if not out.requires_grad:
        return bits(out), bits(h), None
    seen = bits(out), bits(h)
    weights = torch.linspace(1, 2, out.numel()).reshape(out.shape)
    try:
        (gradient,) = torch.autograd.grad((out * weights).sum(), x)
    except RuntimeError as error:
        return *seen, "modified by an inplace" in str(error)
    return *seen, bits(gradient)


def refused(original, state):
    """The outcome of an original; ``None`` where torch refuses ``out=``, or a view of several."""
    try:
        return outcome(original, state)
    except RuntimeError as error:
        if "out=" in str(error) or "multiple views" in str(error):
            return None
        raise


@pytest.mark.parametrize("state", GRADIENTS)
@pytest.mark.parametrize("name", OVERLAPPING)
def test_what_overlaps_computes_what_the_original_does(tmp_path, name, state):
    model, original = nets(tmp_path, OVERLAPPING[name])
    expected = refused(original, state)
    assert expected is None or outcome(model, state) == expected


@pytest.mark.parametrize("state", GRADIENTS)
@pytest.mark.parametrize("name", APART)
def test_what_does_not_overlap_is_computed_out_of_place(tmp_path, name, state):
    body, runs = APART[name]
    model, original = nets(tmp_path, body)
    expected = refused(original, state) if runs else None
    if expected is not None:
        got = outcome(model, state)
        assert got[0] == expected[0]
        assert isinstance(expected[2], bool) or got[2] == expected[2]
    if state == "grad" and name == "out":  # refused on a copy too
        return
    h = torch.rand(SIZE, SIZE, requires_grad=state != "constant") * 1
    before, version = bits(h), h._version
    with torch.set_grad_enabled(state != "no_grad"), out_of_place():
        model(h)
    assert (bits(h), h._version) == (before, version)


@st.composite
def views(draw, base):
    """A slice of each dimension of a tensor, maybe transposed, maybe without one."""
    key = []
    for size in base.shape:
        start, missing = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        key.append(slice(start, max(size - missing, start + 1), draw(st.sampled_from([1, 2]))))
    view = base[tuple(key)]
    if draw(st.booleans()):
        view = view.select(draw(st.integers(0, view.dim() - 1)), 0)
    return view.transpose(0, -1) if draw(st.integers(0, 3)) == 0 else view


CALLS = {
    "iadd": (lambda t, v: t.__iadd__(v), helper("iadd")),
    "mul_": (lambda t, v: t.mul_(v), helper("m_mul_")),
    "copy_": (lambda t, v: t.copy_(v), helper("m_copy_")),
    "lerp_": (lambda t, v: t.lerp_(v, 0.25), lambda t, v: helper("m_lerp_")(t, v, 0.25)),
    "written through": (lambda t, v: t.mul_(v), helper("t_mul_")),
    "out": (
        lambda t, v: torch.sub(v, t, out=t),
        lambda t, v: helper("out")(torch.sub, v, t, out=t),
    ),
    "item": (
        lambda t, v: (t.__setitem__(slice(None), v), t)[1],
        lambda t, v: helper("set")(v, helper("at")(t), slice(None)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@given(data=st.data(), shape=st.sampled_from([(5, 6), (3, 4, 5), (2, 3, 4, 4)]))
@examples(120)
def test_any_two_views_of_one_tensor_give_what_they_give_in_place(name, data, shape):
    in_place, ours = CALLS[name]
    base = torch.arange(1.0, torch.Size(shape).numel() + 1).reshape(shape)
    target, operand = data.draw(views(base)), data.draw(views(base))

    def again():
        copy = base.clone()
        return tuple(
            copy.as_strided(t.size(), t.stride(), t.storage_offset()) for t in (target, operand)
        )

    try:
        expected = in_place(*again())
    except (RuntimeError, IndexError):  # refused, or no shapes that fit
        return
    one, other = again()
    got = ours(one, other)
    assert got.shape == expected.shape
    assert bits(got) == bits(expected)
    if not share_elements(target, operand) and name != "written through":
        assert storage_bits(one) == storage_bits(base)


@given(
    offsets=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    shapes=st.tuples(*[st.lists(st.integers(0, 4), max_size=3)] * 2),
    strides=st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 12]), min_size=6, max_size=6),
    narrow=st.booleans(),
)
@examples(400)
def test_common_elements_are_found_as_by_marking_them(offsets, shapes, strides, narrow):
    base = torch.zeros(200, dtype=torch.int64)
    marks = []
    tensors = []
    for side in range(2):
        dtype = torch.int32 if narrow and side else torch.int64
        shape = shapes[side]
        stride = strides[3 * side : 3 * side + len(shape)]
        tensor = base.view(dtype).as_strided(shape, stride, offsets[side])
        tensors.append(tensor)
        mark = torch.zeros(base.nbytes, dtype=torch.bool)
        width = dtype.itemsize
        for byte in range(width):
            bytewise = [n * width for n in stride]
            mark.as_strided(shape, bytewise, offsets[side] * width + byte).fill_(True)
        marks.append(mark)
    assert share_elements(*tensors) == bool((marks[0] & marks[1]).any())


def test_a_search_that_takes_too_long_says_that_they_may_have_elements_in_common():
    base = torch.empty(600_000, dtype=torch.int8)
    one = base.as_strided([50] * 6, [12 * n for n in (101, 103, 107, 109, 113, 127)])
    other = base.as_strided([50] * 6, [12 * n for n in (139, 149, 151, 157, 163, 167)], 7)
    assert not share_elements(one, other)  # no multiple of 12
    other = base.as_strided([50] * 6, [12 * n + 1 for n in (139, 149, 151, 157, 163, 167)], 7)
    assert share_elements(one, other)


# -- where storages cannot be seen, or stand for others ------------------------------------------


ADD_AT, AT, ITEM = helper("iadd_at"), helper("at"), helper("item")
SET, MULTIPLY = helper("set_late"), helper("m_mul_")
TAIL = (slice(None), slice(1, None))


def shifted(h):
    """Helpers on overlapping views of what a tensor becomes."""
    h = h * 1
    h = ADD_AT(ITEM(AT(h), TAIL), h[:, :-1])
    h = SET(AT(h), TAIL, h[:, :-1])
    return MULTIPLY(h, h[:, :1])


def test_transforms_run_helpers_on_overlapping_views():
    x = torch.rand(3, 4, 5)
    assert torch.vmap(shifted)(x).shape == x.shape
    assert torch.func.functionalize(shifted)(x[0]).shape == x[0].shape
    assert torch.func.grad(lambda t: shifted(t.detach() + t.sum()).sum())(x[0]).shape == (4, 5)


def test_meta_fake_and_sparse_tensors_run():
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert shifted(torch.ones(4, 5, device="meta")).shape == (4, 5)
    with FakeTensorMode():
        assert shifted(torch.ones(4, 5)).shape == (4, 5)
    sparse = torch.eye(3).to_sparse()
    assert helper("iadd")(sparse, sparse).to_dense().diagonal().tolist() == [2, 2, 2]
    assert sparse.to_dense().diagonal().tolist() == [1, 1, 1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_overlapping_views_compile_into_one_graph(backend):
    torch._dynamo.reset()
    x = torch.rand(4, 5, requires_grad=True)
    out = torch.compile(shifted, fullgraph=True, backend=backend)(x)
    assert out.shape == x.shape


class Shifting(torch.nn.Module):
    def forward(self, h):
        return shifted(F.relu(h))


@pytest.mark.parametrize("strict", [True, False])
def test_overlapping_views_are_exported(strict):
    x = torch.rand(4, 5)
    exported = torch.export.export(Shifting(), (x,), strict=strict).module()
    assert exported(x).shape == x.shape


def test_values_that_fx_traces_are_not_asked_for_their_memory():
    graph = fx.symbolic_trace(lambda x: helper("m_mul_")(x, x[:, :1]))
    assert graph(torch.ones(2, 2)).tolist() == [[1, 1], [1, 1]]


def test_a_clash_between_chunks_of_one_tensor_is_mended():
    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(4, 8)

        def forward(self, x):
            a, b = torch.sigmoid(self.lin(x)).split(4, 1)
            a = a.view_as(a)
            h = a * b
            b += a
            return h

    model = sm.convert_model(Gated(), torch.randn(3, 4))
    model(torch.randn(3, 4)).sum().backward()
