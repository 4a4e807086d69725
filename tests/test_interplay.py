"""Converted models under the rest of torch: parametrizations, sharding, compilers, tracers."""

import copy
import operator
import threading

import cases
import pytest
import torch
from torch import fx, nn
from torch.nn.utils import parametrizations, parametrize

import safemodules as sm


def converted(name: str = "residual") -> nn.Module:
    return cases.converted(name)


def train(model: nn.Module, x=None):
    x = cases.example() if x is None else x
    out = model(x)
    model.zero_grad()
    out.sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


# -- parametrizations -----------------------------------------------------------------------


class Doubled(nn.Module):
    """A parametrization with a site of its own."""

    def forward(self, weight):
        y = weight.exp()
        y *= 2
        return y

    def right_inverse(self, weight):
        return (weight.abs() / 2 + 1e-3).log()


class Weighted(nn.Module):
    """Holds its parameter itself, so that the parametrization lands on an edited class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4) + 0.1)

    def forward(self, x):
        y = (x @ self.weight).sigmoid()
        y += x
        return y


def double(module):
    parametrize.register_parametrization(module, "weight", Doubled())


PARAMETRIZATIONS = {
    "double": double,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.fixture(params=sorted(PARAMETRIZATIONS))
def parametrization(request):
    return PARAMETRIZATIONS[request.param]


def weighted() -> Weighted:
    torch.manual_seed(0)
    return Weighted().eval()  # spectral_norm moves its vectors in train mode


def value(model):
    with torch.no_grad():
        return model(cases.example())


def test_parametrize_convert_remove_revert(parametrization):
    model = weighted()
    parametrization(model)
    before, expected = type(model), value(model)
    sm.convert_model(model, cases.example())
    assert torch.equal(value(model), expected)
    train(model)
    assert parametrize.is_parametrized(model)
    assert isinstance(model, before.__bases__)
    parametrize.remove_parametrizations(model, "weight")
    assert not parametrize.is_parametrized(model)
    assert isinstance(model.weight, nn.Parameter)
    assert torch.equal(value(model), expected)
    train(model)
    assert sm.is_converted(model)
    assert type(sm.revert_model(model)) is Weighted


def test_parametrize_convert_revert_remove(parametrization):
    model = weighted()
    parametrization(model)
    before, expected = type(model), value(model)
    sm.convert_model(model, cases.example())
    sm.revert_model(model)
    assert type(model) is before
    assert not sm.is_converted(model)
    assert torch.equal(value(model), expected)
    parametrize.remove_parametrizations(model, "weight")
    assert type(model) is Weighted
    assert torch.equal(value(model), expected)


def test_convert_parametrize_remove_revert(parametrization):
    model = sm.convert_model(weighted(), cases.example())
    inner = type(model)
    parametrization(model)
    expected = value(model)
    parametrize.remove_parametrizations(model, "weight")
    assert type(model) is inner
    assert torch.equal(value(model), expected)
    train(model)
    assert type(sm.revert_model(model)) is Weighted


def test_convert_parametrize_revert_remove(parametrization):
    model = sm.convert_model(weighted(), cases.example())
    parametrization(model)
    expected = value(model)
    sm.revert_model(model)
    assert not sm.is_converted(model)
    assert parametrize.is_parametrized(model, "weight")
    assert type(model).__bases__ == (Weighted,)
    assert torch.equal(value(model), expected)
    parametrize.remove_parametrizations(model, "weight")
    assert type(model) is Weighted
    assert torch.equal(value(model), expected)


def test_convert_parametrize_convert_again_and_add_another():
    model = sm.convert_model(weighted(), cases.example())
    double(model)
    sm.convert_model(model, cases.example())  # the parametrization has a site of its own
    train(model)
    double(model)
    expected = value(model)
    sm.revert_model(model)
    assert torch.equal(value(model), expected)
    assert not sm.is_converted(model)


def test_parametrizations_that_come_while_converted_stay_after_revert():
    model = weighted()
    model.bias = nn.Parameter(torch.ones(4))
    double(model)
    sm.convert_model(model, cases.example())
    parametrize.register_parametrization(model, "bias", Doubled())
    expected = model.bias.detach()
    sm.revert_model(model)
    assert torch.equal(model.bias, expected)
    assert parametrize.is_parametrized(model, "bias")
    assert isinstance(model, Weighted)
    parametrize.remove_parametrizations(model, "bias")
    parametrize.remove_parametrizations(model, "weight")
    assert type(model) is Weighted


def test_a_deep_copy_of_a_parametrized_module_is_converted_alone():
    model = weighted()
    double(model)
    twin = copy.deepcopy(model)
    assert type(twin) is type(model)
    sm.convert_model(model, cases.example())
    assert not sm.is_converted(twin)
    third = copy.deepcopy(model)
    sm.revert_model(third)
    assert sm.is_converted(model)
    assert not sm.is_converted(third)
    assert torch.equal(value(third), value(model))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_weight_norm_and_spectral_norm_work():
    for wrap, unwrap in (
        (nn.utils.weight_norm, nn.utils.remove_weight_norm),
        (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    ):
        model = weighted()
        wrap(model)
        sm.convert_model(model, cases.example())
        train(model)
        unwrap(model)
        train(model)
        assert type(sm.revert_model(model)) is Weighted


# -- sharding -------------------------------------------------------------------------------


@pytest.fixture
def process_group(tmp_path):
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("torch.distributed is not built in")
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_fully_shard_after_conversion_works_and_forbids_revert(process_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = converted("container")
    expected = train(copy.deepcopy(model))
    mesh = init_device_mesh("cpu", (1,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    out = model(cases.example())
    out.sum().backward()
    assert torch.equal(out.detach(), expected[0])
    for parameter, gradient in zip(model.parameters(), expected[1:], strict=True):
        assert torch.equal(parameter.grad.full_tensor(), gradient)
    assert type(model[1:]).__name__ == "Container"
    before = [type(m) for m in model.modules()]
    with pytest.raises(
        sm.RevertError, match=r"the model itself was given the class 'FSDPContainer'"
    ):
        sm.revert_model(model)
    assert [type(m) for m in model.modules()] == before


@pytest.mark.filterwarnings("ignore")
def test_fully_shard_before_conversion_is_refused(process_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = cases.build("container")
    fully_shard(model[1], mesh=init_device_mesh("cpu", (1,)))
    before = [type(m) for m in model.modules()]
    with pytest.raises(sm.ConversionError, match=r"^1 is sharded by fully_shard"):
        sm.convert_model(model, cases.example())
    assert [type(m) for m in model.modules()] == before


# -- lazy modules ---------------------------------------------------------------------------


def test_lazy_modules_are_refused_before_their_first_run():
    model = nn.Sequential(nn.LazyLinear(4), nn.Sigmoid(), nn.ReLU(inplace=True))
    with pytest.raises(sm.ConversionError, match=r"^0 is a lazy LazyLinear"):
        sm.convert_model(model, cases.example())
    assert model[2].inplace
    model(cases.example())
    sm.convert_model(model, cases.example())
    train(model)
    assert type(sm.revert_model(model)[0]) is nn.Linear


class LazyWeighted(nn.modules.lazy.LazyModuleMixin, Weighted):
    """Becomes another class at its first call."""

    cls_to_become = Weighted

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()

    def initialize_parameters(self, x):
        self.weight.materialize((4, 4))
        nn.init.eye_(self.weight)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_of_the_user_is_converted_as_what_it_becomes():
    model = LazyWeighted()
    with pytest.raises(sm.ConversionError, match="the model itself is a lazy LazyWeighted"):
        sm.convert_model(model)
    model(cases.example())
    sm.convert_model(model, cases.example())
    train(model)
    assert type(sm.revert_model(model)) is Weighted


# -- compilers and exporters ----------------------------------------------------------------


COMPILED = ["child", "container", "decorated", "helpers", "private", "shared"]


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiles_without_a_graph_break(name):
    torch.compiler.reset()
    model = converted(name)
    if name == "decorated":
        model.calls = 0
    expected = train(copy.deepcopy(model))
    found = train(torch.compile(model, fullgraph=True, backend="aot_eager"))
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(a, b)  # the compiler fuses sums in another order


@pytest.mark.parametrize("name", ["child", "container", "helpers", "private", "shared"])
@pytest.mark.filterwarnings("ignore")
def test_exports_with_equal_values(name):
    model = converted(name).eval()
    expected = value(copy.deepcopy(model))
    exported = torch.export.export(model, (cases.example(),))
    assert torch.equal(exported.module()(cases.example()), expected)


@pytest.mark.parametrize("name", ["child", "container", "helpers", "shared"])
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated, tracing warns of constants
def test_jit_trace_works(name):
    model = converted(name)
    traced = torch.jit.trace(model, cases.example())
    assert_same(train(traced), train(model))
    assert sm.is_converted(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_jit_script_is_refused_by_name():
    model = nn.Sequential(nn.Linear(4, 4), converted())
    with pytest.raises(sm.ConversionError, match=r"Residual was converted, and TorchScript"):
        torch.jit.script(model)
    assert sm.is_converted(model)
    torch.jit.script(nn.Sequential(*sm.revert_model(model)[1].children()))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_jit_script_of_switched_flags_works():
    model = converted("flags")
    assert_same(train(torch.jit.script(model)), train(model))


# -- fx -------------------------------------------------------------------------------------


def inplace_nodes(graph: fx.Graph, modules):
    for node in graph.nodes:
        name = getattr(node.target, "__name__", str(node.target))
        if node.op == "call_module" and getattr(modules[node.target], "inplace", False):
            yield node
        elif node.op in ("call_method", "call_function") and (
            (name.endswith("_") and not name.endswith("__"))
            or node.kwargs.get("inplace")
            or node.kwargs.get("out") is not None
            or node.target in (operator.iadd, operator.imul, operator.isub)
        ):
            yield node


@pytest.mark.parametrize(
    "name", ["child", "container", "flags", "grandchild", "helpers", "residual", "shared", "slots"]
)
def test_fx_traces_out_of_place_operators_with_equal_values(name):
    model = converted(name)
    traced = fx.symbolic_trace(model)
    assert not list(inplace_nodes(traced.graph, dict(traced.named_modules())))
    assert_same(train(traced), train(model))
    assert sm.is_converted(model)


def test_torchvision_feature_extraction_works():
    import torchvision
    from torchvision.models.feature_extraction import create_feature_extractor

    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=4).eval()
    x = torch.randn(1, 3, 32, 32)
    nodes = ["layer1", "layer2.0.relu", "fc"]
    expected = create_feature_extractor(copy.deepcopy(model), nodes)(x)
    sm.convert_model(model, x)
    extractor = create_feature_extractor(model, nodes)
    found = extractor(x)
    assert torch.equal(found["fc"], expected["fc"])
    assert torch.equal(found["fc"], model(x))
    assert not list(inplace_nodes(extractor.graph, dict(extractor.named_modules())))
    sum(out.sum() for out in found.values()).backward()


# -- autocast, memory formats, functional calls, replicas, threads --------------------------


def test_autocast_computes_what_the_original_does():
    model, plain = converted("child"), cases.build("child")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            expected = plain(cases.example())
        found = model(cases.example())
    assert found.dtype is expected.dtype
    assert torch.equal(found.detach(), expected)
    found.float().sum().backward()


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        y = self.conv(x).sigmoid()
        y += x
        y[:, :, 0] = 0
        return y


def test_channels_last_is_kept():
    torch.manual_seed(0)
    model = Convolution().to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = model(x)
    sm.convert_model(model, x)
    found = model(x)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)
    found.sum().backward()


@pytest.mark.parametrize("name", ["child", "container", "helpers", "private"])
def test_functional_calls_differentiate(name):
    model = converted(name)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())

    def loss(parameters):
        state = {**parameters, **{k: v.clone() for k, v in buffers.items()}}
        return torch.func.functional_call(model, state, (cases.example(),)).sum()

    found = torch.func.grad(loss)({k: v.detach() for k, v in parameters.items()})
    train(model)
    for key, parameter in parameters.items():
        torch.testing.assert_close(found[key], parameter.grad)


def test_vmap_over_a_batch_and_over_an_ensemble():
    model = converted("helpers")
    batch = torch.stack([cases.example(), cases.example() / 2])
    expected = torch.stack([model(x) for x in batch])
    torch.testing.assert_close(torch.func.vmap(model)(batch), expected)
    models = [converted("helpers"), converted("helpers")]
    state = torch.func.stack_module_state(models)
    found = torch.func.vmap(
        lambda p, b, x: torch.func.functional_call(models[0], (p, b), (x,)), in_dims=(0, 0, None)
    )(*state, cases.example())
    torch.testing.assert_close(found[0], model(cases.example()))


def test_per_sample_gradients():
    model = converted("child")
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x[None],)).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    found = per_sample(parameters, cases.example())
    train(model)
    torch.testing.assert_close(found["linear.weight"].sum(0), model.linear.weight.grad)


def test_replicas_of_data_parallel_run_edited():
    model = converted("container")

    def replicate(module):
        replica = module._replicate_for_data_parallel()
        for name, child in module._modules.items():
            replica._modules[name] = replicate(child)
        for name, parameter in module._parameters.items():
            replica._parameters[name] = None
            setattr(replica, name, parameter)
        return replica

    replica = replicate(model)
    assert type(replica[0]) is type(model[0])
    x = cases.example().requires_grad_()
    out = replica(x)
    out.sum().backward()
    assert torch.equal(out, model(x))


def test_data_parallel_runs_on_what_is_there():
    model = converted("residual")
    wrapped = nn.DataParallel(model)  # without devices it runs the module itself
    assert_same(train(wrapped), train(model))
    wrapped = sm.convert_model(nn.DataParallel(cases.build("residual")), cases.example())
    train(wrapped)


def test_threads_run_one_model_at_a_time_each():
    model = converted("shared")
    expected = train(copy.deepcopy(model))[0]
    found, errors = [], []

    def work():
        try:
            for _ in range(5):
                x = cases.example().requires_grad_()
                out = model(x)
                torch.autograd.grad(out.sum(), x)
                found.append(out.detach())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(found) == 20
    assert all(torch.equal(out, expected) for out in found)


@pytest.mark.parametrize("name", sorted(cases.BUILDERS))
def test_meta_device_and_double_precision_keep_the_class(name):
    model = converted(name)
    cls = type(model)
    assert type(model.double()) is cls
    model(cases.example().double()).sum().backward()
    assert type(copy.deepcopy(model).to("meta")) is cls
    assert model(torch.empty(2, 4, dtype=torch.float64)).dtype is torch.float64
