"""What is left as it is, is named with the reason, and nothing in it is half converted."""

import functools
import types
import warnings

import cases
import pytest
import torch
from torch import nn

import safemodules as sm
from safemodules.mutation.internals import why_opaque


def reasons(model: nn.Module, *inputs) -> dict[str, str]:
    return {skipped.name: skipped.reason for skipped in sm.plan_conversion(model, *inputs).skipped}


def left_alone(module: nn.Module) -> bool:
    return not sm.is_converted(module)


def beside(module: nn.Module) -> nn.Module:
    """A model that holds a convertible module and one that is not."""
    torch.manual_seed(0)
    return nn.Sequential(cases.Residual(), module)


def check(module: nn.Module, reason: str, *inputs) -> nn.Module:
    model = beside(module)
    found = reasons(model, *inputs)
    assert list(found) == ["1"]
    assert reason in found["1"]
    before = [(type(m), dict(vars(m))) for m in module.modules()]
    with pytest.warns(sm.ConversionWarning, match=f"1: .*{reason}"):
        sm.convert_model(model, *inputs)
    assert sm.is_converted(model[0])
    assert left_alone(module)
    assert [(type(m), dict(vars(m))) for m in module.modules()] == before
    assert f"1: {sm.conversion_plan(model).skipped[0].reason}" in str(sm.conversion_plan(model))
    sm.revert_model(model)
    return model


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_script_module():
    module = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.ReLU(inplace=True)))
    check(module, "ScriptModule", cases.example())


def test_what_torch_compile_returns():
    check(torch.compile(cases.Residual(), backend="eager"), "compiled by torch.compile")


def test_a_module_that_is_compiled_in_place():
    module = cases.Residual()
    module.compile(backend="eager")
    check(module, "compiled in place")


def test_a_graph_module():
    module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)))
    check(module, "GraphModule", cases.example())


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_module():
    from torch.ao.nn.quantized import Linear, ReLU6

    check(nn.Sequential(ReLU6(inplace=True))[0], "quantized")
    if torch.backends.quantized.supported_engines != ["none"]:
        check(Linear(4, 4), "quantized")


def test_a_module_of_cpp():
    from torch.nn.cpp import ModuleWrapper

    module = ModuleWrapper.__new__(ModuleWrapper)  # its __init__ wants a compiled extension
    assert why_opaque(module) == "a C++ module: it has no Python source"


@pytest.mark.parametrize(
    "build",
    [
        lambda: torch.compile(cases.Residual(), backend="eager"),
        lambda: torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(inplace=True))),
    ],
    ids=["compiled", "traced"],
)
def test_a_whole_model_that_is_opaque_says_so(build):
    model = build()
    plan = sm.plan_conversion(model)
    assert not plan.sites
    assert plan.skipped[0].name == ""
    assert "the model itself: " in str(plan)
    with pytest.warns(sm.ConversionWarning, match="(?s)no in-place site.*the model itself: "):
        sm.convert_model(model)
    assert left_alone(model)


# -- a forward on the instance --------------------------------------------------------------


def as_accelerate_does(module: nn.Module) -> None:
    """``accelerate.hooks.add_hook_to_module``."""
    old = module.forward
    module._old_forward = old

    def new_forward(module, *args, **kwargs):
        return module._old_forward(*args, **kwargs)

    module.forward = functools.update_wrapper(functools.partial(new_forward, module), old)


def as_peft_does(module: nn.Module) -> None:
    old = module.forward

    def forward(self, x):
        return old(x) * 2

    module.forward = types.MethodType(forward, module)


@pytest.mark.parametrize("patch", [as_accelerate_does, as_peft_does])
def test_a_forward_on_the_instance(patch):
    module = cases.Residual()
    patch(module)
    before = type(module), module.forward
    model = beside(module)
    assert "replaced on the instance" in reasons(model, cases.example())["1"]
    with pytest.warns(sm.ConversionWarning, match="1: its forward was replaced"):
        sm.convert_model(model, cases.example())
    assert (type(module), module.forward) == before
    assert module.act.inplace is False  # a module of its own, which is compared with the rest


def test_without_inputs_a_flag_behind_a_forward_on_the_instance_is_kept():
    act = nn.ReLU(inplace=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), act)
    kept = []
    old = act.forward
    act.forward = lambda x: old(kept.append(x) or x)
    plan = sm.plan_conversion(model)
    assert "2" in {skipped.name for skipped in plan.skipped}
    assert [s.decision for s in plan.sites] == ["keep"]


@pytest.mark.parametrize("patched", ["1", "1.0", None])
def test_without_inputs_what_a_replaced_forward_gives_is_not_fresh(patched):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)))
    if patched is not None:
        model.get_submodule(patched).forward = lambda x: x
    (site,) = sm.plan_conversion(model).sites
    assert site.decision == ("swap" if patched is None else "keep")


def test_a_forward_that_is_replaced_after_conversion_can_be_reverted():
    model = sm.convert_model(beside(cases.Residual()), cases.example())
    as_accelerate_does(model[1])
    model(cases.example()).sum().backward()
    sm.revert_model(model)
    assert type(model[1]) is cases.Residual
    assert model[1].act.inplace


# -- no source ------------------------------------------------------------------------------


def test_a_class_without_source():
    namespace = {"nn": nn}
    exec(
        "class Made(nn.Module):\n"
        "    def __init__(self, act):\n"
        "        super().__init__()\n"
        "        self.act = act\n"
        "    def forward(self, x):\n"
        "        y = x.sigmoid()\n"
        "        y += 1\n"
        "        return self.act(y)\n",
        namespace,
    )
    act = nn.ReLU(inplace=True)
    model = beside(namespace["Made"](act))
    found = reasons(model)
    assert list(found) == ["1"]
    assert "made by exec" in found["1"]
    with pytest.warns(sm.ConversionWarning, match="1: .*made by exec"):
        sm.convert_model(model)
    assert act.inplace  # what its caller does with it cannot be seen
    assert left_alone(model[1])
    with pytest.warns(sm.ConversionWarning):
        sm.convert_model(model, cases.example())
    assert not act.inplace


# -- nothing --------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [(), (cases.example(),)], ids=["without inputs", "with inputs"])
def test_nothing_found_is_said(inputs):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    plan = sm.plan_conversion(model, *inputs)
    assert plan.sites == plan.skipped == ()
    assert "no in-place site was found" in str(plan)
    assert "no in-place site was found" in plan._repr_html_()
    with pytest.warns(sm.ConversionWarning, match="no in-place site was found"):
        assert sm.convert_model(model, *inputs) is model
    assert not sm.is_converted(model)


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was():
    module = cases.Residual()
    as_peft_does(module)
    model = beside(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(sm.ConversionWarning):
            sm.convert_model(model, cases.example())
    assert not sm.is_converted(model)


def test_nothing_is_said_of_an_ordinary_model():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sm.convert_model(cases.build("shared"), cases.example())
