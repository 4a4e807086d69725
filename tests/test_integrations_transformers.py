"""The callback for the Trainer of transformers, and models that peft has wrapped."""

from __future__ import annotations

import copy
import importlib.util
import pickle

import pytest
import torch
from integration_models import assert_same_parameters
from torch import nn

import safemodules as sm
from safemodules.errors import MissingPackageError
from safemodules.integrations import packages
from safemodules.integrations.transformers import _callback_class, conversion_callback

needs_trainer = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("transformers", "accelerate")),
    reason="transformers or accelerate is not installed (extra trainers)",
)


class Fails(nn.Module):
    """Overwrites what backward needs; takes and returns what the Trainer wants."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        h = torch.sigmoid(self.linear(x))
        h += x
        out = self.head(h)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Mended(Fails):
    def forward(self, x, labels=None):
        h = torch.sigmoid(self.linear(x))
        h = h + x
        out = self.head(h)
        return {"loss": (out - labels).square().mean(), "logits": out}


def build(kind):
    torch.manual_seed(0)
    return kind()


def rows(count=8):
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(4, generator=generator), "labels": torch.randn(1, generator=generator)}
        for _ in range(count)
    ]


def train(net, folder, *callbacks, data=None, **options):
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=3,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **options,
    )
    trainer = transformers.Trainer(
        net, arguments, train_dataset=data or rows(), callbacks=list(callbacks)
    )
    trainer.train()


@needs_trainer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_example", [False, True])
def test_a_model_that_fails_is_trained_as_the_one_mended_by_hand(with_example, tmp_path):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train(build(Fails), tmp_path)
    example = {"x": torch.ones(2, 4), "labels": torch.ones(2, 1)}
    expected, net = build(Mended), build(Fails)
    train(expected, tmp_path)
    callback = conversion_callback(**({"example_kwargs": example} if with_example else {}))
    train(net, tmp_path, callback)
    assert sm.is_converted(net)
    assert not torch.equal(net.linear.weight, build(Fails).linear.weight)
    assert_same_parameters(net, expected)


@needs_trainer
@pytest.mark.filterwarnings("ignore")
def test_a_second_training_leaves_the_conversion_as_it_is(tmp_path):
    net, callback = build(Fails), conversion_callback()
    train(net, tmp_path, callback)
    kind = type(net)
    train(net, tmp_path, callback)
    assert type(net) is kind


def tiny_gpt(layers=2):
    import transformers

    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=32,
            n_embd=16,
            n_layer=layers,
            n_head=2,
            n_positions=16,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def sentences(count=8):
    ids = torch.randint(32, (count, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in ids]


@needs_trainer
@pytest.mark.filterwarnings("ignore")
def test_a_language_model_with_gradient_checkpointing_trains_the_same(tmp_path):
    options = {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "data": sentences(),
    }
    expected, net = tiny_gpt(), tiny_gpt()
    train(expected, tmp_path, **options)
    train(net, tmp_path, conversion_callback(checkpoint=False), **options)
    assert not torch.equal(net.lm_head.weight, tiny_gpt().lm_head.weight)
    assert_same_parameters(net, expected)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed (extra trainers)",
)
def test_the_callback_survives_a_pickle():
    from transformers import TrainerCallback

    callback = pickle.loads(pickle.dumps(conversion_callback(checkpoint=False)))
    assert isinstance(callback, TrainerCallback)
    assert callback.options == {"checkpoint": False}


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    _callback_class.cache_clear()
    monkeypatch.setattr(packages.importlib, "import_module", missing)
    with pytest.raises(MissingPackageError, match=r"pip install 'safemodules\[trainers\]'"):
        conversion_callback()


class Adapted(Fails):
    """Two linear layers that peft replaces, and an overwrite between them."""

    def forward(self, x):
        h = torch.sigmoid(self.linear(x))
        h += x
        return self.head(h)


def with_adapters(net):
    import peft

    torch.manual_seed(1)
    return peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["linear", "head"]))


def steps(net, optimizer, count=3):
    for row in rows(count):
        optimizer.zero_grad()
        net(row["x"][None]).square().sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("converted_first", [True, False])
def test_a_model_with_adapters_trains_and_can_be_merged(converted_first):
    pytest.importorskip("peft", reason="peft is not installed (extra integrations)")
    x = torch.ones(2, 4)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        with_adapters(build(Adapted))(x).sum().backward()
    net = build(Adapted)
    net = with_adapters(sm.convert_model(net, x)) if converted_first else with_adapters(net)
    if not converted_first:
        sm.convert_model(net, x)
    before = copy.deepcopy(net.state_dict())
    steps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    changed = {name for name, value in net.state_dict().items() if not value.equal(before[name])}
    assert changed and all("lora_" in name for name in changed)
    with torch.no_grad():
        expected = net(x)
        merged = net.merge_and_unload()
        torch.testing.assert_close(merged(x), expected)  # W x + B A x is (W + B A) x, rounded


@pytest.mark.filterwarnings("ignore")
def test_a_language_model_with_adapters_computes_the_same():
    pytest.importorskip("peft", reason="peft is not installed (extra integrations)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra trainers)")
    import peft

    def build():
        net = tiny_gpt(layers=1)
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(net, config)

    ids = torch.arange(8)[None]
    net, expected = build(), build()
    sm.convert_model(net, example_kwargs={"input_ids": ids, "labels": ids}, checkpoint=False)
    for model in (net, expected):
        torch.manual_seed(2)
        model(input_ids=ids, labels=ids).loss.backward()
    pairs = zip(net.named_parameters(), expected.parameters(), strict=True)
    for (name, parameter), other in pairs:
        assert (parameter.grad is None) == (other.grad is None), name
        assert parameter.grad is None or torch.equal(parameter.grad, other.grad), name
