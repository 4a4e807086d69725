"""A CheckpointedSeq is an nn.Sequential in everything but memory."""

import copy
import itertools
import math
import pickle
import subprocess
import sys
import weakref
from collections import Counter, OrderedDict
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import safemodules as sm

WIDTH = 4


class Ema(nn.Module):
    """Updates a buffer and then uses it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(WIDTH))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.mean.mul_(0.5).add_(x.detach().abs().mean(0), alpha=0.5)
        return torch.tanh(x / self.mean * self.calls)


class Pre(nn.Module):
    """Overwrites its input, which no flag tells."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x.mul_(2)
        return self.linear(x)


class Twin(nn.Module):
    """Returns a tuple, which the next child takes as one argument."""

    def forward(self, x):
        return x.sin(), x.cos()


class Join(nn.Module):
    def forward(self, pair):
        return pair[0] * pair[1]


# Children that take and return tensors of sizes (N, WIDTH).
CHILDREN = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "batch norm in eval mode": lambda: nn.BatchNorm1d(WIDTH).eval(),
    "relu": nn.ReLU,
    "in-place relu": lambda: nn.ReLU(inplace=True),
    "in-place dropout": lambda: nn.Dropout(0.3, inplace=True),
    "in-place sequence": lambda: nn.Sequential(nn.Identity(), nn.ELU(inplace=True), nn.Tanh()),
    "tanh": nn.Tanh,
    "dropout": nn.Dropout,
    "rrelu": nn.RReLU,
    "identity": nn.Identity,
    "flatten": nn.Flatten,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "ema": Ema,
    "pre": Pre,
    "tuples": lambda: nn.Sequential(Twin(), Join()),
    "nested": lambda: sm.CheckpointedSeq(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh()),
}
# A product that was kept must not be overwritten: selective checkpointing refuses that.
OVERWRITING = {"in-place relu", "in-place dropout", "in-place sequence", "pre"}
SEGMENTS = [None, 1, 2, 3, 100, "sqrt", "log", (1,), (2, 3), ()]


def plain_copy(seq):
    """An nn.Sequential of copies of the children."""
    return nn.Sequential(OrderedDict(copy.deepcopy(list(seq.named_children()))))


def train(net, steps=2, width=WIDTH):
    """Everything that can be told after some steps; an error's first words in its place."""
    torch.manual_seed(5)
    found = []
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if parameters else None
    for _ in range(steps):
        x = torch.randn(3, width, requires_grad=True)
        try:
            out = net(x * 1)
            out.square().sum().backward()
        except RuntimeError as error:
            return [*found, "modified by an inplace" in str(error)]
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        found += [out.detach().clone(), x.grad]
        found += [p.grad for p in parameters if p.grad is not None]
    found += [*net.state_dict().values(), torch.get_rng_state()]
    found += [m.calls for m in net.modules() if isinstance(m, Ema)]
    return found


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype and torch.equal(x.nan_to_num(), y.nan_to_num())
        else:
            assert x == y


def make(names):
    torch.manual_seed(0)
    return [CHILDREN[name]() for name in names]


@pytest.mark.parametrize("segments", SEGMENTS, ids=str)
def test_training_is_that_of_a_plain_sequence(segments):
    names = ["linear", "batch norm", "in-place relu", "dropout", "ema", "tuples", "pre", "tanh"]
    seq = sm.CheckpointedSeq(*make(names), segments=segments)
    plain = plain_copy(seq)
    assert_same(train(plain, steps=3), train(seq, steps=3))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(CHILDREN)), max_size=8),
    st.sampled_from([None, 1, 2, 3, "sqrt", "log"]),
    st.booleans(),
    st.booleans(),
)
def test_any_sequence_trains_as_a_plain_one(names, segments, last, selective):
    policy = "matmul" if selective and OVERWRITING.isdisjoint(names) else None
    seq = sm.CheckpointedSeq(*make(names), segments=segments, checkpoint_last=last, policy=policy)
    plain = plain_copy(seq)
    assert_same(train(plain), train(seq))


def test_gradients_are_finite_differences():
    torch.manual_seed(0)
    seq = sm.CheckpointedSeq(*make(["linear", "tanh", "linear", "tanh"]), segments="log").double()
    x = torch.randn(2, WIDTH, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(seq, x)
    assert torch.autograd.gradgradcheck(seq, x)


# -- what is recomputed, and what is kept ------------------------------------------------------


class Count(TorchDispatchMode):
    """Operators by name, and the bytes of live storages."""

    def __init__(self):
        super().__init__()
        self.calls, self.live, self.peak, self.seen = Counter(), 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        self.peak = max(self.peak, self.live)
        return out

    def count(self, storage):
        if storage.data_ptr() in self.seen or not storage.nbytes():
            return
        self.seen.add(storage.data_ptr())
        self.live += storage.nbytes()
        weakref.finalize(storage, self.free, storage.data_ptr(), storage.nbytes())

    def free(self, pointer, size):
        self.seen.discard(pointer)
        self.live -= size


# Operators whose derivatives are made of others.
OPERATORS = ("tanh", "exp", "sigmoid", "atan", "relu", "expm1", "tan", "asinh")


class Operator(nn.Module):
    """One operator that can be told from the others, and products beside it."""

    def __init__(self, name):
        super().__init__()
        self.name, self.scale = name, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return getattr(torch, self.name)(x * self.scale) * self.scale


def step(net, x):
    with Count() as count:
        net(x).sum().backward()
    return count


@pytest.mark.parametrize("segments", [None, 2, "sqrt", (3, 5)], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_each_segment_is_recomputed_once_and_the_last_one_never(segments, last):
    net = sm.CheckpointedSeq(*map(Operator, OPERATORS), segments=segments, checkpoint_last=last)
    count = step(net, torch.randn(8, requires_grad=True))
    for span in net.segment_spans():
        for name in OPERATORS[span.start : span.stop]:
            assert count.calls[name] == 1 + span.is_checkpointed, name
    assert net.segment_spans()[-1].is_checkpointed is last


def test_nested_segments_recompute_a_child_once_per_level():
    net = sm.CheckpointedSeq(*map(Operator, OPERATORS), segments="log")

    def levels(spans, depth):
        for span in spans:
            inner = depth + span.is_checkpointed
            if span.inner:
                yield from levels(span.inner, inner)
            else:
                yield from ((index, inner) for index in range(span.start, span.stop))

    count = step(net, torch.randn(8, requires_grad=True))
    found = dict(levels(net.segment_spans(), 0))
    assert sorted(found) == list(range(8)) and max(found.values()) == 3
    for index, name in enumerate(OPERATORS):
        assert count.calls[name] == 1 + found[index]


def peak(segments, length, size=1000):
    """Largest number of activations that are alive in a step."""
    children = [Operator("tanh") for _ in range(length)]
    net = nn.Sequential(*children)
    if segments != "plain":
        sm.CheckpointedSeq.wrap(net, segments=segments)
    step(net, torch.randn(size, requires_grad=True))  # the first step copies more
    return step(net, torch.randn(size, requires_grad=True)).peak / (4 * size)


def test_peaks_are_those_of_the_theory():
    own = 10  # what is alive in one child, gradients included
    for length in (16, 64):
        assert peak("plain", length) > 2 * length
        assert length <= peak(None, length) < length + own
        root = math.isqrt(length)
        assert peak("sqrt", length) < 4 * root + root + own
    assert peak("log", 64) < 2 * math.log2(64) + own
    assert peak("log", 128) - peak("log", 64) < 3  # a constant for twice the length


@pytest.mark.parametrize("mode", [nn.Module.eval, nn.Module.train])
def test_no_gradient_no_recomputation(mode):
    net = mode(sm.CheckpointedSeq(*map(Operator, OPERATORS), segments=2))
    expected = plain_copy(net)
    x = torch.randn(8)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(net(x), expected(x))


def test_it_is_transparent_in_eval_mode():
    net = sm.CheckpointedSeq(*map(Operator, OPERATORS), segments=2).eval()
    count = step(net, torch.randn(8, requires_grad=True))
    assert all(count.calls[name] == 1 for name in OPERATORS)


def test_a_child_that_overwrites_its_input_belongs_to_the_one_before():
    relu = lambda: nn.ReLU(inplace=True)  # noqa: E731
    linear = lambda: nn.Linear(2, 2)  # noqa: E731
    net = sm.CheckpointedSeq(
        relu(), linear(), relu(), nn.Flatten(), nn.Dropout(inplace=True), linear(), nn.ReLU()
    )
    spans = [(span.start, span.stop, span.is_checkpointed) for span in net.segment_spans()]
    assert spans == [(0, 1, False), (1, 5, True), (5, 6, True), (6, 7, False)]
    net = sm.CheckpointedSeq(linear(), relu(), linear(), relu(), linear(), segments=(1, 2))
    assert [(span.start, span.stop) for span in net.segment_spans()] == [(0, 2), (2, 5)]
    assert sm.CheckpointedSeq(relu(), relu()).segment_spans()[0].is_checkpointed is False
    assert sm.CheckpointedSeq().segment_spans() == ()


def test_policies_keep_what_they_say():
    net = sm.CheckpointedSeq(
        nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), segments=1, checkpoint_last=True
    )
    x = torch.randn(2, 4, requires_grad=True)
    assert [step(net, x).calls[name] for name in ("addmm", "tanh")] == [4, 4]
    sm.CheckpointedSeq.wrap(net, segments=1, checkpoint_last=True, policy="matmul")
    assert [step(net, x).calls[name] for name in ("addmm", "tanh")] == [2, 4]
    with pytest.raises(sm.OptionError, match="'all'"):
        sm.CheckpointedSeq(nn.Linear(1, 1), policy="all")


# -- inputs ------------------------------------------------------------------------------------


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None, *, scale=1.0):
        x = self.linear(x).tanh()
        return x if mask is None else x * mask * scale


class Greedy(nn.Module):
    def forward(self, x, **options):
        return x * options.get("scale", 1.0) * options.get("fn", 1.0) + options.get("policy", 0.0)


@pytest.mark.parametrize("segments", [None, 2, "log"], ids=str)
def test_keyword_arguments_reach_the_children_that_take_them(segments):
    children = [Masked(), nn.Tanh(), Greedy(), sm.CheckpointedSeq(Masked(), nn.Tanh()), Masked()]
    net = sm.CheckpointedSeq(*children, segments=segments)
    x, mask = torch.randn(2, WIDTH, requires_grad=True), torch.rand(2, WIDTH, requires_grad=True)
    extra = torch.randn(WIDTH, requires_grad=True)
    # names that the checkpoint function has itself
    out = net(x, mask=mask, scale=0.5, fn=2.0, policy=extra)
    y = children[1](children[0](x, mask, scale=0.5)) * 0.5 * 2.0 + extra
    y = children[3][1](children[3][0](y, mask, scale=0.5))
    expected = children[4](y, mask, scale=0.5)
    assert torch.equal(out, expected)
    leaves = (x, mask, extra, *net.parameters())
    grads = [torch.autograd.grad(o.sum(), leaves) for o in (out, expected)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    bare = sm.CheckpointedSeq(Masked(), nn.Tanh())
    for mode in (bare.train(), bare.eval()):
        with pytest.raises(TypeError, match=r"'masc'.*none of its 2 children"):
            mode(x, masc=mask)


class Swap(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y, scale=1.0):
        return self.linear(y).sin() * scale, x * y


@pytest.mark.parametrize("segments", [None, 2, "log"], ids=str)
def test_several_inputs_between_children(segments):
    torch.manual_seed(0)
    net = sm.CheckpointedSeq(*(Swap() for _ in range(5)), segments=segments, spread=True)
    x, y = (torch.randn(2, WIDTH, requires_grad=True) for _ in range(2))
    found = net(x, y, scale=0.5)
    expected = (x, y)
    for child in net:
        expected = child(*expected, scale=0.5)
    grads = [
        torch.autograd.grad((a.sin() + b).sum(), (x, y, *net.parameters()))
        for a, b in (found, expected)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    count = step(sm.CheckpointedSeq(Starts(), *net, Sum(), segments=segments, spread=True), x)
    assert count.calls["sin"] > 5
    assert sm.CheckpointedSeq(spread=True)(x, y) == (x, y)


class Starts(nn.Module):
    def forward(self, x):
        return x, x * 2


class Sum(nn.Module):
    def forward(self, x, y):
        return x + y


def test_without_spread_a_tuple_is_one_argument_and_one_argument_is_all():
    net = sm.CheckpointedSeq(Twin(), Join())
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(net(x), nn.Sequential(Twin(), Join())(x))
    assert torch.equal(net(input=x), net(x))
    with pytest.raises(TypeError, match=r"2 positional arguments.*spread=True"):
        net(x, x)


# -- the protocol of nn.Sequential -------------------------------------------------------------


def layers(count=6):
    return [nn.Linear(i + 1, i + 2) for i in range(count)]


def append(seq, new):
    return seq.append(new[0])


def insert(seq, new):
    return seq.insert(2, new[0]).insert(-1, new[1]).insert(len(seq), new[2])


def extend(seq, new):
    return seq.extend(new)


def add(seq, new):
    return seq + nn.Sequential(*new)


def add_in_place(seq, new):
    seq += nn.Sequential(*new)
    return seq


def multiply(seq, new):
    return 2 * seq * 2


def multiply_in_place(seq, new):
    seq *= 2
    return seq


def pop(seq, new):
    seq.pop(1), seq.pop(-1)
    return seq


def pop_slice(seq, new):
    seq.pop(slice(1, 3))
    return seq


def delete(seq, new):
    del seq[0], seq[2:4]
    return seq


def assign(seq, new):
    seq[1], seq[-1] = new[0], new[1]
    return seq


def part(seq, new):
    return seq[1:4]


def back(seq, new):
    return seq[::-2]


def nothing(seq, new):
    return seq[3:3]


OPERATIONS = {
    append: (2, 4),
    insert: (2, 5),
    extend: (2, 4),
    add: (2, 4),
    add_in_place: (2, 4),
    multiply: (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22),
    multiply_in_place: (2, 4),
    pop: (1, 3),
    pop_slice: (1, 2),
    delete: (1, 2),
    assign: (2, 4),
    part: (1,),
    back: (1, 2),
    nothing: (),
}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_operations_do_what_those_of_a_sequence_do(operation):
    children, new = layers(), [nn.Tanh() for _ in range(3)]
    plain = nn.Sequential(*children)
    seq = sm.CheckpointedSeq(*children, segments=(2, 4), policy="matmul", checkpoint_last=True)
    expected, found = operation(plain, new), operation(seq, new)
    assert (expected is plain) == (found is seq)
    assert list(found.named_children()) == list(expected.named_children())
    assert (
        list(found.named_modules(remove_duplicate=False))[1:]
        == (list(expected.named_modules(remove_duplicate=False))[1:])
    )
    assert type(found) is sm.CheckpointedSeq and isinstance(found, nn.Sequential)
    assert list(found.state_dict()) == list(expected.state_dict())
    spans = found.segment_spans()
    assert tuple(span.start for span in spans)[1:] == OPERATIONS[operation]
    assert all(span.is_checkpointed for span in spans)
    assert "policy='matmul'" in found.extra_repr()


def test_the_constructor_takes_what_that_of_a_sequence_takes():
    named = OrderedDict(first=nn.Linear(2, 2), act=nn.Tanh())
    for args in ((), (named,), tuple(named.values())):
        plain, seq = nn.Sequential(*args), sm.CheckpointedSeq(*args)
        assert list(plain.named_children()) == list(seq.named_children())
        assert len(plain) == len(seq) and list(plain) == list(seq)
        assert repr(seq) == repr(plain).replace("Sequential", "CheckpointedSeq", 1)
    assert seq[-1] is named["act"] and sm.CheckpointedSeq(named).first is named["first"]
    x = torch.randn(2, 2)
    assert sm.CheckpointedSeq()(x) is x
    for bad in ((nn.Tanh(), "tanh"), (3,)):
        errors = []
        for cls in (nn.Sequential, sm.CheckpointedSeq):
            with pytest.raises(TypeError) as caught:
                cls(*bad)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
    for bad in (1, slice(0, 9)), ("x",), (4,):
        with pytest.raises((TypeError, IndexError)):
            seq[bad[0] if bad != (4,) else 4], seq["x"]


@pytest.mark.parametrize(
    "segments", [0, -1, 2.5, True, "halves", (0,), (2, 1), (1, 1), (3,), (1.0,), "1"], ids=repr
)
def test_segments_that_make_no_sense_are_refused(segments):
    with pytest.raises(sm.OptionError, match="for 3 children"):
        sm.CheckpointedSeq(*layers(3), segments=segments)


def test_state_dicts_load_both_ways():
    plain = nn.Sequential(*layers())
    seq = sm.CheckpointedSeq(*layers(), segments="log")
    assert list(plain.state_dict()) == list(seq.state_dict())
    seq.load_state_dict(plain.state_dict())
    plain.load_state_dict(seq.state_dict())


def test_copies_and_pickles():
    seq = sm.CheckpointedSeq(*make(["linear", "batch norm", "tanh", "dropout"]), segments=(2,))
    found = train(copy.deepcopy(seq))
    for made in (copy.deepcopy(seq), pickle.loads(pickle.dumps(seq))):
        assert type(made) is sm.CheckpointedSeq
        assert made.segment_spans() == seq.segment_spans()
        assert_same(train(made), found)


# -- wrapping ----------------------------------------------------------------------------------


class Mlp(nn.Sequential):
    """A sequence with a constructor and methods of its own."""

    registry: ClassVar[list] = []

    def __init_subclass__(cls, **kwargs):
        Mlp.registry.append(cls)
        super().__init_subclass__(**kwargs)

    def __init__(self, width, depth):
        super().__init__(*(nn.Linear(width, width) for _ in range(depth)))
        self.width = width

    def describe(self):
        return f"{len(self)} of {self.width}"


class Backwards(nn.Sequential):
    def forward(self, x):
        for module in reversed(list(self)):
            x = module(x)
        return x


@pytest.mark.parametrize(
    "build",
    [lambda: nn.Sequential(*make(["linear", "batch norm", "in-place relu"])), lambda: Mlp(4, 3)],
    ids=["plain", "subclass"],
)
def test_wrapping_changes_the_class_and_nothing_else(build):
    seq = build()
    expected = train(copy.deepcopy(seq))
    before = dict(seq.__dict__), type(seq)
    calls = []
    parameters, keys, names = list(seq.parameters()), list(seq.state_dict()), repr(seq)
    seq.register_forward_hook(lambda *_: calls.append(1))
    assert sm.CheckpointedSeq.wrap(seq, segments=2) is seq
    assert isinstance(seq, (nn.Sequential, before[1])) and isinstance(seq, sm.CheckpointedSeq)
    assert all(a is b for a, b in zip(parameters, seq.parameters(), strict=True))
    assert list(seq.state_dict()) == keys and len(seq) == 3
    assert seq.segment_spans()[0].is_checkpointed
    assert_same(train(copy.deepcopy(seq)), expected)
    assert calls
    seq._forward_hooks.clear()
    for made in (copy.deepcopy(seq), pickle.loads(pickle.dumps(seq))):
        assert type(made) is type(seq) and made.segment_spans() == seq.segment_spans()
        assert_same(train(made), expected)
        assert type(sm.CheckpointedSeq.unwrap(made)) is before[1]
    if before[1] is Mlp:
        assert type(seq).__name__ == "Mlp" and seq.describe() == "3 of 4"
        assert Mlp.registry == []
        assert type(sm.CheckpointedSeq.wrap(Mlp(4, 2))) is type(seq)
    assert sm.CheckpointedSeq.unwrap(seq) is seq
    assert type(seq) is before[1] and repr(seq) == names
    assert set(seq.__dict__) == set(before[0])


def test_wrapping_again_exchanges_the_options():
    seq = sm.CheckpointedSeq.wrap(nn.Sequential(*layers()), segments=2)
    sm.CheckpointedSeq.wrap(seq, segments=3, checkpoint_last=True)
    assert len(seq.segment_spans()) == 3 and seq.segment_spans()[-1].is_checkpointed


def test_what_cannot_be_wrapped_stays_as_it_is():
    patched = nn.Sequential(nn.Tanh())
    patched.forward = lambda x: x
    for refused, words in (
        (nn.ModuleList([nn.Tanh()]), "ModuleList. Expected an nn.Sequential"),
        (Backwards(nn.Tanh()), "Backwards has a forward of its own"),
        (patched, "forward of its own"),
    ):
        with pytest.raises(sm.ModuleTypeError, match=words):
            sm.CheckpointedSeq.wrap(refused)
    seq = nn.Sequential(OrderedDict(balance=nn.Tanh()))
    with pytest.raises(sm.OptionError, match=r"'balance'.*Rename"):
        sm.CheckpointedSeq.wrap(seq)
    with pytest.raises(sm.OptionError, match="segments='x'"):
        sm.CheckpointedSeq.wrap(nn.Sequential(nn.Tanh()), segments="x")
    before = dict(seq.__dict__)
    with pytest.raises(sm.OptionError):
        sm.CheckpointedSeq.wrap(seq, segments=2)
    assert type(seq) is nn.Sequential and seq.__dict__ == before

    class Derived(sm.CheckpointedSeq):
        pass

    for refused in (Derived(nn.Tanh()), nn.Sequential(nn.Tanh())):
        with pytest.raises(sm.ModuleTypeError, match=r"Expected a CheckpointedSeq"):
            sm.CheckpointedSeq.unwrap(refused)
    assert type(Derived(nn.Tanh(), nn.Tanh())[:1]) is Derived


def test_a_wrapped_subclass_is_pickled_for_a_fresh_process(tmp_path):
    (tmp_path / "own_mlp.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Sequential):\n"
        "    def __init__(self, n):\n"
        "        super().__init__(*(nn.Linear(2, 2) for _ in range(n)))\n"
    )
    write = (
        "import torch, safemodules as sm, own_mlp\n"
        "torch.save(sm.CheckpointedSeq.wrap(own_mlp.Own(4), segments=2), 'net.pt')\n"
    )
    read = (
        "import torch\n"
        "net = torch.load('net.pt', weights_only=False)\n"
        "import own_mlp, safemodules as sm\n"
        "assert isinstance(net, own_mlp.Own) and isinstance(net, sm.CheckpointedSeq)\n"
        "print(len(net.segment_spans()))\n"
    )
    for code, out in ((write, ""), (read, "2")):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == out


def test_a_parametrized_sequence_keeps_its_parametrization():
    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    seq = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    seq.register_parameter("gain", nn.Parameter(torch.ones(1)))
    nn.utils.parametrize.register_parametrization(seq, "gain", Half())
    expected = train(copy.deepcopy(seq))
    sm.CheckpointedSeq.wrap(seq)
    assert nn.utils.parametrize.is_parametrized(seq) and float(seq.gain.detach()) == 0.5
    assert isinstance(seq, sm.CheckpointedSeq)
    assert_same(train(copy.deepcopy(seq)), expected)
    sm.CheckpointedSeq.unwrap(seq)
    assert float(seq.gain.detach()) == 0.5 and not isinstance(seq, sm.CheckpointedSeq)
    nn.utils.parametrize.remove_parametrizations(seq, "gain")
    assert type(seq) is nn.Sequential


# -- balance -----------------------------------------------------------------------------------


class Heavy(nn.Module):
    """Saves a number of activations."""

    def __init__(self, count):
        super().__init__()
        self.count, self.scale = count, nn.Parameter(torch.ones(()))

    def forward(self, x):
        for _ in range(self.count):
            x = (x * self.scale).sin()
        return x


def starts(seq):
    return [span.start for span in seq.segment_spans()]


def test_segments_are_balanced_by_what_children_save():
    children = [Heavy(count) for count in (8, 1, 1, 1, 1, 4)]
    x = torch.randn(50)
    assert starts(sm.CheckpointedSeq(*children, segments=3)) == [0, 2, 4]
    seq = sm.CheckpointedSeq(*children, segments=3, example_inputs=x)
    assert starts(seq) == [0, 1, 5]
    assert starts(sm.CheckpointedSeq(*children, segments=3).balance(x)) == [0, 1, 5]
    wrapped = sm.CheckpointedSeq.wrap(
        nn.Sequential(*children), segments="sqrt", example_inputs=(x,)
    )
    assert starts(wrapped) == [0, 1]
    children.reverse()
    assert starts(sm.CheckpointedSeq(*children, segments=3, example_inputs=x)) == [0, 1, 5]
    for segments in (None, "log"):
        with pytest.raises(sm.OptionError, match="cannot be balanced"):
            sm.CheckpointedSeq(*children, segments=segments, example_inputs=x)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 9))
def test_no_other_boundaries_are_better(costs, count):
    from safemodules.blocks.balance import boundaries

    children = [nn.Linear(1, 1) for _ in costs]
    found = boundaries(children, costs, count)
    n, k = len(costs), min(count, len(costs))
    weights = costs if any(costs) else [1] * n

    def dearest(bounds):
        edges = [0, *bounds, n]
        return max(sum(weights[a:b]) for a, b in itertools.pairwise(edges))

    assert len(found) == k - 1
    every = itertools.combinations(range(1, n), k - 1)
    assert dearest(found) == min(map(dearest, every))


def test_balancing_leaves_everything_as_it_was():
    seq = sm.CheckpointedSeq(*make(["linear", "batch norm", "ema", "dropout", "pre"]), segments=2)
    x = torch.randn(3, WIDTH)
    before = copy.deepcopy(seq.state_dict()), torch.get_rng_state(), x.clone()
    seq.balance(x)
    assert_same(list(before[0].values()), list(seq.state_dict().values()))
    assert torch.equal(before[1], torch.get_rng_state()) and torch.equal(before[2], x)
    assert all(p.grad is None for p in seq.parameters()) and seq[2].calls == 0
    seq = sm.CheckpointedSeq(Swap(), Swap(), Swap(), spread=True, segments=2)
    assert len(starts(seq.balance((x, x), {"scale": 2.0}))) == 2


# -- compilers and conversion ------------------------------------------------------------------


@pytest.mark.parametrize("segments", [None, "log"], ids=str)
def test_export_trace_and_compile_give_a_plain_sequence(segments):
    torch.manual_seed(0)
    seq = sm.CheckpointedSeq(*make(["linear", "batch norm", "tanh", "linear"]), segments=segments)
    x = torch.randn(3, WIDTH)
    plain = plain_copy(seq)
    expected = plain(x)
    exported = torch.export.export(copy.deepcopy(seq), (x,))
    assert torch.equal(exported.module()(x), expected)
    targets = [n.target for n in exported.graph.nodes if n.op == "call_function"]
    theirs = torch.export.export(plain_copy(seq), (x,))
    assert targets == [n.target for n in theirs.graph.nodes if n.op == "call_function"]
    traced = torch.fx.symbolic_trace(copy.deepcopy(seq))
    assert torch.equal(traced(x), expected)
    compiled = torch.compile(copy.deepcopy(seq), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    holder = nn.Sequential(copy.deepcopy(seq), nn.Tanh())
    assert torch.equal(torch.fx.symbolic_trace(holder)(x), expected.tanh())


@pytest.mark.filterwarnings("ignore:`torch.jit.:FutureWarning", "ignore::DeprecationWarning")
def test_torchscript_compiles_a_plain_sequence():
    seq = sm.CheckpointedSeq(*make(["linear", "tanh"])).eval()
    x = torch.randn(3, WIDTH)
    for scripted in (torch.jit.script(seq), torch.jit.trace(seq, x)):
        assert torch.equal(scripted(x), seq(x))


def test_compiled_with_keyword_arguments():
    seq = sm.CheckpointedSeq(Masked(), nn.Tanh(), Masked())
    x, mask = torch.randn(2, WIDTH), torch.rand(2, WIDTH)
    compiled = torch.compile(seq, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, mask=mask), seq(x, mask=mask))


def test_conversion_treats_it_as_a_sequence():
    names = ["linear", "batch norm", "in-place relu", "linear", "tanh", "in-place relu", "linear"]
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), sm.CheckpointedSeq(*make(names)))
    plain = nn.Sequential(copy.deepcopy(net[0]), plain_copy(net[1]))
    x = torch.randn(3, WIDTH)
    plans = [str(sm.plan_conversion(model, x)) for model in (net, plain)]
    sites = [text.partition("compared")[0] for text in plans]
    assert sites[0] == sites[1] and "2 in-place sites" in sites[0]
    expected = copy.deepcopy(net[1])
    sm.convert_model(net, x)
    assert type(net[1]) is sm.CheckpointedSeq and not net[1][2].inplace
    found = train(copy.deepcopy(net))
    assert_same(found, train(nn.Sequential(copy.deepcopy(net[0]), plain_copy(net[1]))))
    sm.revert_model(net)
    assert net[1][2].inplace and net[1].segment_spans() == expected.segment_spans()


def test_a_region_inside_of_a_region():
    seq = sm.CheckpointedSeq(*make(["linear", "batch norm", "dropout", "ema", "linear"]))
    outer = sm.CheckpointedSeq(seq, nn.Tanh(), segments=1, checkpoint_last=True)
    assert_same(train(plain_copy(outer)), train(outer))
    again = nn.Sequential(copy.deepcopy(seq))
    assert_same(
        train(copy.deepcopy(again)),
        train(Calling(again)),
    )


class Calling(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return sm.checkpoint(self.inner, x)


def test_autocast():
    seq = sm.CheckpointedSeq(*make(["linear", "tanh", "linear", "tanh"]), segments="log")
    plain = plain_copy(seq)
    x = torch.randn(3, WIDTH)
    for net in (seq, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        F.mse_loss(out.float(), x).backward()
    for a, b in zip(seq.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
