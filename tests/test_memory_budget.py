"""A step that forgets results is the step: in every mode, and beside everything else."""

import copy
import dataclasses
import itertools
import os
import pickle
import random
import threading

import pytest
import torch
import torch.nn.functional as F
import torchvision
from memory_counter import StorageCounter
from replay_counter import counted_replays
from torch import nn

import safemodules as sm
from safemodules.checkpointing.forgetting import CallCounter, Forgetting, Rehearsal, forgetful
from safemodules.memory.budgets import Budget
from safemodules.memory.choosing import choose
from safemodules.memory.overhead import Overhead, measured_overhead
from safemodules.memory.recording import costing, record_step
from safemodules.memory.search import FEW, Search, least_seconds
from safemodules.memory.simulation import Simulation
from safemodules.trees import CallArguments

pytestmark = pytest.mark.filterwarnings("error::safemodules.BudgetWarning")


class Block(nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.GroupNorm(2, width)
        self.conv2 = nn.Conv2d(width, width, 1)
        self.act = act

    def forward(self, x):
        h = self.act(self.norm1(self.conv1(x)))
        h = self.norm2(self.conv2(F.dropout(h, 0.1, self.training)))
        h += x
        return F.relu(h, inplace=True)


class Net(nn.Module):
    """Residual blocks with batch and group norm, a skip over all of them, and dropout."""

    def __init__(self, width=8, depth=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        acts = itertools.cycle([nn.ReLU(inplace=True), nn.SiLU(), nn.GELU(), nn.Sigmoid()])
        self.blocks = nn.Sequential(*(Block(width, next(acts)) for _ in range(depth)))
        self.head = nn.Linear(2 * width, 5)

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        x = torch.cat([x, self.blocks(x)], 1)
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


MODELS = {
    "residual": (Net, lambda: torch.randn(4, 3, 12, 12)),
    "attention": (Attention, lambda: torch.randn(3, 7, 16)),
}


@pytest.fixture(params=list(MODELS), ids=str)
def model(request):
    torch.manual_seed(0)
    cls, make = MODELS[request.param]
    return cls(), make()


def trained(net, x, steps=2):
    """Every bit that training leaves behind."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        out = net(x)
        out.square().mean().backward()
        optimizer.step()
        seen += [out.detach(), *(p.grad.clone() for p in net.parameters())]
    return [*seen, *net.state_dict().values(), torch.get_rng_state()]


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def peak_of(net, x):
    known = [*net.parameters(), *net.buffers(), x]
    net.zero_grad(set_to_none=True)
    counter = StorageCounter(known)
    with counter:
        out = net(x)
        out.sum().backward()
    net.zero_grad(set_to_none=True)
    return counter.peak


@pytest.mark.parametrize("budget", ["90%", "85% of activations", "80% of activations"])
def test_a_budget_is_met_and_training_is_the_same(model, budget):
    net, x = model
    original = copy.deepcopy(net)
    plan = sm.plan_conversion(net, x, memory_budget=budget, checkpoint=False)
    assert plan.memory.peak <= plan.memory.budget
    assert plan.equivalence.equivalent
    plan.apply()
    if plan.memory.counts_gradients:
        assert peak_of(copy.deepcopy(net), x) <= plan.memory.budget
    assert plan.memory.forgotten
    assert equal(trained(original, x), trained(net, x))
    sm.revert_model(net)
    assert type(net) is type(original)
    assert set(vars(net)) == set(vars(original))


def test_the_predicted_peak_is_the_measured_one(model):
    net, x = model
    before = sm.profile_memory(net, x)
    assert before.peak == peak_of(net, x)
    for share in (0.95, 0.9):
        plan = sm.plan_checkpoints(net, x, f"{share:.0%}")
        budgeted = sm.convert_model(copy.deepcopy(net), x, checkpoint=plan)
        assert plan.peak == peak_of(budgeted, x) <= share * before.peak


def test_fake_tensors_predict_the_same_bytes(model):
    net, x = model
    real, fake = sm.profile_memory(net, x), sm.profile_memory(net, x, fake=True)
    assert (real.peak, real.saved_bytes) == (fake.peak, fake.saved_bytes)
    assert [m.saved_bytes for m in real.modules] == [m.saved_bytes for m in fake.modules]
    assert fake.is_estimated and not real.is_estimated
    plan = sm.plan_checkpoints(net, x, "90%", fake=True)
    net = sm.convert_model(net, x, checkpoint=plan)
    assert peak_of(net, x) == plan.peak


def test_a_model_larger_than_the_machine_is_planned():
    with torch.device("meta"):
        net = nn.Sequential(*(nn.Linear(2**15, 2**15) for _ in range(40)))
        x = torch.randn(2**12, 2**15)
    profile = sm.profile_memory(net, x, fake=True)
    assert profile.parameter_bytes == 40 * (2**30 + 2**15) * 4
    plan = sm.plan_checkpoints(net, x, "60% of activations", fake=True)
    assert plan.peak <= plan.budget < profile.activation_peak


def forget_all(net, x):
    tape = record_step(net, CallArguments((x,), {}))
    able = [place for place, one in enumerate(tape.operators) if one.can_replay]
    return tape.forgetting(Simulation(tape).completed(able))


def test_backward_may_run_again_and_in_parts(model):
    net, x = model
    plan = forget_all(net, x)
    parameters = list(net.parameters())

    def gradients(call):
        torch.manual_seed(0)
        out = call(net, x)
        once = torch.autograd.grad(out.sum(), parameters, retain_graph=True)
        part = torch.autograd.grad(out[0].sum(), parameters[:2], retain_graph=True)
        return [*once, *part, *torch.autograd.grad(out.square().sum(), parameters)]

    expected = gradients(lambda net, x: net(x))
    assert equal(expected, gradients(lambda net, x: forgetful(plan, net, x)))


def test_second_derivatives():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid()).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    plan = forget_all(net, x)

    def forward(x):
        return forgetful(plan, net, x)

    assert torch.autograd.gradcheck(forward, (x,))
    assert torch.autograd.gradgradcheck(forward, (x,))


def test_autocast_is_seen_by_the_plan_and_not_by_the_replay(model):
    net, x = model
    with torch.autocast("cpu", torch.bfloat16):
        plan = forget_all(net, x)

    def gradients(call, inside):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            out = call(net, x).float().square().sum()
            if inside:
                return torch.autograd.grad(out, list(net.parameters()))
        return torch.autograd.grad(out, list(net.parameters()))

    for inside in (False, True):
        expected = gradients(lambda net, x: net(x), inside)
        assert equal(expected, gradients(lambda net, x: forgetful(plan, net, x), inside))


def test_inside_of_a_checkpoint_and_beside_other_hooks_it_steps_aside(model):
    net, x = model
    plan = forget_all(net, x)
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(x)
        count = len(kept)
        forgetful(plan, net, x)
    assert len(kept) == 2 * count
    torch.manual_seed(0)
    expected = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    torch.manual_seed(0)
    out = sm.checkpoint(lambda x: forgetful(plan, net, x), x)
    assert equal(expected, torch.autograd.grad(out.sum(), list(net.parameters())))


def test_without_gradients_compiled_and_exported_the_model_is_itself(model):
    net, x = model
    original = copy.deepcopy(net.eval())
    net = sm.convert_model(net, x, memory_budget="85% of activations")
    with torch.no_grad():
        assert torch.equal(net(x), original(x))
        assert torch.equal(torch.compile(net, backend="eager")(x), original(x))
        exported = [torch.export.export(each, (x,)).module()(x) for each in (net, original)]
    assert torch.equal(*exported)
    slope = torch.func.grad(lambda x: torch.func.functional_call(net, {}, (x,)).sum())(x)
    assert slope.shape == x.shape


def test_threads_replay_their_own(model):
    net, x = model
    net.eval()
    plan, results = forget_all(net, x), {}

    def run(seed):
        out = forgetful(plan, net, x + seed)
        results[seed] = torch.autograd.grad(out.sum(), list(net.parameters()))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        expected = torch.autograd.grad(net(x + seed).sum(), list(net.parameters()))
        assert equal(expected, results[seed])


def test_copies_and_pickles_keep_the_budget(model):
    net, x = model
    sm.convert_model(net, x, memory_budget="85% of activations", checkpoint=False)
    peak = peak_of(net, x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert peak_of(other, x) == peak
        assert sm.conversion_plan(other).memory.peak == sm.conversion_plan(net).memory.peak


def test_other_inputs_are_computed_right_and_another_forward_warns():
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

        def forward(self, x):
            for layer in self.layers[: 6 if x.shape[0] > 3 else 4]:
                x = layer(x).tanh().exp().sigmoid()
            return x

    net = Choosing()
    original = copy.deepcopy(net)
    sm.convert_model(net, torch.randn(8, 4), memory_budget="70% of activations", checkpoint=False)
    x = torch.randn(32, 4)
    assert equal(trained(copy.deepcopy(original), x), trained(copy.deepcopy(net), x))
    x = torch.randn(2, 4)
    expected = [original(x), *torch.autograd.grad(original(x).sum(), original.layers[0].weight)]
    with pytest.warns(sm.BudgetWarning, match="planned"):
        found = [net(x), *torch.autograd.grad(net(x).sum(), net.layers[0].weight)]
    assert equal(expected, found)


def test_what_a_replay_reads_must_not_be_overwritten():
    x = torch.randn(4, 4, requires_grad=True)
    extra = torch.randn(4, 4)

    class Adds(nn.Module):
        def forward(self, x):
            return (x + extra).sigmoid().sum()

    plan = forget_all(Adds(), x)
    out = forgetful(plan, Adds(), x)
    extra.add_(1)
    with pytest.raises(sm.CheckpointError, match="version 1; expected version 0"):
        out.backward()


def test_parameters_that_are_taken_away_are_noticed():
    """As sharding does between a module's forward and its backward."""

    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x + self.weight).sigmoid().sum()

    net, x = Scales(), torch.randn(4, 4, requires_grad=True)
    out = forgetful(forget_all(net, x), net, x)
    net.weight.untyped_storage().resize_(0)
    with pytest.raises(sm.CheckpointError, match="has no memory any more"):
        out.backward()


def test_a_sharded_model_keeps_what_is_computed_of_its_parameters(model):
    net, x = model
    original = copy.deepcopy(net)
    sm.convert_model(net, x, memory_budget="60% of activations")
    child = next(net.children())
    sharded = type("FSDPModule", (), {"__module__": "torch.distributed.fsdp"})
    child.__class__ = type("FSDPChild", (sharded, type(child)), {})
    torch.manual_seed(0)
    with pytest.warns(sm.BudgetWarning, match="sharded"):
        found = net(x)
    torch.manual_seed(0)
    assert torch.equal(found, original(x))
    with counted_replays() as replays:
        found.sum().backward()
    names = {str(call.func) for call in replays}
    assert names and not any(part in n for n in names for part in ("norm", "convol", "addmm"))


def test_calls_of_what_shards_a_model_do_not_count():
    """A plan is made before a model is sharded, and names operators by their place."""

    class Hooked(nn.Sequential):
        def forward(self, x):
            with torch.profiler.record_function("unshard"), torch.no_grad():
                x = super().forward(x)
            return x + 1

    def counted(forward):
        counter = CallCounter()
        with counter:
            forward(torch.randn(2, 2))
        return counter.calls

    before = counted(Hooked(nn.Tanh()))
    file = os.path.join(os.path.dirname(torch.__file__), "distributed", "hooks.py")
    names = {"torch": torch, "nn": nn}
    code = compile("def hook(module, args):\n    torch.relu(args[0]).add_(1)\n", file, "exec")
    exec(code, names)
    net = Hooked(nn.Tanh())
    net.register_forward_pre_hook(names["hook"])
    assert counted(net) == before > 0


def test_a_forgotten_result_that_is_overwritten_is_computed_from_its_own_arguments():
    """Where plain autograd would refuse, the gradient is that of what was computed."""

    class Overwrites(nn.Module):
        is_planned = True

        def forward(self, x):
            y = x.sigmoid()
            y = y + 1 if self.is_planned else y.add_(1)
            return y * y

    net, x = Overwrites(), torch.randn(4, requires_grad=True)
    plan = forget_all(net, x)
    expected = torch.autograd.grad(net(x).sum(), x)
    net.is_planned = False
    with pytest.warns(sm.BudgetWarning):
        out = forgetful(plan, net, x)
    assert equal(expected, torch.autograd.grad(out.sum(), x))


# -- what forgetting costs ------------------------------------------------------------------


@pytest.mark.parametrize("everything", [False, True])
def test_a_rehearsal_computes_the_same(model, everything):
    net, x = model
    tape = record_step(net, CallArguments((x,), {}))
    original = copy.deepcopy(net)
    torch.manual_seed(0)
    expected = original(x)
    torch.manual_seed(0)
    with Rehearsal(everything=everything) as rehearsal:
        out = net(x)
    assert torch.equal(out, expected)
    gradients = torch.autograd.grad(out.square().sum(), list(net.parameters()))
    assert equal(
        gradients, torch.autograd.grad(expected.square().sum(), list(original.parameters()))
    )
    assert rehearsal.calls == tape.calls
    assert (rehearsal.noted > 0) is everything


def test_a_forward_that_asks_for_gradients_itself_is_planned():
    class Force(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

        def forward(self, x):
            x = x.detach().requires_grad_()
            energy = self.net(x).square().sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    net, x = Force(), torch.randn(64, 8)
    plan = sm.plan_checkpoints(net, x, "100%")
    assert plan.peak <= plan.budget and plan.overhead >= 1


def test_a_tape_tells_how_many_tensors_a_forward_saves(model):
    net, x = model
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        net(x)
    assert record_step(net, CallArguments((x,), {})).saves == len(saved)


def test_forgetting_costs_calls_saved_tensors_and_operators():
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Sigmoid())
    tape = record_step(net, CallArguments((torch.randn(4, 8),), {}))
    overhead = Overhead(1.0, 10.0, 100.0, 1000.0, 50.0)
    dearer = tape.costing(overhead)
    assert dearer.forgetting_seconds == tape.calls + 10 * tape.saves
    more = {
        after.name: round(after.replay_seconds - before.replay_seconds)
        for before, after in zip(tape.operators, dearer.operators, strict=True)
    }
    assert more["aten.sigmoid.default"] == 100 and more["aten.native_layer_norm.default"] == 1000
    assert overhead.times(2, 3) == Overhead(2.0, 20.0, 300.0, 3000.0, 150.0)


def short(tape):
    """The same step, so short that forgetting is much of it."""
    return dataclasses.replace(tape, seconds=1e-9)


class Overwriting(nn.Module):
    """Overwrites its input."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.sigmoid(self.inner(x.sigmoid_()))


class Remembering(Overwriting):
    """Keeps what it has computed, with its graph, for a second call in the same step."""

    last = None

    def forward(self, x):
        x = self.inner(x if self.last is None else self.last + x)
        self.last = torch.sigmoid(x)
        return self.last


@pytest.mark.parametrize("kind", [Overwriting, Remembering])
def test_overhead_is_measured_where_a_step_changes_what_the_next_would_see(kind):
    net, call = kind(), CallArguments((torch.randn(4, 8, requires_grad=True),), {})
    before = call.inputs[0].detach().clone()
    tape = short(record_step(net, call))
    assert costing(net, call, tape).seconds != tape.seconds
    assert torch.equal(call.inputs[0], before) and call.inputs[0].grad is None
    assert getattr(net, "last", None) is None


def test_an_operator_costs_in_the_backward_too():
    overhead = measured_overhead()
    assert overhead.operator > overhead.forward_operator > overhead.call > 0
    assert overhead.save > 0


def test_overhead_is_measured_in_the_model_where_it_is_much_of_a_step(model):
    net, x = model
    call = CallArguments((x,), {})
    tape = short(record_step(net, call))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gradients = [torch.randn_like(parameter) for parameter in net.parameters()]
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()
    calls, losses = [], []

    def loss(output):
        losses.append(1)
        return output.square().sum()

    with net.register_forward_hook(lambda *_: calls.append(1)):
        inside = costing(net, call, tape, loss)
        assert losses and equal([each.grad for each in net.parameters()], gradients)
        after = net.state_dict()
        assert calls and all(torch.equal(value, after[name]) for name, value in before.items())
        outside = tape.costing(measured_overhead())
        times = inside.forgetting_seconds / outside.forgetting_seconds
        assert 1 / 1.5 - 1e-9 <= times <= 1.5 + 1e-9
        assert 0 < inside.seconds != tape.seconds
        calls.clear()
        long = dataclasses.replace(tape, seconds=1e6)
        assert costing(net, call, long) == long.costing(measured_overhead())
        assert not calls


# -- choosing -------------------------------------------------------------------------------


def best(simulation, budget):
    """The least seconds of all choices."""
    found = None
    for count in range(len(simulation.candidates) + 1):
        for chosen in itertools.combinations(simulation.candidates, count):
            step = simulation.run(simulation.completed(chosen))
            if step.peak <= budget and (found is None or step.seconds < found):
                found = step.seconds
    return found


def test_what_is_never_asked_for_is_forgotten_for_nothing():
    class Unused(nn.Module):
        def forward(self, x):
            unused = [torch.sin(x) * x]
            return torch.sigmoid(x) + 0 * len(unused) + x

    x = torch.randn(4, 4, requires_grad=True)
    simulation = Simulation(record_step(Unused(), CallArguments((x,), {})))
    peaks = {place: simulation.run({place}).peak for place in simulation.candidates}
    lower = [place for place in peaks if not simulation.run({place}).seconds]
    assert lower and min(peaks.values()) < simulation.run(()).peak
    for place in lower:
        assert choose(simulation, peaks[place]).bound == 0


def test_a_bound_is_not_above_what_is_chosen():
    torch.manual_seed(0)
    net, make = MODELS["residual"]
    tape = record_step(net(), CallArguments((make(),), {}))
    generator = random.Random(0)
    for _ in range(20):
        operators = tuple(
            dataclasses.replace(each, replay_seconds=generator.uniform(1e-5, 1e-2))
            for each in tape.operators
        )
        simulation = Simulation(dataclasses.replace(tape, operators=operators))
        chosen = choose(simulation, simulation.run(()).peak * 6 // 10)
        assert chosen.bound <= chosen.choice.simulated.seconds


def test_without_a_solver_a_search_chooses(monkeypatch, model):
    net, x = model
    proven = sm.plan_checkpoints(net, x, "60% of activations")
    monkeypatch.setattr("safemodules.memory.choosing.is_solvable", lambda: False)
    monkeypatch.setattr("safemodules.memory.plans.is_solvable", lambda: False)
    plan = sm.plan_checkpoints(net, x, "60% of activations")
    assert plan.peak <= plan.budget and plan.forgotten
    assert plan.bound <= plan.seconds and proven.bound <= proven.seconds
    with pytest.raises(sm.BudgetError, match="scipy"):
        sm.plan_checkpoints(net, x, "3%")


def test_a_search_goes_on_where_no_single_change_helps(monkeypatch):
    net = sm.convert_model(torchvision.models.resnet50(), checkpoint=False)
    tape = record_step(net, CallArguments((torch.empty(8, 3, 224, 224),), {}), fake=True)
    simulation = Simulation(tape, gradients=False)
    budget = int(0.35 * simulation.run(()).peak)
    monkeypatch.setattr("safemodules.memory.search.NEIGHBOURS", ())
    stuck = Search(simulation, budget)
    stuck.forget()
    assert not stuck.fits
    monkeypatch.undo()
    search = Search(simulation, budget)
    search.forget()
    before = search.best.simulated
    assert search.fits and before.peak <= budget
    search.improve()
    assert search.fits and search.best.simulated.seconds < before.seconds


@pytest.mark.parametrize("share", [0.9, 0.8, 0.7, 0.6])
def test_a_choice_is_near_the_best_of_all(share):
    net = nn.Sequential(
        *(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)),
        *(nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 32)),
        *(nn.Softplus(), nn.Linear(32, 1)),
    )
    tape = record_step(net, CallArguments((torch.randn(512, 16),), {}), fake=True)
    simulation = Simulation(tape, gradients=False)
    assert len(simulation.candidates) > FEW  # else every choice is tried
    budget = int(share * simulation.run(()).peak)
    chosen = choose(simulation, budget)
    seconds = best(simulation, budget)
    if seconds is None:
        assert chosen.choice is None and chosen.lowest.choice.simulated.peak > budget
        return
    assert chosen.choice.simulated.peak <= budget
    assert least_seconds(simulation, budget) <= chosen.bound <= seconds * (1 + 1e-9)
    assert seconds <= chosen.choice.simulated.seconds <= 1.01 * seconds
    assert choose(simulation, budget).choice.forgotten == chosen.choice.forgotten


def test_a_plan_of_nothing_is_free():
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    plan = sm.plan_checkpoints(net, x, "1 GiB")
    assert not plan.forgotten and plan.overhead == 1 and "nothing is forgotten" in str(plan)
    assert plan.forgetting == Forgetting(plan.forgetting.calls, {})


# -- wrong use ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50%", 500), ("2 KiB", 2048), ("1.5kb", 1500), (7, 7), ("100% of activations", 1000)],
)
def test_budgets_are_read(text, expected):
    assert Budget.parse(text).of(1000) == expected


@pytest.mark.parametrize("budget", ["half", "50", -1, 0, 0.5, True, "0%", "5 XB", None])
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(sm.OptionError, match="expected a number of bytes"):
        Budget.parse(budget)


def test_an_impossible_budget_names_one_that_is_possible(model):
    net, x = model
    with pytest.raises(sm.BudgetError, match="cannot be brought to") as caught:
        sm.convert_model(net, x, memory_budget="3%", checkpoint=False)
    assert not sm.is_converted(net)
    least = int(str(caught.value).partition("bytes")[0].rpartition("(")[2])
    plan = sm.plan_checkpoints(net, x, least)
    assert plan.peak <= least


def test_a_budget_leaves_no_loop_checkpointed_that_it_does_not_need():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).tanh()
            return x

    net, x = Loop(), torch.randn(256, 64)
    plan = sm.plan_conversion(net, x, memory_budget="70% of activations")
    assert {region.decision for region in plan.regions} == {"plain"}
    assert plan.memory.peak <= plan.memory.budget
    assert "memory budget:" in str(plan)
    assert "memory" in plan._repr_html_()


def test_options_that_exclude_each_other():
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    plan = sm.plan_checkpoints(net, x, "1 GiB")
    with pytest.raises(sm.OptionError, match="needs example_inputs"):
        sm.convert_model(net, memory_budget="50%")
    with pytest.raises(sm.OptionError, match="pass one of the two"):
        sm.convert_model(net, x, memory_budget="50%", checkpoint=plan)
    with pytest.raises(sm.OptionError, match="pass it alone"):
        sm.convert_model(net, x, checkpoint=[plan, "loops"])
    with pytest.raises(sm.ExampleInputError, match="needs a gradient"):
        sm.plan_checkpoints(nn.Flatten(), torch.randn(2, 2, 2), "50%", fake=True)
