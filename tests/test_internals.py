"""Every private name of torch that the package reads is there, and is read in one file."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

import safemodules
from safemodules.mutation import graph_internals, internals

PACKAGE = Path(safemodules.__file__).parent
HOMES = {Path(internals.__file__), Path(graph_internals.__file__)}


def test_registries_of_a_module_are_there():
    module = nn.BatchNorm1d(2)
    for name in internals.REGISTRIES:
        assert isinstance(vars(module)[name], dict)
    assert internals.is_initialised(module)
    assert not internals.is_initialised(nn.Module.__new__(nn.Module))
    model = nn.Sequential(module, module)
    assert list(internals.children(model)) == ["0", "1"]


def test_hooks_are_seen():
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        module = nn.Identity()
        assert not internals.has_hooks(module)
        getattr(module, register)(lambda *_: None)
        assert internals.has_hooks(module)


def test_compiled_modules_are_seen():
    module = nn.Linear(2, 2)
    assert internals.is_optimized(torch.compile(module, backend="eager"))
    assert not internals.is_optimized(module)
    assert not internals.is_compiled_in_place(module)
    module.compile(backend="eager")
    assert internals.is_compiled_in_place(module)


def test_lazy_modules_are_seen():
    assert internals.is_lazy(nn.LazyLinear(2))
    assert not internals.is_lazy(nn.Linear(2, 2))


def test_classes_of_sharding_are_seen():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    sharded = type("FSDPLinear", (fsdp.FSDPModule, nn.Linear), {})
    module = nn.Linear(2, 2)
    assert not internals.is_sharded(module)
    module.__class__ = sharded
    assert internals.is_sharded(module)


def test_parametrized_classes_are_seen():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert internals.is_parametrized_class(type(module))
    assert type(module).__bases__ == (nn.Linear,)
    assert internals.user_class_of(type(module)) is nn.Linear
    assert not any(
        internals.is_parametrized_class(type(m)) for m in module.parametrizations.modules()
    )


def test_classes_of_cpp_and_quantized_modules_are_where_they_were():
    import torch.nn.cpp

    assert torch.nn.cpp.ModuleWrapper.__module__ == "torch.nn.cpp"
    assert ".quantized" in torch.ao.nn.quantized.Linear.__module__


def private_names(tree: ast.AST) -> set[tuple[int, str]]:
    """Private attributes that are read of something other than ``self`` and ``cls``."""
    own = {"self", "cls"}
    return {
        (node.lineno, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in own)
        and not (isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()")
    }


def names_of_torch() -> set[str]:
    """Private names that a tensor, a module or torch itself has."""
    grad_fn = torch.ones(1, requires_grad=True).exp().grad_fn
    values = [torch.Tensor, nn.Module(), torch, torch._C, torch.autograd.graph, grad_fn]
    return {name for value in values for name in dir(value) if name.startswith("_")}


# Members of every tensor and module, which are as good as public.
EVERYWHERE = {"_base", "_buffers", "_is_view", "_modules", "_parameters", "_version"}
# What the recorder reads where it stands.
RECORDER = {"_C", "_call_impl", "_cdata", "_sequence_nr"}


def test_no_other_file_reads_a_private_name_of_torch():
    known = names_of_torch()
    assert known >= EVERYWHERE | RECORDER
    found = {
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in PACKAGE.rglob("*.py")
        if path not in HOMES
        for line, name in private_names(ast.parse(path.read_text()))
        if name in known - EVERYWHERE and not (name in RECORDER and path.parent.name == "mutation")
    }
    assert not found, "move these into mutation/internals.py or graph_internals.py"


def test_every_function_of_internals_has_a_docstring_that_says_what_it_is_for():
    for name, value in vars(internals).items():
        public = inspect.isfunction(value) and not name.startswith("_")
        if public and value.__module__ == internals.__name__:
            assert value.__doc__, name


def test_calls_of_modules_are_followed_and_leave_no_hook_behind():
    seen = []
    calls = internals.module_calls(
        lambda module, args: seen.append(len(args)),
        lambda module, args, kwargs, output: seen.append(sorted(kwargs)),
    )
    with calls:
        nn.Identity()(input=torch.ones(1))
    nn.Identity()(torch.ones(1))
    assert seen == [0, ["input"]]
    # torch.compile takes an entry of any of these for a hook
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        assert not getattr(nn.modules.module, name)
    assert not nn.modules.module._global_forward_hooks_with_kwargs


@pytest.mark.parametrize(
    ("name", "new"), [("relu", True), ("cat", True), ("view", False), ("dropout", False)]
)
def test_schemas_tell_what_returns_new_memory(name, new):
    assert internals.returns_new_memory(name) is new


def test_saved_tensor_hooks_can_be_read_and_used():
    with pytest.raises(RuntimeError, match="no saved-tensor hooks"):
        internals.top_saved_tensor_hooks()
    hooks = (lambda t: t, lambda t: t)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        assert internals.top_saved_tensor_hooks() == hooks
    x = torch.ones(2)
    saved = internals.save_tensor(x)
    assert saved.unpack() is x
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved.unpack()


def test_many_tensors_are_copied_at_once():
    sources = [torch.ones(2), torch.arange(3)]
    targets = [torch.zeros(2), torch.zeros(3, dtype=torch.long)]
    internals.copy_all(targets, sources)
    internals.copy_all([], [])
    assert all(torch.equal(a, b) for a, b in zip(targets, sources, strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace. is deprecated:FutureWarning")
def test_tracing_is_seen():
    seen = []
    torch.jit.trace(lambda x: seen.append(graph_internals.is_traced()) or x * 1, torch.ones(2))
    assert seen[0] and not graph_internals.is_traced()


def test_nodes_have_numbers_in_the_order_of_their_making_and_dtypes():
    x = torch.ones(2, requires_grad=True)
    start = internals.next_sequence_number()
    first, second = x.exp(), x.half()
    assert start <= graph_internals.sequence_number(first.grad_fn)
    assert graph_internals.sequence_number(first.grad_fn) < graph_internals.sequence_number(
        second.grad_fn
    )
    assert graph_internals.dtypes_of(second.grad_fn) == [torch.float16]


def test_hooks_of_a_tensor_do_not_run_while_their_registry_is_empty():
    x, seen = torch.ones(2, requires_grad=True), []
    assert not graph_internals.tensor_hooks(x)
    x.register_hook(seen.append)
    hooks = graph_internals.tensor_hooks(x)
    kept = dict(hooks)
    hooks.clear()
    torch.autograd.grad(x.exp().sum(), x)
    assert not seen
    hooks.update(kept)
    torch.autograd.grad(x.exp().sum(), x)
    assert len(seen) == 1


def test_tensors_of_one_storage_are_told_from_others():
    x, asked = torch.ones(4), []
    assert graph_internals.shares_storage(x[1:], x.view(2, 2))
    assert not graph_internals.shares_storage(x, x.clone())
    torch.vmap(lambda row: asked.append(graph_internals.shares_storage(row, x)) or row)(x)
    assert not graph_internals.shares_storage(x.to_sparse(), x)
    assert asked == [False]


def test_tensors_are_added_to_tensors():
    sums = [torch.ones(2), torch.zeros(())]
    graph_internals.add_all_(sums, [torch.ones(2), torch.ones(())])
    assert [t.tolist() for t in sums] == [[2.0, 2.0], 1.0]


def test_a_thread_in_the_engine_is_in_the_frame_of_one_function():
    import sys

    found = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            frame = sys._getframe()
            while frame is not None:
                found.append(frame.f_code)
                frame = frame.f_back
            return grad

    for run in (lambda y, x: y.backward(), lambda y, x: torch.autograd.grad(y, x)):
        found.clear()
        x = torch.ones((), requires_grad=True)
        run(Look.apply(x), x)
        assert internals.code_that_runs_the_engine() in found


@pytest.mark.parametrize(("backend", "expected"), [("eager", False), ("aot_eager", True)])
def test_the_compiler_is_known_while_it_is_traced_for(backend, expected):
    ask = torch.compiler.assume_constant_result(internals.compiles_ahead)

    @torch.compile(backend=backend)
    def run(x):
        return x + 1 if ask() else x - 1

    torch._dynamo.reset()
    assert int(run(torch.zeros((), dtype=torch.long))) == (1 if expected else -1)


def test_transforms_are_seen():
    seen = []
    torch.func.grad(lambda x: seen.append(graph_internals.is_transformed()) or x.sin())(
        torch.ones(())
    )
    assert seen == [True] and not graph_internals.is_transformed()


def test_fake_tensors_have_sizes_and_mix_with_real_ones():
    with graph_internals.fake_mode() as mode:
        fake = mode.from_tensor(torch.ones(2, 3))
        assert graph_internals.is_fake(fake + torch.ones(3))
    assert fake.shape == (2, 3)
    assert not graph_internals.is_fake(torch.ones(1))


def test_uncounted_calls_are_not_told_to_modes():
    class Counter(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        torch.ones(2).sum()
        before = counter.calls
        with graph_internals.uncounted():
            torch.ones(2).sum()
    assert before > 0
    assert counter.calls == before


def test_the_allocator_tells_what_it_hands_out_and_takes_back():
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        made = torch.empty(2**20)
        del made
    changes = graph_internals.memory_changes(profile)
    assert 2**22 in changes
    assert -(2**22) in changes
