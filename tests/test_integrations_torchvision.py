"""torchvision's builders return converted models inside the block, and only there."""

from __future__ import annotations

import inspect
import pickle
import sys
import threading
from types import FunctionType

import pytest
import torch
import torchvision
from torchvision import models
from torchvision.models import get_model as imported_get_model
from torchvision.models import squeezenet1_1 as imported_before

import safemodules as sm
from safemodules.integrations import torchvision as integration
from safemodules.integrations.torchvision import converted_models


def snapshot() -> dict[tuple[str, str], FunctionType]:
    """Return every function that any module of torchvision.models holds."""
    return {
        (module_name, name): value
        for module_name, module in list(sys.modules.items())
        if module_name.startswith("torchvision.models")
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
    }


@pytest.fixture(autouse=True)
def unchanged() -> object:
    """Every test leaves torchvision as it was."""
    before = snapshot()
    yield
    assert snapshot() == before


@pytest.fixture
def count_conversions(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Record the options of each conversion instead of making it."""
    calls: list[dict[str, object]] = []

    def convert(model: torch.nn.Module, **options: object) -> torch.nn.Module:
        calls.append(options)
        return model

    monkeypatch.setattr(sm, "convert_model", convert)
    return calls


@pytest.mark.parametrize(
    "build",
    [
        lambda: models.squeezenet1_1(),
        lambda: torchvision.models.get_model("squeezenet1_1"),
        lambda: torchvision.models.get_model_builder("squeezenet1_1")(),
        lambda: imported_get_model("squeezenet1_1"),
        lambda: sys.modules["torchvision.models.squeezenet"].squeezenet1_1(),
    ],
    ids=["attribute", "get_model", "get_model_builder", "imported get_model", "defining module"],
)
def test_a_builder_returns_a_converted_model(build: object) -> None:
    assert not sm.is_converted(build())  # type: ignore[operator]
    with converted_models():
        net = build()  # type: ignore[operator]
    assert sm.is_converted(net)
    assert not sm.is_converted(build())  # type: ignore[operator]


def test_the_model_is_converted_with_the_options_given() -> None:
    x = torch.randn(2, 3, 64, 64)
    with converted_models(example_inputs=x):
        net = models.resnet18(num_classes=3)
    assert not any(m.inplace for m in net.modules() if isinstance(m, torch.nn.ReLU))
    for module in net.modules():
        if not list(module.children()):
            module.register_full_backward_hook(lambda module, gi, go: None)
    net(x.requires_grad_()).sum().backward()


@pytest.mark.parametrize(
    "name",
    [
        "lraspp_mobilenet_v3_large",
        "raft_small",
        "r3d_18",
        "ssdlite320_mobilenet_v3_large",
        "quantized_mobilenet_v2",
    ],
)
def test_every_family_is_reached_through_its_package(
    name: str, count_conversions: list[dict[str, object]]
) -> None:
    builder = models.get_model_builder(name)
    package = sys.modules[builder.__module__.rpartition(".")[0]]
    options = {
        key: None
        for key in ("weights", "weights_backbone")
        if key in inspect.signature(builder).parameters
    }
    with converted_models():
        getattr(package, builder.__name__)(**options)
        assert len(count_conversions) == 1, "a backbone is converted with its model, once"
        models.get_model(name, **options)
        assert len(count_conversions) == 2


def test_every_listed_builder_is_wrapped() -> None:
    plain = {name: models.get_model_builder(name) for name in models.list_models()}
    with converted_models():
        for name, builder in plain.items():
            wrapped = models.get_model_builder(name)
            assert wrapped.__wrapped__ is builder  # type: ignore[attr-defined]
            package = sys.modules[builder.__module__.rpartition(".")[0]]
            assert getattr(package, builder.__name__) is wrapped


def test_torchvisions_own_lookups_work_inside_the_block() -> None:
    listed = models.list_models(module=models.detection)
    with converted_models():
        assert models.list_models(module=models.detection) == listed
        assert models.get_model_weights("resnet18") is models.ResNet18_Weights
        assert models.get_model_weights(models.resnet18) is models.ResNet18_Weights
        assert models.resnet18.__name__ == "resnet18"
        assert inspect.signature(models.resnet18) == inspect.signature(
            inspect.unwrap(models.resnet18)
        )
        assert pickle.loads(pickle.dumps(models.resnet18)) is models.resnet18


def test_torchvision_is_restored_after_an_exception() -> None:
    before = snapshot()

    def stop_inside() -> None:
        with converted_models():
            assert snapshot() != before
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        stop_inside()
    assert snapshot() == before


def test_torchvision_is_restored_after_a_refused_conversion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(model: torch.nn.Module, **options: object) -> None:
        raise sm.SafeModulesError("refused")

    monkeypatch.setattr(sm, "convert_model", refuse)
    before = snapshot()
    with pytest.raises(sm.SafeModulesError, match="refused"), converted_models():
        models.squeezenet1_1()
    assert snapshot() == before


def test_a_builder_that_raises_leaves_the_block_usable(
    count_conversions: list[dict[str, object]],
) -> None:
    with converted_models():
        with pytest.raises(TypeError):
            models.squeezenet1_1(no_such_option=1)
        models.squeezenet1_1()
    assert len(count_conversions) == 1


def test_the_innermost_options_hold(count_conversions: list[dict[str, object]]) -> None:
    with converted_models(inplace="all"):
        models.squeezenet1_1()
        with converted_models(inplace="unsafe"):
            models.squeezenet1_1()
        models.squeezenet1_1()
    assert count_conversions == [{"inplace": "all"}, {"inplace": "unsafe"}, {"inplace": "all"}]


def test_another_thread_gets_plain_models_unless_it_opens_a_block(
    count_conversions: list[dict[str, object]],
) -> None:
    opened, closed = threading.Event(), threading.Event()
    counts: list[int] = []

    def work() -> None:
        opened.wait(30)
        models.squeezenet1_1()
        counts.append(len(count_conversions))
        with converted_models():
            closed.wait(30)  # the other thread's block ends while this one is open
            models.squeezenet1_1()
            counts.append(len(count_conversions))

    thread = threading.Thread(target=work)
    thread.start()
    with converted_models():
        opened.set()
    closed.set()
    thread.join()
    assert counts == [0, 1]


def test_a_name_imported_before_is_out_of_reach() -> None:
    with converted_models():
        assert not sm.is_converted(imported_before())


def test_a_wrapper_kept_after_the_block_returns_plain_models() -> None:
    with converted_models():
        kept = models.squeezenet1_1
    assert not sm.is_converted(kept())


def test_a_name_rebound_inside_the_block_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    original = models.squeezenet1_1

    def mine() -> None:
        return None

    with converted_models():
        models.squeezenet1_1 = mine
    assert models.squeezenet1_1 is mine
    models.squeezenet1_1 = original


def test_a_model_registered_inside_the_block_is_converted(
    count_conversions: list[dict[str, object]],
) -> None:
    # Registering is private in torchvision; what is needed of it: BUILTIN_MODELS maps a
    # name to a builder, and get_model looks names up in it.
    api = sys.modules[models.get_model.__module__]
    try:
        with converted_models():
            api.register_model("registered_for_a_test")(lambda: torch.nn.Identity())
            models.get_model("registered_for_a_test")
    finally:
        api.BUILTIN_MODELS.pop("registered_for_a_test", None)
    assert len(count_conversions) == 1


def test_the_public_names_are_listed() -> None:
    assert integration.__all__ == ["converted_models"]
