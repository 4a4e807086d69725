"""The callback for Lightning converts before training, and training stays the same."""

from __future__ import annotations

import importlib.util
import pickle
import warnings

import pytest
import torch
from torch import nn

import safemodules as sm
from safemodules.errors import MissingPackageError, OptionError
from safemodules.integrations import packages
from safemodules.integrations.lightning import _callback_class, conversion_callback

needs_lightning = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None,
    reason="lightning is not installed (extra trainers)",
)


class Fails(nn.Module):
    """Overwrites what backward needs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        h = torch.sigmoid(self.linear(x))
        h += x
        return h


class Mended(Fails):
    def forward(self, x):
        h = torch.sigmoid(self.linear(x))
        h = h + x
        return h


def lightning_module(net, own_forward, example=None):
    import lightning

    class Plain(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net
            self.example_input_array = example

        def training_step(self, batch, index):
            return (self(batch) if own_forward else self.net(batch)).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    class WithForward(Plain):
        def forward(self, x):
            return self.net(x)

    return WithForward() if own_forward else Plain()


def fit(module, *callbacks):
    import lightning

    data = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(1))
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loaders without workers
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None))


def build(kind):
    torch.manual_seed(0)
    return kind()


@needs_lightning
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("own_forward", "example", "options"),
    [
        pytest.param(True, None, {}, id="whole"),
        pytest.param(True, torch.ones(2, 4), {}, id="whole, with its own example"),
        pytest.param(True, {"x": torch.ones(2, 4)}, {}, id="whole, with an example by name"),
        pytest.param(False, None, {"module": "net"}, id="part"),
        pytest.param(
            False, None, {"module": "net", "example_inputs": torch.ones(2, 4)}, id="part, example"
        ),
    ],
)
def test_a_model_that_fails_is_trained_as_the_one_mended_by_hand(own_forward, example, options):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        fit(lightning_module(build(Fails), own_forward))
    expected, net = build(Mended), build(Fails)
    fit(lightning_module(expected, own_forward))
    module = lightning_module(net, own_forward, example)
    fit(module, conversion_callback(**options))
    assert sm.is_converted(module)
    assert not torch.equal(net.linear.weight, build(Fails).linear.weight)
    assert torch.equal(net.linear.weight, expected.linear.weight)
    assert torch.equal(net.linear.bias, expected.linear.bias)


@needs_lightning
@pytest.mark.filterwarnings("ignore")
def test_a_second_fit_leaves_the_conversion_as_it_is():
    module = lightning_module(build(Fails), True)
    callback = conversion_callback()
    fit(module, callback)
    kind = type(module.net)
    fit(module, callback)
    assert type(module.net) is kind


@needs_lightning
def test_only_fitting_converts():
    module = lightning_module(build(Fails), True)
    conversion_callback().setup(None, module, "validate")
    assert not sm.is_converted(module)


@needs_lightning
def test_a_module_without_forward_asks_for_the_part():
    with pytest.raises(OptionError, match=r"no forward.*Parts: net\."):
        conversion_callback().setup(None, lightning_module(build(Fails), False), "fit")


@needs_lightning
def test_a_part_that_is_not_there_is_named():
    with pytest.raises(OptionError, match=r"'head'.*no such part. Parts: net\."):
        conversion_callback("head").setup(None, lightning_module(build(Fails), True), "fit")


@needs_lightning
def test_the_callback_survives_a_pickle():
    from lightning.pytorch import Callback

    callback = pickle.loads(pickle.dumps(conversion_callback("net", checkpoint=False)))
    assert isinstance(callback, Callback)
    assert callback.module == "net" and callback.options == {"checkpoint": False}


def test_without_lightning_the_error_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

    _callback_class.cache_clear()
    monkeypatch.setattr(packages.importlib, "import_module", missing)
    with pytest.raises(MissingPackageError, match=r"pip install 'safemodules\[trainers\]'"):
        conversion_callback()


def test_a_package_that_lacks_one_of_its_own_says_so_itself(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("No module named 'yarl'", name="yarl")

    monkeypatch.setattr(packages.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="yarl") as caught:
        packages.require("lightning.pytorch", "trainers")
    assert not isinstance(caught.value, MissingPackageError)
