import copy
import threading
from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from safemodules.trees import (
    CallArguments,
    clone_inputs,
    clone_tensor,
    describe_structure,
    flatten_tensors,
    map_tensors,
)

Pair = namedtuple("Pair", "left right")


@dataclass
class Record:
    feats: list
    mask: torch.Tensor | None = None


@dataclass(frozen=True)
class Frozen:
    value: torch.Tensor
    names: dict = field(default_factory=dict)


class Output(OrderedDict):
    """A mapping whose entries are attributes as well, as transformers returns them."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor


class Plain:
    def __init__(self, tensor):
        self.tensor = tensor
        self.me = self


def paths(obj):
    return [path for path, _ in flatten_tensors(obj)]


def test_paths_read_like_the_expression_that_reaches_the_tensor():
    t = torch.zeros(1)
    value = {"feats": [t, (t,)], 3: Pair(t, None), "rec": Record([t], t), "obj": Plain(t)}
    found = paths(value)
    assert found == [
        'out["feats"][0]',
        'out["feats"][1][0]',
        "out[3].left",
        'out["rec"].feats[0]',
        'out["rec"].mask',
        'out["obj"].tensor',
    ]
    out = value
    assert all(eval(path, {"out": out}) is t for path in found)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: Output(a=t, b=None),
        lambda t: UserDict(a=t),
        lambda t: deque([t]),
        lambda t: Slotted(t),
        lambda t: Frozen(t),
        lambda t: Pair(1, t),
        lambda t: {t},
        lambda t: torch.max(torch.stack([t, t]), 0),
    ],
    ids=["mapping", "UserDict", "deque", "slots", "frozen", "namedtuple", "set", "structseq"],
)
def test_a_container_is_flattened_and_rebuilt_as_its_own_type(make):
    value = make(torch.ones(2))
    mapped = map_tensors(lambda t: t * 0 + 5, value)
    assert type(mapped) is type(value)
    assert paths(mapped) == paths(value) != []
    assert all((t == 5).all() for _, t in flatten_tensors(mapped))
    assert all((t != 5).all() for _, t in flatten_tensors(value))


def test_a_packed_sequence_is_flattened_and_rebuilt():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    mapped = map_tensors(torch.clone, packed)
    assert type(mapped) is type(packed)
    assert torch.equal(mapped.batch_sizes, packed.batch_sizes)
    assert mapped.data is not packed.data


def test_a_module_is_neither_entered_nor_copied():
    net = nn.Linear(1, 1)
    assert paths([net, torch.zeros(1)]) == ["out[1]"]
    assert map_tensors(torch.clone, [net])[0] is net


def test_cycles_end():
    value = [torch.zeros(1)]
    value.append(value)
    assert paths(value) == ["out[0]"]
    mapped = map_tensors(torch.clone, value)
    assert mapped[1] is mapped
    assert mapped[0] is not value[0]
    assert paths(Plain(torch.zeros(1))) == ["out.tensor"]


def test_shared_tensors_stay_shared_and_fn_is_called_once_for_each():
    t, calls = torch.zeros(1), []
    mapped = map_tensors(lambda x: calls.append(x) or x + 1, [t, {"again": t}])
    assert mapped[0] is mapped[1]["again"]
    assert len(calls) == 1


def test_what_cannot_be_copied_is_handed_on_and_the_rest_is_copied():
    lock, names = threading.Lock(), ["a"]
    mapped = map_tensors(torch.clone, {"lock": lock, "names": names})
    assert mapped["lock"] is lock
    assert mapped["names"] == names
    assert mapped["names"] is not names


def test_structure_tells_a_tuple_from_a_list_and_one_number_from_another():
    assert describe_structure([1.5]) != describe_structure((1.5,))
    assert describe_structure([1.5]) != describe_structure([1.25])
    assert describe_structure([object()]) == describe_structure([object()])


def test_arguments_have_paths_of_their_own():
    call = CallArguments((torch.zeros(1), [torch.zeros(1)]), {"mask": torch.zeros(1)})
    assert [path for path, _ in flatten_tensors(call, "")] == [
        "inputs[0]",
        "inputs[1][0]",
        'kwargs["mask"]',
    ]


def test_cloned_inputs_may_be_written_and_pass_their_gradient_to_the_leaf():
    x = torch.ones(3)
    copied, leaves = clone_inputs([x, torch.arange(3)], requires_grad=True)
    copied[0].mul_(2)
    (grad,) = torch.autograd.grad(copied[0].sum(), list(leaves.values()))
    assert torch.equal(grad, torch.full((3,), 2.0))
    assert torch.equal(x, torch.ones(3))
    assert list(leaves) == ["inputs[0]"]


def test_cloned_inputs_of_inference_mode_are_ordinary_tensors():
    with torch.inference_mode():
        x = torch.ones(2)
        copied, _ = clone_inputs(x, requires_grad=True)
    assert not copied.is_inference()
    assert copied.requires_grad


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.data(),
)
def test_a_clone_keeps_shape_strides_and_values_and_owns_its_memory(shape, data):
    x = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    for dim in range(len(shape)):
        step = data.draw(st.integers(1, 2))
        x = x[(slice(None),) * dim + (slice(None, None, step),)]
    x = x.permute(data.draw(st.permutations(range(len(shape)))))
    if data.draw(st.booleans()):
        x = x.unsqueeze(0).expand(3, *x.shape)
    before = x.clone()
    copied = clone_tensor(x)
    assert copied.stride() == x.stride()
    assert torch.equal(copied, x)
    copied.data[..., :1].zero_() if 0 not in copied.stride() else copied.select(0, 0).zero_()
    assert torch.equal(x, before)


def test_overlapping_windows_are_copied_densely():
    windows = torch.arange(6.0).as_strided((4, 3), (1, 1))
    assert torch.equal(clone_tensor(windows), windows)


def test_deepcopy_alone_would_fail_on_a_non_leaf_tensor():
    x = torch.ones(1, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy([x])
    assert map_tensors(torch.detach, [x])[0].item() == 2
