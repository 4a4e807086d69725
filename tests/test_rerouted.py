"""A converted model's own checkpoints are exact, whichever function of torch it calls."""

import copy
import warnings

import pytest
import torch
from checkpointed_models import MODELS, WIDTH, Clash, Imported, NoGradInput

import safemodules as sm

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")


def pair(cls):
    """A model that runs plain, and the same one that checkpoints."""
    torch.manual_seed(0)
    plain = cls(False)
    recomputing = cls(True)
    recomputing.load_state_dict(plain.state_dict())
    return plain, recomputing


def train(net, *, input_gradient, steps=3):
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        x = torch.randn(6, WIDTH, requires_grad=input_gradient)
        out = net(x)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        found += [out.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]
    return [*found, *net.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("loops", [False, "loops"])
@pytest.mark.parametrize("with_inputs", [True, False])
@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_training_is_that_without_checkpoint(cls, with_inputs, loops):
    plain, net = pair(cls)
    inputs = torch.randn(6, WIDTH) if with_inputs else None
    sm.convert_model(net, inputs, checkpoint=loops)
    regions = [r for r in sm.conversion_plan(net).regions if r.kind == "call of torch's checkpoint"]
    assert regions and all(region.decision == "checkpoint" for region in regions)
    for input_gradient in (True, False):
        a, b = copy.deepcopy(plain), copy.deepcopy(net)
        expected = train(a, input_gradient=input_gradient)
        found = train(b, input_gradient=input_gradient)
        assert len(expected) == len(found)
        assert all(torch.equal(x, y) for x, y in zip(expected, found, strict=True))
        assert a.count == b.count
    sm.revert_model(net)
    assert type(net) is cls


def test_the_original_goes_wrong():
    """Else the test above would prove nothing."""
    for cls in (Imported, NoGradInput):
        plain, net = pair(cls)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = train(net, input_gradient=False)
            except RuntimeError:
                continue
        expected = train(plain, input_gradient=False)
        assert len(expected) != len(found) or not all(map(torch.equal, expected, found))


def test_a_clash_inside_is_converted_first():
    plain, net = pair(Clash)
    x = torch.randn(6, WIDTH, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        plain(x).sum().backward()
    sm.convert_model(plain, x.detach())
    plan = sm.plan_conversion(net, x.detach())
    assert [site.decision for site in plan.sites] == ["swap"]
    plan.apply()
    for a, b in zip(
        train(plain, input_gradient=True), train(net, input_gradient=True), strict=True
    ):
        assert torch.equal(a, b)


def test_what_is_rerouted_is_named():
    plan = sm.plan_conversion(Imported(True), torch.randn(6, WIDTH))
    (region,) = plan.regions
    assert "exact and non-reentrant" in region.reason
    assert "checkpoint(self.block, x, use_reentrant=True)" in region.source
    assert region.kind == "call of torch's checkpoint"


def test_checkpoints_save_memory_still():
    plain, net = pair(Imported)
    sm.convert_model(net, torch.randn(6, WIDTH))
    kept = []
    for model in (plain, net):
        seen = {p.data_ptr() for p in (*model.parameters(), *model.buffers())}
        total = []

        def pack(tensor, seen=seen, total=total):
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                total.append(tensor.numel())
            return tensor

        x = torch.randn(64, WIDTH)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(x)
        kept.append(sum(total))
    assert kept[1] < 0.7 * kept[0]


def test_gradient_checkpointing_enable_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=30,
    )
    torch.manual_seed(0)
    plain = transformers.BertModel(config)
    net = copy.deepcopy(plain)
    tokens = {"input_ids": torch.arange(12).view(2, 6)}
    sm.convert_model(net, example_kwargs=tokens, checkpoint=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its successor's name
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    grads = []
    for model in (plain.train(), net.train()):
        torch.manual_seed(1)
        model(**tokens).last_hidden_state.square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert grads[0][0] is not None
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b))


def test_set_grad_checkpointing_of_timm():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    plain = timm.create_model("resnet10t", drop_path_rate=0.1)
    net = copy.deepcopy(plain)
    x = torch.randn(2, 3, 32, 32)
    sm.convert_model(net, x, checkpoint=False)
    net.set_grad_checkpointing()
    found = []
    for model in (plain.train(), net.train()):
        torch.manual_seed(1)
        model(x).square().sum().backward()
        found.append([*(p.grad for p in model.parameters()), *model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
