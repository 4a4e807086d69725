"""Converted models are exported, compiled and fused as their originals are."""

import shutil
import sys

import pytest
import torch
from integration_models import Fails, Mended, Residual, build, images
from torch.ao.quantization import fuse_modules
from torch.ao.quantization.quantize_fx import fuse_fx

import safemodules as sm

KINDS = pytest.mark.parametrize("kind", [Fails, Residual])


def converted(kind):
    return sm.convert_model(build(kind), images(), checkpoint=False)


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@KINDS
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_computes_the_same(kind, training, dynamo):
    net, expected = converted(kind).train(training), build(kind).train(training)
    program = torch.export.export(net, (images(),))
    assert torch.equal(program.module()(images()), expected(images()))


@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_takes_other_batch_sizes(dynamo):
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    program = torch.export.export(converted(Residual).eval(), (images(),), dynamic_shapes=shapes)
    assert torch.equal(program.module()(images(5)), build(Residual).eval()(images(5)))


@KINDS
@pytest.mark.filterwarnings("ignore")
def test_an_onnx_model_computes_the_same_to_rounding(kind, dynamo):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra integrations)")
    from onnx.reference import ReferenceEvaluator

    net = converted(kind).eval()
    model = torch.onnx.export(net, (images(),), dynamo=True, verbose=False).model_proto
    (found,) = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: images().numpy()})
    with torch.no_grad():
        expected = build(kind).eval()(images())
    # another implementation of the same operators
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


@KINDS
@pytest.mark.filterwarnings("ignore")
def test_inference_ahead_of_time_computes_the_same(kind, dynamo):
    compiled = torch.compile(converted(kind).eval(), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(images()), build(kind).eval()(images()))


@pytest.mark.filterwarnings("ignore")
def test_training_ahead_of_time_fails_before_and_gives_the_gradients_after(dynamo):
    def gradient(net):
        net(images()).sum().backward()
        return [parameter.grad for parameter in net.parameters()]

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(torch.compile(build(Fails), backend="aot_eager", fullgraph=True))
    torch._dynamo.reset()
    found = gradient(torch.compile(converted(Fails), backend="aot_eager", fullgraph=True))
    for own, expected in zip(found, gradient(build(Mended)), strict=True):
        torch.testing.assert_close(own, expected)  # decompositions round otherwise


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("g++") is None or sys.platform != "linux", reason="needs a C++ compiler"
)
@pytest.mark.filterwarnings("ignore")
def test_inductor_compiles_inference(dynamo):
    compiled = torch.compile(converted(Residual).eval(), fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images()), build(Residual).eval()(images()))


def kinds_of(net):
    return [type(module).__name__ for module in net.children()]


@pytest.mark.filterwarnings("ignore")
def test_convolution_batch_norm_and_activation_are_fused_as_in_the_original():
    names = [["conv1", "bn1", "relu1"], ["conv2", "bn2"]]
    net, expected = converted(Residual).eval(), build(Residual).eval()
    with torch.no_grad():
        for model in (net, expected):
            model.bn1.running_mean.copy_(torch.arange(8.0) / 8)
        unfused = net(images())
        found, by_hand = fuse_modules(net, names), fuse_modules(expected, names)
        assert kinds_of(found) == kinds_of(by_hand)
        assert "ConvReLU2d" in kinds_of(found)
        assert torch.equal(found(images()), by_hand(images()))
        torch.testing.assert_close(found(images()), unfused)  # folded weights round otherwise


@pytest.mark.filterwarnings("ignore")
def test_the_graph_of_a_converted_model_is_fused_as_that_of_the_original():
    found, expected = fuse_fx(converted(Residual).eval()), fuse_fx(build(Residual).eval())
    assert kinds_of(found) == kinds_of(expected)
    with torch.no_grad():
        assert torch.equal(found(images()), expected(images()))
