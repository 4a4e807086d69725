"""Flags: torch's classes, subclasses of them, and modules of users and libraries."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from tensor_strategy import bits
from test_rewriting import swap_everything
from torch import nn

import safemodules as sm
from safemodules.mutation.operators import INPLACE_MODULES
from safemodules.rewriting.flags import FORWARDS

ARGUMENTS = {nn.Threshold: (0.1, 0.2)}
IN_PLACE = sorted(INPLACE_MODULES, key=lambda cls: cls.__name__)


def around(*acts: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), *acts)


def x(cls: type = nn.ReLU):
    """An input with as many dimensions as a class wants."""
    shape = {nn.Dropout2d: (2, 3, 2, 4), nn.Dropout3d: (2, 3, 2, 2, 4)}.get(cls, (2, 3, 4))
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def test_torch_has_these_classes_and_no_others():
    import inspect

    found = {
        cls
        for cls in vars(nn).values()
        if isinstance(cls, type)
        and issubclass(cls, nn.Module)
        and "inplace" in inspect.signature(cls.__init__).parameters
    }
    assert found == set(INPLACE_MODULES)
    assert len(found) == 19


@pytest.mark.parametrize("cls", IN_PLACE, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("subclass", [False, True], ids=["torch's", "subclass"])
def test_every_class_of_torch_is_switched_off(cls, subclass):
    made = type("Mine", (cls,), {"__module__": __name__}) if subclass else cls
    act = made(*ARGUMENTS.get(cls, ()), inplace=True)
    model = around(act)
    torch.manual_seed(3)
    with torch.no_grad():
        expected = model(x(cls))
    sm.convert_model(model, x(cls))
    assert type(model[2]) is made
    assert model[2] is act
    assert act.inplace is False
    torch.manual_seed(3)
    out = model(x(cls))
    assert torch.equal(out.detach(), expected)
    out.sum().backward()
    sm.revert_model(model)
    assert act.inplace is True
    (site,) = sm.plan_conversion(model, x(cls)).sites
    assert site.site.source == f"{made.__name__}(inplace=True)"
    assert site.modules == ("2",)


class Direct(nn.Module):
    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x):
        return F.relu(x, inplace=self.inplace)


class Branching(Direct):
    def forward(self, x):
        if self.inplace:
            return x.mul_(2)
        return x * 2


def swish(x, inplace: bool = False):
    return x.mul_(x.sigmoid()) if inplace else x.mul(x.sigmoid())


class HandedOn(Direct):
    """As timm's activations do."""

    def forward(self, x):
        return swish(x, self.inplace)


class ThroughMethod(Direct):
    def forward(self, x):
        return self.act(x)

    def act(self, x):
        return F.silu(x, self.inplace)


class ThroughProperty(Direct):
    @property
    def options(self):
        return {"inplace": self.inplace}

    def forward(self, x):
        return F.elu(x, **self.options)


class Inherited(Direct):
    """Reads it in its base class."""


class OnClass(nn.Module):
    inplace = True

    def forward(self, x):
        return F.relu(x, inplace=self.inplace)


class Settable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._flag = True

    @property
    def inplace(self):
        return self._flag

    @inplace.setter
    def inplace(self, value):
        self._flag = value

    def forward(self, x):
        return F.relu(x, inplace=self.inplace)


@pytest.mark.parametrize(
    "cls",
    [Direct, Branching, HandedOn, ThroughMethod, ThroughProperty, Inherited, OnClass, Settable],
)
def test_flags_that_the_forward_reads_are_switched_off(cls):
    act = cls()
    model = around(act)
    before, attributes = type(act), dict(vars(act))
    with torch.no_grad():
        expected = model(x())
    sm.convert_model(model, x())
    assert act.inplace is False
    assert not sm.conversion_plan(model).skipped
    out = model(x())
    assert torch.equal(out.detach(), expected)
    out.sum().backward()
    sm.revert_model(model)
    assert type(act) is before
    assert vars(act) == attributes
    assert cls.__dict__.get("inplace", True) is not False


class Unread(nn.Module):
    inplace = True

    def forward(self, x):
        return x * 2


class Overridden(nn.ReLU):
    def forward(self, x):
        return x.clamp(min=0)


class CallsSuper(nn.ReLU):
    def forward(self, x):
        return super().forward(x) * 2


class CallsBase(nn.ReLU):
    def forward(self, x):
        return nn.ReLU.forward(self, x) * 2


@pytest.mark.parametrize("act", [Unread(), Overridden(inplace=True)], ids=["user", "subclass"])
def test_flags_that_no_forward_reads_are_left_and_named(act):
    model = around(act, nn.ReLU(inplace=True))
    plan = sm.plan_conversion(model, x())
    assert [str(skipped) for skipped in plan.skipped] == [
        "2: it has a flag `inplace` that its forward does not read"
    ]
    with pytest.warns(sm.ConversionWarning, match="2: it has a flag `inplace`"):
        plan.apply()
    assert act.inplace is True


@pytest.mark.parametrize("cls", [CallsSuper, CallsBase])
def test_flags_that_the_forward_of_the_base_reads_are_switched_off(cls):
    model = around(cls(inplace=True))
    sm.convert_model(model, x())
    assert model[2].inplace is False
    model(x()).sum().backward()


@pytest.mark.parametrize("value", [1, "yes", 2.0], ids=str)
def test_values_that_are_no_booleans_are_left_and_named(value):
    act = Direct(value)
    model = around(act)
    plan = sm.plan_conversion(model)
    assert not [s for s in plan.sites if s.site.kind is sm.SiteKind.MODULE_FLAG]
    (skipped,) = plan.skipped
    assert skipped.name == "2"
    assert repr(value) in skipped.reason
    assert act.inplace is value


@pytest.mark.parametrize("value", [False, None, 0, ""], ids=repr)
def test_values_that_are_false_are_nothing_to_tell_of(value):
    plan = sm.plan_conversion(around(Direct(value)))
    assert not plan.skipped
    assert not [s for s in plan.sites if s.site.kind is sm.SiteKind.MODULE_FLAG]


class Unreadable(nn.Module):
    @property
    def inplace(self):
        raise RuntimeError("not now")

    def forward(self, x):
        return x


def test_a_flag_that_cannot_be_read_is_a_clear_error():
    model = around(nn.ReLU(inplace=True), Unreadable())
    with pytest.raises(sm.ConversionError, match=r"flag `inplace` of 3 \(Unreadable\).*not now"):
        sm.convert_model(model, x())
    assert model[2].inplace is True


def test_a_shared_flag_is_one_site():
    act = nn.ReLU(inplace=True)
    model = around(act, nn.Linear(4, 4), act)
    (site,) = sm.plan_conversion(model, x()).sites
    assert site.modules == ("2", "4")
    sm.convert_model(model, x())(x()).sum().backward()


def test_activations_of_timm_are_switched_off():
    layers = pytest.importorskip("timm.layers.activations")
    for name in ("Swish", "HardSwish", "HardSigmoid", "HardMish", "Sigmoid", "Tanh"):
        model = around(getattr(layers, name)(inplace=True))
        with torch.no_grad():
            expected = model(x())
        sm.convert_model(model, x())
        assert model[2].inplace is False, name
        assert torch.equal(model(x()).detach(), expected)


def test_the_mlp_of_torchvision_is_switched_off():
    ops = pytest.importorskip("torchvision.ops")
    model = ops.MLP(4, [4, 4], inplace=True, dropout=0.1)
    sm.convert_model(model, x())
    assert not [m for m in model.modules() if getattr(m, "inplace", False)]


# -- what the in-place form computes, bit for bit -----------------------------------------------

OPTIONS = {
    nn.Threshold: [(0.1, 0.2), (-0.5, 3.0)],
    nn.ELU: [(), (0.3,)],
    nn.CELU: [(), (0.3,)],
    nn.LeakyReLU: [(), (0.3,)],
    nn.Hardtanh: [(), (-0.5, 0.25)],
    nn.Dropout: [(), (0.0,), (1.0,)],
}
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, -6.0, 1e-30, -1e-30, 20.0, -20.0]
EDGES += [100.0, -100.0, float("inf"), -float("inf")]
CALLS = [(cls, options) for cls in IN_PLACE for options in OPTIONS.get(cls, [()])]


class OwnELU(nn.Module):
    """The flag is read for a name, for an expression, over lines, and turned around."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x):
        x = F.elu(x, inplace=self.inplace)
        x = F.celu(x * 2, 0.5, self.inplace)
        return F.selu(
            x - 1,
            inplace=self.inplace,
        )


class NotFrozen(nn.Module):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.frozen = frozen

    def forward(self, x):
        return F.elu(x * 2, inplace=not self.frozen)


def result_and_gradient(module, cls, dtype):
    size = torch.Size(x(cls).shape).numel()
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(size, dtype=torch.float64, generator=generator) * 3
    values[: len(EDGES)] = torch.tensor(EDGES, dtype=torch.float64)
    leaf = values.to(dtype).reshape(x(cls).shape).requires_grad_()
    torch.manual_seed(3)
    out = module(leaf * 1)
    weights = torch.linspace(-1, 2, size, dtype=dtype).reshape(leaf.shape)
    (gradient,) = torch.autograd.grad(out, leaf, weights)
    return bits(out), bits(gradient), torch.get_rng_state().tolist()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cls", "options"), CALLS)
def test_gradients_are_those_of_the_in_place_form(cls, options, dtype, training):
    made = cls(*options, inplace=True).train(training)
    expected = result_and_gradient(made, cls, dtype)
    model = nn.Sequential(made)
    swap_everything(model)
    assert made.inplace is False
    assert result_and_gradient(model, cls, dtype) == expected
    assert result_and_gradient(made, cls, dtype) == expected


@pytest.mark.parametrize("act", [OwnELU(True), OwnELU(False), NotFrozen(True), NotFrozen(False)])
def test_gradients_of_a_users_activation_are_those_that_its_flag_chose(act):
    expected = result_and_gradient(act, nn.ELU, torch.float64)
    flag = getattr(act, "inplace", None)
    other = OwnELU(not flag)  # flags of two modules of one class, of which one is switched off
    model = nn.Sequential(act, other)
    swap_everything(model)
    assert getattr(act, "inplace", None) is (None if flag is None else False)
    assert result_and_gradient(act, nn.ELU, torch.float64) == expected
    sm.revert_model(model)
    assert getattr(act, "inplace", None) is flag


def test_every_forward_of_torch_that_reads_the_flag_is_known():
    ignoring = {nn.AlphaDropout, nn.FeatureAlphaDropout}
    assert {cls.forward for cls in set(INPLACE_MODULES) - ignoring} == set(FORWARDS)
    assert not any("inplace" in cls.forward.__code__.co_names for cls in ignoring)
    for cls in set(INPLACE_MODULES) - ignoring:
        call, attributes = FORWARDS[cls.forward]
        names = {"F", call.__name__.strip("_"), *attributes, "inplace"}
        assert set(cls.forward.__code__.co_names) == names


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_run_their_own_options(again):
    model = sm.convert_model(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.ELU(inplace=True)))
    twin = again(model)
    assert type(twin[2]) is nn.ELU
    assert torch.equal(twin(x()), model(x()))
    twin[2].alpha = 0.2
    assert not torch.equal(twin(x()), model(x()))
    sm.revert_model(twin)
    assert set(vars(twin[2])) == set(vars(nn.ELU()))


def test_the_type_of_an_activation_and_its_forward_come_back():
    act = nn.ELU(inplace=True)
    before = dict(vars(act))
    model = sm.convert_model(around(act))
    assert type(act) is nn.ELU
    assert vars(sm.revert_model(model)[2]) == before
    assert act.forward.__func__ is nn.ELU.forward


def test_a_forward_that_the_user_puts_there_stays():
    act = nn.ELU(inplace=True)
    model = sm.convert_model(around(act))
    inner = act.forward
    act.forward = lambda x: inner(x) * 2
    expected = model(x())
    outer = act.forward
    sm.revert_model(model)
    assert act.forward is outer
    assert torch.equal(model(x()), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripting_leaves_the_modules_where_they_are():
    act = nn.ELU(inplace=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Sigmoid(), act))
    sm.convert_model(model)
    scripted = torch.jit.script(model)
    assert torch.equal(scripted(x()), model(x()))
    assert model[1][1] is act
    assert "forward" in vars(act)


@pytest.mark.parametrize("last", ["module", "function"])
def test_a_checkpoint_may_end_its_recomputation_in_an_activation(last):
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            h = torch.sigmoid(self.lin(x))
            return self.act(h) if last == "module" else F.relu(h, inplace=True)

    model = sm.convert_model(Last(), x(), checkpoint=False)
    model(x()).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sm.checkpoint(model, x()).sum().backward()
    assert all(map(torch.equal, [p.grad for p in model.parameters()], expected))
