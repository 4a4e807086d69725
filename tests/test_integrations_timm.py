"""timm's models with its own gradient checkpointing train exactly once they are converted."""

import pytest
import torch
from integration_models import assert_same_parameters, images

import safemodules as sm

timm = pytest.importorskip("timm", reason="timm is not installed (extra integrations)")

SIDE = 32
MODELS = {
    "resnet10t": {},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8)},
    "vit_tiny_patch16_224": {"img_size": SIDE, "embed_dim": 16, "depth": 2, "num_heads": 2},
}


def build(name):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, **MODELS[name]).train()


def train(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for seed in range(2):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        net(images(side=SIDE, seed=seed)).square().sum().backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("checkpointed_first", [True, False])
def test_a_checkpointed_model_trains_as_the_plain_one(name, checkpointed_first):
    net = build(name)
    if checkpointed_first:
        net.set_grad_checkpointing(True)
    # checkpointed, which module a line of timm's calls is known when it runs
    example = images(side=SIDE, seed=0) if checkpointed_first else None
    sm.convert_model(net, example, checkpoint=False)
    net.set_grad_checkpointing(True)
    assert_same_parameters(train(net), train(build(name)))


def test_without_the_conversion_the_statistics_of_batch_norm_move_twice():
    net = build("resnet10t")
    net.set_grad_checkpointing(True)
    means = [name for name, _ in net.named_buffers() if name.endswith("running_mean")]
    train(net)
    plain, buffers = dict(train(build("resnet10t")).named_buffers()), dict(net.named_buffers())
    assert not all(torch.equal(buffers[name], plain[name]) for name in means)


@pytest.mark.parametrize("name", MODELS)
def test_features_and_a_new_head_work_on_a_converted_model(name):
    net, expected = sm.convert_model(build(name), checkpoint=False), build(name)
    for model in (net, expected):
        torch.manual_seed(1)
        model.reset_classifier(3)
        model.eval()
    with torch.no_grad():
        x = images(side=SIDE)
        assert torch.equal(net.forward_features(x), expected.forward_features(x))
        assert torch.equal(net(x), expected(x))
