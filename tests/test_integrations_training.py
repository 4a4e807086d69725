"""Converted models under accelerate, as moving averages, and under the transforms of torch.func."""

import pytest
import torch
from integration_models import Fails, Mended, Residual, assert_same_parameters, build, images
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import safemodules as sm


def converted(kind):
    return sm.convert_model(build(kind), images(), checkpoint=False)


def train(net, average=None, backward=torch.Tensor.backward, wrap=None):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if wrap is not None:
        net, optimizer = wrap(net, optimizer)
    for seed in range(3):
        optimizer.zero_grad()
        backward(net(images(seed=seed)).square().mean())
        optimizer.step()
        if average is not None:
            average.update_parameters(net)


def averaged(net):
    return AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)


def test_a_moving_average_of_a_converted_model_is_that_of_the_one_edited_by_hand():
    net, expected = converted(Fails), build(Mended)
    average, expected_average = averaged(net), averaged(expected)
    train(net, average)
    train(expected, expected_average)
    assert sm.is_converted(average)
    assert_same_parameters(average, expected_average)
    assert torch.equal(average(images()), expected_average(images()))
    average(images()).sum().backward()  # the copy trains, too


def test_the_statistics_of_an_average_are_recomputed_as_those_of_the_original():
    net, expected = converted(Residual), build(Residual)
    average, expected_average = averaged(net), averaged(expected)
    for own, mean in ((net, average), (expected, expected_average)):
        train(own, mean)
        update_bn([images(seed=seed) for seed in range(2)], mean)
    assert_same_parameters(average, expected_average)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_trains_a_converted_model_as_the_one_edited_by_hand():
    accelerate = pytest.importorskip(
        "accelerate", reason="accelerate is not installed (extra trainers)"
    )
    accelerator = accelerate.Accelerator(cpu=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train(build(Fails), backward=accelerator.backward, wrap=accelerator.prepare)
    net, expected = converted(Fails), build(Mended)
    for model in (net, expected):
        train(model, backward=accelerator.backward, wrap=accelerator.prepare)
    assert_same_parameters(net, expected)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_saves_and_loads_a_converted_model(tmp_path):
    accelerate = pytest.importorskip(
        "accelerate", reason="accelerate is not installed (extra trainers)"
    )
    accelerator = accelerate.Accelerator(cpu=True)
    net = accelerator.prepare(converted(Fails))
    accelerator.save_state(str(tmp_path))
    expected = {name: value.clone() for name, value in net.state_dict().items()}
    train(net)
    accelerator.load_state(str(tmp_path))
    assert all(torch.equal(net.state_dict()[name], value) for name, value in expected.items())


def gradients_per_sample(net):
    net.eval()
    parameters = {name: value.detach() for name, value in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def loss(values, sample):
        return torch.func.functional_call(net, (values, buffers), (sample[None],)).square().sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, images())


@pytest.mark.parametrize(("kind", "by_hand"), [(Fails, Mended), (Residual, Residual)])
def test_gradients_per_sample_are_those_of_the_model_edited_by_hand(kind, by_hand):
    found, expected = gradients_per_sample(converted(kind)), gradients_per_sample(build(by_hand))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    net = build(by_hand).eval()
    for number, sample in enumerate(images()):
        net.zero_grad()
        net(sample[None]).square().sum().backward()
        for name, parameter in net.named_parameters():
            # a batch of two is another convolution than two batches of one
            torch.testing.assert_close(found[name][number], parameter.grad, rtol=1e-3, atol=1e-5)


def test_gradients_per_sample_fail_before_the_conversion():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients_per_sample(build(Fails))
