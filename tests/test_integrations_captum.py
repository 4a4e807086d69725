"""Attributions that overwriting breaks can be computed on a converted model."""

import pytest
import torch
import torchvision
from integration_models import images

import safemodules as sm

pytestmark = pytest.mark.filterwarnings("ignore")  # captum says that it sets hooks

SIDE = 32


def build(name="resnet18"):
    torch.manual_seed(0)
    return torchvision.models.get_model(name, num_classes=5).eval()


def converted():
    return sm.convert_model(build(), images(1, SIDE), checkpoint=False)


def plain_relu():
    net = build()
    for module in net.modules():
        if isinstance(module, torch.nn.ReLU):
            module.inplace = False
    return net


def test_a_backward_hook_before_an_in_place_activation_fails_before_and_works_after():
    def gradient(net):
        found = []
        net.layer1[0].bn1.register_full_backward_hook(lambda m, given, got: found.extend(got))
        net(images(1, SIDE)).sum().backward()
        return found[0]

    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        gradient(build())
    assert torch.equal(gradient(converted()), gradient(plain_relu()))


def test_integrated_gradients_of_a_layer_fail_before_and_work_after():
    attr = pytest.importorskip("captum.attr", reason="captum is not installed (extra integrations)")

    def attribution(net):
        method = attr.LayerIntegratedGradients(net, net.layer1[0].bn1)
        return method.attribute(images(1, SIDE), target=1, n_steps=4)

    with pytest.raises(RuntimeError, match="in-place operation"):
        attribution(build())
    found = attribution(converted())
    assert found.shape == (1, 64, SIDE // 4, SIDE // 4) and found.abs().sum() > 0
    assert torch.equal(found, attribution(plain_relu()))


@pytest.mark.parametrize("method", ["GuidedBackprop", "Saliency", "LRP"])
def test_attributions_that_worked_before_stay_the_same(method):
    attr = pytest.importorskip("captum.attr", reason="captum is not installed (extra integrations)")
    x = images(1, SIDE)
    before = getattr(attr, method)(build()).attribute(x.clone(), target=1)
    after = getattr(attr, method)(converted()).attribute(x.clone(), target=1)
    assert torch.equal(after, before)
