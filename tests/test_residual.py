"""SafeResidual computes act(branch(x) + shortcut(x)) bit for bit, and overwrites nothing."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import safemodules as sm
from safemodules.state import RandomState
from safemodules.testing import gradcheck_module


def conv_branch(inputs: int = 4, outputs: int = 4, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Plain(nn.Module):
    """A residual block that computes with a function of the modules given."""

    def __init__(self, compute: Callable[..., Tensor], **modules: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.compute = compute
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.compute(self, *inputs)


class Attention(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


def post_activation() -> tuple[nn.Module, nn.Module, Tensor]:
    block = sm.SafeResidual(conv_branch(), activation=nn.ReLU(inplace=True))
    plain = Plain(lambda m, x: F.relu(m.branch(x) + x), branch=block.branch)
    return block, plain, torch.randn(2, 4, 6, 6)


def bottleneck() -> tuple[nn.Module, nn.Module, Tensor]:
    down = nn.Sequential(nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6))
    block = sm.SafeResidual(conv_branch(4, 6, 2), down, activation=nn.ReLU())
    plain = Plain(
        lambda m, x: F.relu(m.branch(x) + m.shortcut(x)), branch=block.branch, shortcut=down
    )
    return block, plain, torch.randn(2, 4, 6, 6)


def pre_activation() -> tuple[nn.Module, nn.Module, Tensor]:
    norm = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    down = nn.Conv2d(4, 6, 1, 2)
    block = sm.SafeResidual(nn.Conv2d(4, 6, 3, 2, 1), down, norm=norm, shared_norm=True)

    def compute(m: Plain, x: Tensor) -> Tensor:
        h = m.norm(x)
        return m.branch(h) + m.shortcut(h)

    plain = Plain(compute, branch=block.branch, shortcut=down, norm=norm)
    return block, plain, torch.randn(2, 4, 6, 6)


def transformer() -> tuple[nn.Module, nn.Module, Tensor]:
    gamma = nn.Parameter(torch.full((8,), 0.1))
    block = sm.SafeResidual(Attention(), norm=nn.LayerNorm(8), scale=gamma, shortcut_first=True)
    plain = Plain(
        lambda m, x: x + m.branch(m.norm(x)) * m.scale,
        branch=block.branch,
        norm=block.norm,
        scale=gamma,
    )
    return block, plain, torch.randn(2, 5, 8)


def stochastic_depth() -> tuple[nn.Module, nn.Module, Tensor]:
    block = sm.SafeResidual(conv_branch(), drop_path=0.4)
    plain = Plain(
        lambda m, x: torchvision.ops.stochastic_depth(m.branch(x), 0.4, "row", m.training) + x,
        branch=block.branch,
    )
    return block, plain, torch.randn(6, 4, 5, 5)


def rezero() -> tuple[nn.Module, nn.Module, Tensor]:
    block = sm.SafeResidual(nn.Linear(4, 4), scale=0.5, activation=nn.LayerNorm(4))
    plain = Plain(
        lambda m, x: m.activation(m.branch(x) * m.scale + x),
        branch=block.branch,
        scale=block.scale,
        activation=block.activation,
    )
    return block, plain, torch.randn(3, 4)


def squeeze_excite() -> tuple[nn.Module, nn.Module, Tensor]:
    branch = nn.Sequential(*conv_branch(), torchvision.ops.SqueezeExcitation(4, 2))
    block = sm.SafeResidual(branch, activation=nn.Hardswish(inplace=True))
    plain = Plain(lambda m, x: F.hardswish(m.branch(x) + x), branch=branch)
    return block, plain, torch.randn(2, 4, 6, 6)


def subclassed() -> tuple[nn.Module, nn.Module, Tensor]:
    class Block(sm.SafeResidual):
        def __init__(self) -> None:
            super().__init__(activation=nn.GELU())
            self.conv = nn.Conv2d(4, 6, 3, 2, 1)
            self.down = nn.Conv2d(4, 6, 1)

        def branch(self, x: Tensor) -> Tensor:
            return self.conv(x)

        def shortcut(self, x: Tensor) -> Tensor:
            return self.down(F.avg_pool2d(x, 2))

    block = Block()
    plain = Plain(
        lambda m, x: F.gelu(m.conv(x) + m.down(F.avg_pool2d(x, 2))),
        conv=block.conv,
        down=block.down,
    )
    return block, plain, torch.randn(2, 4, 6, 6)


KINDS = [
    post_activation,
    bottleneck,
    pre_activation,
    transformer,
    stochastic_depth,
    rezero,
    squeeze_excite,
    subclassed,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_block_equals_the_formula_bit_for_bit(kind: Callable[[], tuple]) -> None:
    torch.manual_seed(0)
    block, plain, x = kind()
    sm.verify(copy.deepcopy(plain), KeysOf(plain, copy.deepcopy(block)), x).raise_if_different()


class KeysOf(nn.Module):
    """A block under the names that the plain form has for the same tensors."""

    def __init__(self, plain: nn.Module, block: nn.Module) -> None:
        super().__init__()
        for name, child in plain.named_children():
            setattr(self, name, getattr(block, name, child))
        for name, parameter in plain.named_parameters(recurse=False):
            setattr(self, name, getattr(block, name, parameter))
        object.__setattr__(self, "block", block)

    def train(self, mode: bool = True) -> KeysOf:
        self.block.train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_gradients_equal_finite_differences(kind: Callable[[], tuple]) -> None:
    torch.manual_seed(1)
    block, _, x = kind()
    assert gradcheck_module(block.double(), x.double(), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_state_copies_and_pickles_survive(kind: Callable[[], tuple]) -> None:
    torch.manual_seed(2)
    block, _, x = kind()
    block.eval()
    expected = block(x)
    assert torch.equal(copy.deepcopy(block)(x), expected)
    if kind is not subclassed:  # a class in a function cannot be pickled
        assert torch.equal(pickle.loads(pickle.dumps(block))(x), expected)
    fresh = kind()[0].eval()
    assert not torch.equal(fresh(x), expected) or kind is rezero
    fresh.load_state_dict(block.state_dict())
    assert torch.equal(fresh(x), expected)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_block_compiles_without_a_graph_break(kind: Callable[[], tuple]) -> None:
    torch.manual_seed(3)
    block, _, x = kind()
    block.eval()
    expected = block(x)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    exported = torch.export.export(block, (x,)).module()
    assert torch.equal(exported(x), expected)


# -- activations that keep their result ------------------------------------------------------

ACTIVATIONS = {
    "relu": (nn.ReLU, F.relu_),
    "leaky_relu": (lambda inplace: nn.LeakyReLU(0.2, inplace), lambda t: F.leaky_relu_(t, 0.2)),
    "leaky_relu, slope 0": (lambda inplace: nn.LeakyReLU(0.0, inplace), None),
    "leaky_relu, slope -1": (lambda inplace: nn.LeakyReLU(-1.0, inplace), None),
    "elu": (lambda inplace: nn.ELU(1.3, inplace), lambda t: F.elu_(t, 1.3)),
    "selu": (nn.SELU, F.selu_),
    "celu": (lambda inplace: nn.CELU(0.7, inplace), lambda t: F.celu_(t, 0.7)),
    "relu6": (nn.ReLU6, lambda t: F.hardtanh_(t, 0, 6)),
    "silu": (nn.SiLU, lambda t: F.silu(t, inplace=True)),
    "hardswish": (nn.Hardswish, lambda t: F.hardswish(t, inplace=True)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_flagged_in_place_gives_the_bits_of_its_in_place_form(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    make, overwrite = ACTIVATIONS[name]
    torch.manual_seed(0)
    x = (3 * torch.randn(501, device=device)).to(dtype)
    given = make(inplace=True)
    block = sm.SafeResidual(nn.Identity(), activation=given)
    leaf = x.clone().requires_grad_()
    out = block(leaf)
    if overwrite is None:  # torch has no gradient of the in-place form
        expected_leaf = x.clone().requires_grad_()
        expected = make(inplace=False)(expected_leaf + expected_leaf)
    else:
        expected_leaf = x.clone().requires_grad_()
        expected = overwrite(expected_leaf + expected_leaf)
    seed = torch.randn(501, device=device).to(dtype)
    assert torch.equal(out, expected)
    got = torch.autograd.grad(out, leaf, seed)[0]
    assert torch.equal(got, torch.autograd.grad(expected, expected_leaf, seed)[0])
    assert given.inplace is True
    with torch.no_grad():
        assert torch.equal(block(x), expected)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_second_derivatives_of_activations_equal_finite_differences(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, dtype=torch.float64) + 0.05
    block = sm.SafeResidual(nn.Identity(), activation=ACTIVATIONS[name][0](inplace=True))
    x.requires_grad_()
    assert torch.autograd.gradcheck(block, x)
    assert torch.autograd.gradgradcheck(block, x)


def saved_bytes(run: Callable[[], Tensor]) -> int:
    sizes: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return sum(sizes.values())


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "selu", "celu"])
def test_a_chain_of_blocks_saves_no_more_than_blocks_in_place(name: str) -> None:
    make, overwrite = ACTIVATIONS[name]
    convs = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)]
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    blocks = nn.Sequential(*(sm.SafeResidual(c, activation=make(inplace=True)) for c in convs))

    def in_place() -> Tensor:
        h = x
        for conv in convs:
            y = conv(h)
            y += h
            h = overwrite(y)
        return h

    assert saved_bytes(lambda: blocks(x)) == saved_bytes(in_place)


def test_full_backward_hooks_may_be_on_every_part() -> None:
    block = sm.SafeResidual(nn.Linear(3, 3), activation=nn.ReLU(inplace=True))
    for module in block.modules():
        module.register_full_backward_hook(lambda *_: None)
    block(torch.randn(2, 3, requires_grad=True)).sum().backward()


# -- the projection ----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    spatial=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    stride=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_a_projection_equals_a_convolution_made_by_hand(
    spatial: list[int], stride: int, channels: tuple[int, int]
) -> None:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(spatial) - 1]
    x = torch.randn(2, channels[0], *spatial)
    branch = conv(*channels, 3, stride, 1)
    block = sm.SafeResidual(branch, "project")
    torch.manual_seed(7)
    out = block(x)
    after = torch.get_rng_state()
    # several strides lead to the same size; the smallest is taken
    sizes = branch(x).shape[2:]
    steps = tuple(
        next(s for s in range(1, 10) if -(-a // s) == b)
        for a, b in zip(spatial, sizes, strict=True)
    )
    torch.manual_seed(7)
    by_hand = conv(*channels, 1, steps)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(out, branch(x) + by_hand(x))
    assert block.shortcut.state_dict().keys() == by_hand.state_dict().keys()
    assert torch.equal(block.shortcut.weight, by_hand.weight)


def test_a_linear_projection_equals_a_linear_layer() -> None:
    branch, x = nn.Linear(4, 6), torch.randn(2, 5, 4)
    block = sm.SafeResidual(branch, "linear")
    torch.manual_seed(1)
    out = block(x)
    torch.manual_seed(1)
    assert torch.equal(out, branch(x) + nn.Linear(4, 6)(x))
    assert gradcheck_module(block.double(), x.double())


def test_a_lazy_projection_loads_a_state_dict_before_its_first_call() -> None:
    x = torch.randn(2, 4, 6, 6)
    built, fresh = (sm.SafeResidual(conv_branch(4, 6, 2), "project").eval() for _ in range(2))
    out = built(x)
    fresh.load_state_dict(built.state_dict())
    assert torch.equal(fresh(x), out)
    again = io.BytesIO()
    torch.save(built.state_dict(), again)
    again.seek(0)
    assert torch.load(again).keys() == built.state_dict().keys()


def test_an_optimizer_made_before_the_first_call_keeps_the_projection() -> None:
    block = sm.SafeResidual(conv_branch(4, 6, 2), "project", stride=2)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    block(torch.randn(2, 4, 6, 6)).sum().backward()
    before = block.shortcut.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(block.shortcut.weight, before)


def test_a_lazy_projection_is_built_under_no_grad_and_inference_mode() -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        block = sm.SafeResidual(nn.Conv2d(2, 3, 1), "project")
        with mode():
            block(torch.randn(1, 2, 4, 4))
        block(torch.randn(1, 2, 4, 4)).sum().backward()
        assert block.shortcut.weight.grad is not None


def test_device_and_dtype_are_those_asked_for(device: torch.device) -> None:
    options = {"device": device, "dtype": torch.float64}
    block = sm.SafeResidual(nn.Conv2d(2, 3, 1, **options), "project", scale=0.0, **options)
    out = block(torch.randn(1, 2, 4, 4, **options))
    assert out.dtype == torch.float64
    assert out.device.type == device.type
    assert block.scale.dtype == block.shortcut.weight.dtype == torch.float64


# -- stochastic depth ----------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_dropped_rows_are_those_that_torchvision_drops(probability: float) -> None:
    x = torch.randn(16, 3)
    block = sm.SafeResidual(nn.Identity(), drop_path=probability)
    torch.manual_seed(5)
    out = block(x)
    after = RandomState.capture().streams["torch.cpu"]
    torch.manual_seed(5)
    expected = torchvision.ops.stochastic_depth(x, probability, "row", training=True) + x
    assert torch.equal(out, expected)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(block.eval()(x), x + x)


# -- what is refused ------------------------------------------------------------------------------


def test_shapes_that_differ_are_named_with_the_path_and_the_mend() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(sm.SafeResidual(conv_branch(4, 6, 2))))
    with pytest.raises(sm.ResidualError) as caught:
        net(torch.randn(2, 3, 8, 8))
    text = str(caught.value)
    assert "1.0 (SafeResidual) of Sequential" in text
    assert "(2, 6, 4, 4)" in text and "(2, 4, 8, 8)" in text and '"project"' in text
    given = sm.SafeResidual(conv_branch(4, 6, 2), nn.Conv2d(4, 6, 1))
    with pytest.raises(sm.ResidualError, match="stride"):
        given(torch.randn(2, 4, 8, 8))


def test_a_shape_that_would_broadcast_is_refused() -> None:
    block = sm.SafeResidual(nn.AdaptiveAvgPool2d(1))
    with pytest.raises(sm.ResidualError, match=r"expand_as|shortcut="):
        block(torch.randn(2, 3, 4, 4))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_branch_that_overwrites_what_the_shortcut_reads_is_refused(mode: Callable) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), sm.SafeResidual(nn.Sequential(nn.ReLU(inplace=True), conv_branch()))
    )
    with mode(), pytest.raises(sm.OverwrittenInputError, match=r"1 \(SafeResidual\) of Seq.*place"):
        net(torch.randn(2, 3, 8, 8))
    norm = sm.SafeResidual(nn.Conv2d(3, 3, 1), norm=nn.ReLU(inplace=True), shared_norm=True)
    with mode(), pytest.raises(sm.OverwrittenInputError, match="norm overwrote"):
        norm(torch.randn(2, 3, 8, 8))


def test_what_cannot_be_meant_is_refused() -> None:
    class Both(sm.SafeResidual):
        def branch(self, x: Tensor) -> Tensor:
            return x

    for make, error, match in [
        (lambda: sm.SafeResidual(), sm.ResidualError, "no branch"),
        (lambda: Both(nn.Identity()), sm.ResidualError, "method branch"),
        (lambda: sm.SafeResidual(nn.Identity(), "projct"), sm.OptionError, "'project', 'linear'"),
        (lambda: sm.SafeResidual(nn.Identity(), drop_path=1.5), sm.OptionError, "1.5"),
        (lambda: sm.SafeResidual(nn.Identity(), shared_norm=True), sm.OptionError, "norm="),
        (lambda: sm.SafeResidual(nn.Identity(), stride=2), sm.OptionError, "project"),
        (
            lambda: sm.SafeResidual(nn.Identity(), scale=torch.ones(3)),
            sm.OptionError,
            "nn.Parameter",
        ),
        (
            lambda: sm.SafeResidual(lambda x: (x, x))(torch.ones(2)),
            sm.ResidualError,
            "returned a tuple",
        ),
        (
            lambda: sm.SafeResidual(nn.Identity(), "project")(torch.ones(2, 3)),
            sm.ResidualError,
            '"linear"',
        ),
        (
            lambda: sm.SafeResidual(nn.Upsample(scale_factor=2), "project")(torch.ones(1, 1, 2, 2)),
            sm.ResidualError,
            "no stride",
        ),
    ]:
        with pytest.raises(error, match=match):
            make()


def test_a_block_in_a_model_is_safe_to_convert() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), sm.SafeResidual(conv_branch(), drop_path=0.2))
    x = torch.randn(2, 3, 6, 6)
    reference = copy.deepcopy(net)
    sm.verify(reference, sm.convert_model(net, x), x).raise_if_different()


def test_arguments_beside_the_input_reach_the_branch() -> None:
    block = sm.SafeResidual(Attention(), norm=nn.LayerNorm(8)).eval()
    x, mask = torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert torch.equal(block(x, mask=mask), x + block.branch(block.norm(x), mask))
