"""Flags: torch's classes, subclasses of them, and modules of users and libraries."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import safemodules as sm
from safemodules.mutation.operators import INPLACE_MODULES

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
