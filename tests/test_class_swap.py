"""A converted module is the same object, in every respect but what its forward overwrites."""

import copy
import gc
import inspect
import weakref

import cases
import pytest
import torch
from torch import nn

import safemodules as sm

CASES = sorted(cases.BUILDERS)


converted = cases.converted


def run(model: nn.Module, x=None):
    """Output, gradients and buffers of one run."""
    torch.manual_seed(1)
    x = (cases.example() if x is None else x).clone().requires_grad_()
    out = model(x)
    grads = torch.autograd.grad(
        out.sum(), [x, *model.parameters()], allow_unused=True, materialize_grads=True
    )
    return [out.detach(), *grads, *(b.clone() for b in model.buffers())]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def snapshot(model: nn.Module):
    """All of a model that a conversion may change: classes, attributes and their identities."""
    return [
        (path, type(m), {k: id(v) for k, v in m.__dict__.items()}, list(m.__dict__))
        for path, m in model.named_modules(remove_duplicate=False)
    ]


@pytest.mark.parametrize("name", CASES)
class TestEveryModel:
    """Contracts that hold for every model of the list."""

    def test_something_is_swapped_and_nothing_is_skipped(self, name):
        plan = sm.plan_conversion(cases.build(name), cases.example())
        assert any(site.decision == "swap" for site in plan.sites)
        assert not plan.skipped

    def test_values_are_those_of_the_original(self, name):
        with torch.no_grad():
            expected = cases.build(name)(cases.example())
            assert torch.equal(converted(name)(cases.example()), expected)

    def test_backward_works(self, name):
        run(converted(name))

    def test_the_object_and_all_that_it_holds_are_the_same(self, name):
        model = cases.build(name)
        before = (
            list(model.named_modules(remove_duplicate=False)),
            list(model.named_parameters(remove_duplicate=False)),
            list(model.named_buffers(remove_duplicate=False)),
            [m.training for m in model.modules()],
        )
        assert sm.convert_model(model, cases.example()) is model
        after = (
            list(model.named_modules(remove_duplicate=False)),
            list(model.named_parameters(remove_duplicate=False)),
            list(model.named_buffers(remove_duplicate=False)),
            [m.training for m in model.modules()],
        )
        assert [[(n, id(v)) for n, v in part] for part in before[:3]] == [
            [(n, id(v)) for n, v in part] for part in after[:3]
        ]
        assert before[3] == after[3]

    def test_classes_keep_their_names_and_descend_from_the_users(self, name):
        model = cases.build(name)
        before = [type(m) for m in model.modules()]
        sm.convert_model(model, cases.example())
        for module, cls in zip(model.modules(), before, strict=True):
            assert isinstance(module, cls)
            made = type(module)
            assert type(made) is type(cls)
            for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
                assert getattr(made, attribute) == getattr(cls, attribute)
            assert inspect.get_annotations(made) == inspect.get_annotations(cls)
            assert inspect.getsource(made) == inspect.getsource(cls)
            assert repr(module) == repr(module).replace("Converted", "")

    def test_revert_restores_everything(self, name):
        model = cases.build(name)
        before = snapshot(model)
        assert sm.revert_model(sm.convert_model(model, cases.example())) is model
        assert snapshot(model) == before
        assert not sm.is_converted(model)

    def test_planning_leaves_everything(self, name):
        model = cases.build(name)
        before = snapshot(model)
        sm.plan_conversion(model)
        sm.plan_conversion(model, cases.example())
        assert snapshot(model) == before

    def test_converting_again_changes_nothing(self, name):
        model = converted(name)
        before = snapshot(model)
        for inputs in (None, cases.example()):
            assert sm.convert_model(model, inputs) is model
            assert snapshot(model) == before

    def test_reverting_and_converting_again_works(self, name):
        model = converted(name)
        expected = run(copy.deepcopy(model))
        sm.convert_model(sm.revert_model(model), cases.example())
        assert_same(run(model), expected)

    def test_deep_copies_share_classes_and_nothing_else(self, name):
        model = converted(name)
        twin = copy.deepcopy(model)
        assert [type(m) for m in twin.modules()] == [type(m) for m in model.modules()]
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
        assert_same(run(twin), run(model))
        sm.revert_model(twin)
        assert sm.is_converted(model)
        assert not sm.is_converted(twin)

    def test_a_shallow_copy_keeps_the_class(self, name):
        model = converted(name)
        assert type(copy.copy(model)) is type(model)

    def test_state_dict_round_trips(self, name):
        model, plain = converted(name), cases.build(name)
        assert list(model.state_dict()) == list(plain.state_dict())
        torch.manual_seed(5)
        for parameter in plain.parameters():
            nn.init.normal_(parameter)
        model.load_state_dict(plain.state_dict())
        plain.load_state_dict(model.state_dict())
        with torch.no_grad():
            torch.manual_seed(1)
            expected = plain(cases.example())
            torch.manual_seed(1)
            assert torch.equal(model(cases.example()), expected)

    def test_an_optimizer_made_before_trains_it(self, name):
        model = cases.build(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sm.convert_model(model, cases.example())
        before = [p.detach().clone() for p in model.parameters()]
        model(cases.example()).sum().backward()
        optimizer.step()
        for old, parameter in zip(before, model.parameters(), strict=True):
            if parameter.grad is None:
                continue
            assert torch.equal(parameter, old.add(parameter.grad, alpha=-0.1))

    def test_averaging_deep_copies_works(self, name):
        model = converted(name)
        average = torch.optim.swa_utils.AveragedModel(model)
        average.update_parameters(model)
        assert sm.is_converted(average)
        run(average)


def test_a_clash_is_what_these_models_mend():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(cases.build("residual"))


# -- hooks, containers, training flags ------------------------------------------------------


def test_hooks_stay_and_fire():
    model = cases.build("residual")
    fired = []
    model.register_forward_pre_hook(lambda *_: fired.append("pre"))
    model.register_forward_hook(lambda *_: fired.append("post"))
    model.register_full_backward_pre_hook(lambda *_: fired.append("backward pre"))
    model.register_full_backward_hook(lambda *_: fired.append("backward"))
    model.linear.register_forward_hook(lambda *_: fired.append("inner"))
    sm.convert_model(model, cases.example())
    fired.clear()
    run(model)
    assert fired == ["pre", "inner", "post", "backward pre", "backward"]
    sm.revert_model(model)
    fired.clear()
    with torch.no_grad():
        model(cases.example())
    assert fired == ["pre", "inner", "post"]


def test_containers_can_be_counted_sliced_and_extended():
    model = converted("container")
    assert len(model) == 3
    assert type(model[1:]) is type(model)
    assert list(model[1:]) == list(model)[1:]
    model.append(cases.Residual())
    assert len(model) == 4
    del model[3]
    run(model)


def test_training_flags_of_every_module_stay():
    model = cases.build("shared")
    model.first.eval()
    sm.convert_model(model, cases.example())
    assert model.training
    assert not model.first.linear.training
    assert model.rest[0].training


def test_shared_modules_stay_shared():
    model = converted("shared")
    assert model.first is model.second is model.rest[1]
    assert type(model.first) is type(model.rest[0])
    twin = copy.deepcopy(model)
    assert twin.first is twin.second is twin.rest[1]


# -- how the class is made ------------------------------------------------------------------


def test_registries_of_the_user_do_not_see_our_class():
    classes, subclasses = list(cases.Registering.classes), list(cases.Registered.subclasses)
    metaclassed, registered = converted("metaclass"), converted("registered")
    assert cases.Registering.classes == classes
    assert cases.Registered.subclasses == subclasses
    nn.utils.parametrize.register_parametrization(metaclassed.linear, "weight", nn.Identity())
    sm.revert_model(metaclassed)
    sm.revert_model(registered)
    assert cases.Registering.classes == classes
    assert cases.Registered.subclasses == subclasses


def test_a_subclass_that_the_user_derives_from_ours_is_registered():
    made = type(converted("registered"))
    sub = type(made)("Sub", (made,), {}, key="sub")
    assert cases.Registered.subclasses.pop() is sub


def test_abstract_base_classes_tell_objects_apart():
    made, plain = converted("concrete"), cases.build("concrete")
    assert isinstance(made, cases.AbstractBlock)
    assert isinstance(plain, cases.Concrete)
    assert not isinstance(plain, type(made))
    assert isinstance(made, type(made))


def test_slots_dataclass_and_generic_keep_what_they_hold():
    slotted = converted("slots")
    assert slotted.factor == 3.0
    slotted.factor = 2.0
    assert copy.deepcopy(slotted).factor == 2.0
    assert sm.revert_model(slotted).factor == 2.0
    assert "width=4" in cases.Data.__repr__(converted("data"))
    assert converted("generic").__orig_class__ == cases.Box[nn.Module]


class RefusesInstances(nn.Module):
    """Answers `__class__` with another class than its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @property
    def __class__(self):
        return nn.Linear

    def forward(self, x):
        y = self.linear(x).sigmoid()
        y += x
        return y


def test_a_class_property_is_worked_around():
    model = sm.convert_model(RefusesInstances(), cases.example())
    assert sm.is_converted(model)
    run(model)
    assert type(sm.revert_model(model)) is RefusesInstances


def test_models_of_one_kind_have_one_class_after_their_conversions():
    assert type(converted("helpers")) is type(converted("helpers"))
    one, other = converted("residual"), converted("residual")
    sm.revert_model(one)
    assert type(one) is not type(other)
    run(other)


def test_code_of_a_conversion_is_freed_with_its_models():
    class Fleeting(cases.Residual):
        def forward(self, x):
            y = self.linear(x).exp()
            y += 1
            return y

    model = sm.convert_model(Fleeting(), cases.example())
    alive = weakref.ref(type(model)._safemodules_rewriting)
    del model
    gc.collect()
    assert alive() is None


# -- parts and additions --------------------------------------------------------------------


def test_converting_a_part_of_a_converted_model_changes_nothing():
    model = converted("container")
    before = [type(m) for m in model.modules()]
    sm.convert_model(model[0], cases.example())
    assert [type(m) for m in model.modules()] == before
    assert sm.is_converted(sm.revert_model(model)) is False


def test_a_model_with_a_converted_part_is_converted_around_it():
    model = cases.build("container")
    sm.convert_model(model[0], cases.example())
    part = type(model[0])
    sm.convert_model(model, cases.example())
    assert type(model[0]) is part
    run(model)
    assert {site.decision for site in sm.conversion_plan(model).sites} == {"swap"}
    sm.revert_model(model)
    assert snapshot(model) == snapshot(model)
    assert not sm.is_converted(model)


def test_a_method_of_a_converted_part_is_called_edited():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = cases.Concrete()

        def forward(self, x):
            y = self.inner(x).exp()
            y -= self.inner.weight().sum()
            return y

    torch.manual_seed(0)
    model = Outer()
    expected = model(cases.example()).detach()
    sm.convert_model(model.inner, cases.example())
    sm.convert_model(model, cases.example())
    assert torch.equal(run(model)[0], expected)


def test_modules_added_later_are_converted_by_a_second_call():
    model = converted("container")
    model.append(cases.Residual())
    model.append(cases.Helpers())
    sm.convert_model(model, cases.example())
    run(model)
    assert type(model[3]) is not cases.Residual
    sm.revert_model(model)
    assert [type(m) for m in model] == [cases.Residual] * 4 + [cases.Helpers]


_NAMESPACE = {}
exec("def without_source(tensor):\n    return tensor * 1", _NAMESPACE)
without_source = _NAMESPACE["without_source"]


class HandsOn(torch.nn.Module):
    def forward(self, x):
        h = torch.sigmoid(x)
        y = without_source(h)
        h += 1
        return h + y


def test_example_inputs_decide_later_what_was_left_without_them():
    model, x = HandsOn(), torch.randn(3)
    with pytest.warns(sm.ConversionWarning, match="example_inputs would decide"):
        sm.convert_model(model)
    assert [s.decision for s in sm.conversion_plan(model).sites] == ["keep"]
    with pytest.warns(sm.ConversionWarning, match="without_source"):
        sm.convert_model(model, x)
    assert [s.decision for s in sm.conversion_plan(model).sites] == ["swap"]
    model(x.requires_grad_()).sum().backward()
    assert sm.revert_model(model).__class__ is HandsOn


def test_reverting_a_part_leaves_the_rest():
    model = converted("container")
    sm.revert_model(model[0])
    assert type(model[0]) is cases.Residual
    assert model[0].act.inplace
    assert type(model[1]) is not cases.Residual
    plan = sm.conversion_plan(model)
    assert sm.is_converted(model)
    assert all("0" not in site.modules for site in plan.sites if site.decision == "swap")
    assert any(s.reason == "was swapped, and is reverted" for s in plan.sites)
    sm.convert_model(model, cases.example())
    run(model)


def test_reverting_an_unconverted_model_does_nothing():
    model = cases.build("residual")
    before = snapshot(model)
    sm.revert_model(model)
    assert snapshot(model) == before


# -- all or nothing -------------------------------------------------------------------------


class Frozen(nn.Module):
    """Refuses every assignment once it is made."""

    frozen = False

    def __init__(self) -> None:
        super().__init__()
        self.inplace = True
        self.frozen = True

    def __setattr__(self, name, value):
        if self.frozen:
            raise AttributeError(f"{type(self).__name__} is frozen")
        super().__setattr__(name, value)

    def forward(self, x):
        return nn.functional.relu(x, inplace=self.inplace)


class Unsettable(nn.Module):
    """Its flag is a property without a setter."""

    inplace = property(lambda self: True)

    def forward(self, x):
        return nn.functional.relu(x, inplace=self.inplace)


class Stubborn(nn.Module):
    """Its flag takes no value but True."""

    @property
    def inplace(self):
        return True

    @inplace.setter
    def inplace(self, value):
        pass

    def forward(self, x):
        return nn.functional.relu(x, inplace=self.inplace)


@pytest.mark.parametrize("last", [Frozen, Unsettable, Stubborn])
def test_a_module_that_refuses_in_the_middle_leaves_all_as_it_was(last):
    model = nn.Sequential(cases.Residual(), nn.ReLU(inplace=True), nn.Sigmoid(), last())
    before = snapshot(model)
    with pytest.raises(sm.ConversionError, match=rf"`inplace` of 3 \({last.__name__}\) cannot be"):
        sm.convert_model(model)
    assert snapshot(model) == before


def test_a_class_that_cannot_be_swapped_leaves_all_as_it_was(monkeypatch):
    from safemodules.rewriting import swapping

    def refuse(module, cls):
        if isinstance(module, cases.Helpers):
            raise TypeError("object layout differs")
        object.__setattr__(module, "__class__", cls)

    model = nn.Sequential(nn.ReLU(inplace=True), cases.Residual(), cases.Helpers())
    before = snapshot(model)
    monkeypatch.setattr(swapping, "_assign", refuse)
    with pytest.raises(sm.ConversionError, match=r"2 \(Helpers\) cannot be given a subclass"):
        sm.convert_model(model, cases.example())
    assert snapshot(model) == before


def test_a_revert_that_fails_leaves_the_model_converted():
    class Settable(Frozen):
        pass

    model = nn.Sequential(cases.Residual(), Settable())
    model[1].__dict__["frozen"] = False
    sm.convert_model(model, cases.example())
    model[1].__dict__["frozen"] = True
    before = snapshot(model)
    with pytest.raises(sm.RevertError, match="`inplace` of 1"):
        sm.revert_model(model)
    assert snapshot(model) == before
    run(model)


def test_a_frozen_module_without_a_flag_is_converted_past_its_setattr():
    class Rigid(cases.Residual):
        def __setattr__(self, name, value):
            if "act" in self.__dict__.get("_modules", {}):
                raise AttributeError("frozen")
            super().__setattr__(name, value)

    model = Rigid()
    before = snapshot(model)
    with pytest.raises(sm.StateError, match=r"Rigid cannot be put into train mode.*frozen"):
        sm.convert_model(model, cases.example())
    assert snapshot(model) == before
    sm.convert_model(model)
    run(model)
    assert type(sm.revert_model(model)) is Rigid
