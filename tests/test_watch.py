"""`watch`: errors that pass through are explained; nothing else is changed."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import safemodules as sm
from safemodules.diagnosis import watching

HERE = Path(__file__)


def at(text):
    """``file:line`` of the line of this file that ends in a mark."""
    marks = [n for n, t in enumerate(HERE.read_text().splitlines(), 1) if t.endswith(f"# @{text}")]
    assert len(marks) == 1, text
    return f"{HERE.name}:{marks[0]}"


def note_of(step, model=None, match=None):
    """The one note of the error that a step raises, and what was found."""
    with pytest.raises(RuntimeError, match=match) as caught, sm.watch(model) as watched:
        step()
    assert not _get_current_function_mode_stack()
    notes = caught.value.__notes__
    assert len(notes) == 1
    return " ".join(notes[0].split()), watched.diagnosis


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(3, 3)


def test_the_note_names_both_lines_versions_and_what_to_do():
    model = nn.Sequential(linear(), nn.Sigmoid())

    def step():
        out = model(torch.ones(2, 3))  # @saves
        out += 1  # @writes
        out.sum().backward()

    note, diagnosis = note_of(step, model, "modified by an inplace operation")
    assert note.startswith("safemodules: clash: a float32 tensor of sizes [2, 3], the result")
    assert f"{at('saves')} in 1" in note
    assert at("writes") in note
    assert "version 0 was saved, 1 is found" in note
    assert "convert_model cannot mend it" in note
    [clash] = diagnosis.clashes
    assert clash.cause == "written outside the models"
    assert [entry.path for entry in diagnosis.modules] == ["", "0", "1"]


def test_a_module_that_is_gone_is_told_from_none():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, x):
            h = self.layer(x).sigmoid()
            h += x  # @gone-writes
            return h

    def step():
        loss = nn.Sequential(Net())(torch.ones(2, 3)).sum()
        gc.collect()
        loss.backward()

    note, diagnosis = note_of(step)
    assert f"convert_model(model, example_inputs) computes tests/{at('gone-writes')}" in note
    assert at("gone-writes") in note
    assert diagnosis.clashes[0].convertible


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}])
def test_an_optimizer_that_steps_too_early_is_named(options):
    model = nn.Sequential(linear(), linear())
    optimizer = torch.optim.Adam(model.parameters(), **options)

    def step():
        loss = model(torch.ones(2, 3)).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        second = model(torch.ones(2, 3)).sum()
        optimizer.step()  # @early-step
        second.backward()

    note, diagnosis = note_of(step)
    assert diagnosis.clashes[0].cause == "optimizer before backward"
    assert "Move optimizer.step() after the last backward" in note
    assert at("early-step") in note


def test_a_fused_optimizer_that_steps_too_early_is_a_warning():
    """It moves no version, so that torch does not raise."""
    model = nn.Sequential(linear(), linear())
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    with sm.watch() as watched:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    assert not watched.diagnosis.warnings
    with sm.watch() as watched:
        loss = model(torch.ones(2, 3)).sum()
        optimizer.step()
        loss.backward()
    [warning] = watched.diagnosis.warnings
    assert "fused optimizer" in warning


def test_a_carried_state_is_told_from_an_early_step():
    cell = nn.RNNCell(3, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)

    def train():
        h = torch.zeros(1, 3)
        for _ in range(3):
            h = cell(torch.ones(1, 3), h)
            h.sum().backward(retain_graph=True)
            optimizer.step()

    note, diagnosis = note_of(train)
    assert diagnosis.clashes[0].cause == "carried state"
    assert "h.detach()" in note


def test_an_optimizer_that_steps_in_a_hook_of_the_backward_is_seen():
    layer = linear()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.weight.register_post_accumulate_grad_hook(
        lambda p: optimizer.step()  # @hook
    )
    early = torch.ones(1, 3, requires_grad=True)

    def step():
        h = layer(early)
        layer(h.detach()).sum().backward(retain_graph=True)
        h.sum().backward()

    note, _ = note_of(step)
    assert at("hook") in note


@pytest.mark.parametrize(
    "backward",
    [
        lambda loss, p: loss.backward(),
        lambda loss, p: torch.autograd.backward(loss),
        lambda loss, p: torch.autograd.backward([loss]),
        lambda loss, p: torch.autograd.grad(loss, p),
        lambda loss, p: loss.backward(inputs=[p]),
    ],
)
def test_every_form_of_backward_is_followed(backward):
    p = torch.ones(3, requires_grad=True)

    def step():
        y = p.exp()
        y.mul_(2)
        backward(y.sum(), p)

    note, diagnosis = note_of(step)
    assert "y = p.exp()" in note
    assert "y.mul_(2)" in note
    assert len(diagnosis.clashes) == 1


def test_a_clash_inside_a_reentrant_checkpoint_is_explained():
    def region(x):
        h = torch.sigmoid(x)  # @region-saves
        h += x  # @region-writes
        return h

    def step():
        x = torch.ones(3, requires_grad=True)
        checkpoint(region, x * 2, use_reentrant=True).sum().backward()

    note, diagnosis = note_of(step)
    assert at("region-saves") in note
    assert at("region-writes") in note
    assert diagnosis.clashes[0].cause == "reentrant checkpoint"


def test_a_freed_graph_is_explained_with_the_line_that_was_freed():
    def step():
        x = torch.ones(3, requires_grad=True)
        h = x.exp()  # @freed
        h.sum().backward()  # @first-backward
        h.sin().sum().backward()

    note, diagnosis = note_of(step, match="second time")
    assert "A graph is freed by its first backward" in note
    assert at("freed") in note
    assert at("first-backward") in note
    assert not diagnosis.clashes


def test_a_written_leaf_and_a_written_output_of_split_are_explained():
    leaf = torch.ones(3, requires_grad=True)
    note, _ = note_of(lambda: leaf.add_(1), match="leaf Variable")
    assert "torch.no_grad()" in note
    note, _ = note_of(lambda: leaf[:2].add_(1), match="leaf Variable")
    assert "torch.no_grad()" in note

    def step():
        a, _ = (leaf * 1).split([1, 2])  # @split
        a += 1  # @split-write

    note, _ = note_of(step, match="is a view and is being modified inplace")
    assert at("split") in note
    assert at("split-write") in note


def test_changed_metadata_of_a_recomputation_is_explained():
    sizes = [3, 4]

    def region(x):
        return (x.expand(sizes.pop(0), 3) * x).sin()

    def step():
        x = torch.ones(3, requires_grad=True)
        checkpoint(region, x, use_reentrant=False).sum().backward()  # @region-call

    note, _ = note_of(step, match="different metadata")
    assert "did not repeat itself" in note
    assert at("region-call") in note


@pytest.fixture
def one_rank():
    """A process group of one rank."""
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


class ReadyOnce(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layer, self.last = linear(), linear(), linear()

    def forward(self, x):
        return self.last(checkpoint(self.layer, self.first(x), use_reentrant=True))  # @ready-once


class ReadyOutside(ReadyOnce):
    def forward(self, x):
        x = checkpoint(self.layer, self.first(x), use_reentrant=True)
        return self.last(x * self.layer.weight.sum())  # @ready-outside


class ReadyOutsideBefore(ReadyOnce):
    def forward(self, x):
        x = self.layer(self.first(x))  # @ready-before
        return self.last(checkpoint(self.layer, x, use_reentrant=True))


class ReadyInLoop(ReadyOnce):
    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)  # @ready-loop
        return self.last(x)


class ReadyInTwo(ReadyOnce):
    def forward(self, x):
        x = checkpoint(self.layer, self.first(x), use_reentrant=True)  # @ready-two
        return checkpoint(lambda t: self.last(self.layer(t)), x, use_reentrant=True)


OUTSIDE = "is used outside of the checkpointed region too"
UNUSED = "find_unused_parameters=True"
TIMES = "It ran 2 times"
SEVERAL = "share it"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "search", "forwards", "mark", "seen"),
    [
        (ReadyOnce, True, 1, "ready-once", UNUSED),
        (ReadyOnce, False, 2, "ready-once", TIMES),
        (ReadyOutside, False, 1, "ready-outside", OUTSIDE),
        (ReadyOutside, True, 1, "ready-outside", UNUSED),
        (ReadyOutsideBefore, False, 1, "ready-before", OUTSIDE),
        (ReadyInLoop, False, 1, "ready-loop", TIMES),
        (ReadyInTwo, False, 1, "ready-two", SEVERAL),
    ],
)
def test_a_parameter_that_is_ready_twice_is_explained_by_what_was_seen(
    one_rank, model, search, forwards, mark, seen
):
    wrapped = nn.parallel.DistributedDataParallel(model(), find_unused_parameters=search)

    def step():
        sum(wrapped(torch.ones(2, 3)).sum() for _ in range(forwards)).backward()

    note, _ = note_of(step, match="ready only once")
    assert "use_reentrant=False" in note
    evidence = note[note.index("every checkpoint.") :]
    causes = {cause for cause in (OUTSIDE, UNUSED, TIMES, SEVERAL) if cause in evidence}
    assert causes == {seen}
    assert "Seen: a reentrant checkpoint" in evidence
    if mark != "ready-outside" or not search:
        assert at(mark) in evidence


@pytest.mark.filterwarnings("ignore")
def test_buffers_that_ddp_broadcasts_get_their_own_advice(one_rank):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x):
            return (x * self.weight * self.scale).sum()

    model = nn.parallel.DistributedDataParallel(Model(), broadcast_buffers=True)

    def step():
        x = torch.ones(3)
        first = model(x)
        with torch._C.DisableTorchFunction():  # one rank alone broadcasts nothing
            model.module.scale.copy_(torch.ones(3))
        (first + model(x)).backward()

    note, diagnosis = note_of(step)
    assert "broadcast_buffers=False" in note
    assert diagnosis.clashes[0].cause == "broadcast buffers"


def test_silent_overwrites_become_warnings():
    layer, norm = linear(), nn.BatchNorm1d(3)
    with sm.watch() as watched:
        h = layer(torch.ones(2, 3)).sigmoid()
        h.data.mul_(0.5)
        h.sum().backward()
    [warning] = watched.diagnosis.warnings
    assert ".data" in warning
    with sm.watch() as watched:
        x = torch.randn(4, 3, requires_grad=True)
        first = norm.eval()(x)
        norm.train()(x)
        first.sum().backward()
    assert "evaluation mode" in watched.diagnosis.warnings[0]
    with sm.watch() as watched:
        (norm(x) + norm(x)).sum().backward()
    assert not watched.diagnosis.warnings


def test_a_good_step_is_reported_and_changes_nothing():
    model = nn.Sequential(linear(), nn.ReLU(inplace=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 3)
    model(x).sum().backward()
    plain = model[0].weight.grad.clone()
    optimizer.zero_grad()
    with sm.watch(model) as watched:
        model(x).sum().backward()
        optimizer.step()
    assert torch.equal(model[0].weight.grad, plain)
    assert not watched.diagnosis.clashes
    assert watched.diagnosis.error is None
    assert {site.op for site in watched.diagnosis.sites} == {"relu_", "add_"}
    assert not _get_current_function_mode_stack()


def test_another_error_passes_without_a_note():
    with pytest.raises(KeyError) as caught, sm.watch() as watched:
        raise KeyError("a")
    assert not hasattr(caught.value, "__notes__")
    assert watched.diagnosis.error == "KeyError: 'a'"
    with pytest.raises(RuntimeError, match="size") as caught, sm.watch():
        _ = torch.ones(2) + torch.ones(3)
    assert not hasattr(caught.value, "__notes__")


def test_a_nested_watch_adds_no_second_note():
    def step():
        with sm.watch():
            y = torch.ones(3, requires_grad=True).exp()
            y += 1
            y.sum().backward()

    note_of(step)


def test_python_3_10_gets_the_note_as_an_attribute():
    class Old(RuntimeError):
        add_note = property()

    error = Old("x")
    watching._add_note(error, "safemodules: a")
    watching._add_note(error, "safemodules: b")
    assert error.__notes__ == ["safemodules: a"]


def test_no_activation_or_module_is_kept_alive():
    model = nn.Sequential(linear(), nn.Sigmoid(), nn.ReLU(inplace=True))
    kept = []
    model[1].register_forward_hook(lambda m, i, o: kept.append(weakref.ref(o.untyped_storage())))
    with sm.watch():
        out = model(torch.ones(2, 3))
        out.mul_(1.0)
        loss = out.sum()
        del out, loss
        gc.collect()
        assert kept[0]() is None  # freed within the block
        module = weakref.ref(model)
        del model
        gc.collect()
        assert module() is None


def test_a_state_that_a_module_keeps_makes_no_cycle_that_cannot_be_freed():
    class Keeper(nn.Module):
        def forward(self, x):
            self.state = x.sigmoid()
            return self.state

    keeper = Keeper()
    with sm.watch():
        keeper(torch.ones(3, requires_grad=True))
    gone = weakref.ref(keeper)
    del keeper
    gc.collect()
    assert gone() is None


def test_many_writes_are_bounded(monkeypatch):
    from safemodules.mutation import recorder

    monkeypatch.setattr(recorder, "_WRITES", 100)
    monkeypatch.setattr(recorder, "_WRITES_PER_STORAGE", 40)
    with sm.watch() as watched:
        tensors = [torch.ones(1) for _ in range(50)]
        for _ in range(30):
            for t in tensors:
                t.add_(1)
        for _ in range(300):
            tensors[0].add_(1)
        assert sum(map(len, watched._recorder.writes.values())) <= 100


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["module", "in place", "function", "submodule"])
@pytest.mark.parametrize("fresh", [False, True])
def test_compiled_code_is_neither_broken_up_nor_compiled_again(how, fresh):
    import torch._dynamo
    from torch._dynamo.testing import CompileCounter
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounter()
    net = nn.Sequential(linear(), nn.BatchNorm1d(3), nn.Sigmoid())
    model = torch.compile(net, backend=counter) if how != "in place" else net
    if how == "in place":
        net.compile(backend=counter)
    elif how == "function":
        model = torch.compile(lambda t: net(t).sin(), backend=counter)
    elif how == "submodule":
        model = nn.Sequential(linear(), model)
    x = torch.randn(4, 3)
    if not fresh:
        model(x).sum().backward()
    with sm.watch():
        model(x).sum().backward()
    if isinstance(model, nn.Module):
        diagnosis = sm.diagnose(model, x)
        assert not diagnosis.clashes
        assert diagnosis.error is None
    model(x).sum().backward()
    assert counter.frame_count == 1
    assert not counters["graph_break"]
    assert not _get_current_function_mode_stack()


@pytest.mark.filterwarnings("ignore")
def test_what_compiled_code_made_has_the_line_of_its_call():
    import torch._dynamo

    torch._dynamo.reset()
    net = torch.compile(nn.Sequential(linear(), nn.Sigmoid()), backend="aot_eager")

    def step():
        y = net(torch.ones(2, 3))  # @compiled-call
        y.mul_(2)  # @compiled-write
        y.sum().backward()

    note, diagnosis = note_of(step)
    assert at("compiled-call") in note
    assert at("compiled-write") in note
    assert diagnosis.clashes[0].possible


def test_two_models_and_two_threads_do_not_disturb_each_other():
    import threading

    errors, first, second = [], linear(), linear(1)

    def other():
        try:
            for _ in range(20):
                first(torch.ones(2, 3)).relu_().sum().backward()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=other)
    with sm.watch() as watched:
        thread.start()
        for _ in range(20):
            second(torch.ones(2, 3)).sigmoid_().sum().backward()
        thread.join()
    assert not errors
    assert [site.op for site in watched.diagnosis.sites] == ["sigmoid_"]
