"""Random programs that forget random results compute what they do if they keep them."""

import contextlib
import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_counter import StorageCounter
from program_strategy import programs
from replay_counter import counted_replays
from tensor_strategy import bits
from test_generated_programs import EXAMPLE, build

import safemodules as sm
from safemodules.checkpointing.forgetting import forgetful
from safemodules.memory.choosing import choose
from safemodules.memory.recording import record_step, summed
from safemodules.memory.simulation import Simulation
from safemodules.trees import CallArguments, clone_inputs, flatten_tensors

pytestmark = pytest.mark.filterwarnings("error::safemodules.BudgetWarning")


class Step:
    """One step of a model: what it has computed, whether backward ran, and its peak."""

    def __init__(self, net, call):
        net = copy.deepcopy(net)
        handed, leaves = clone_inputs(CallArguments((EXAMPLE,), {}), requires_grad=True)
        known = [*net.parameters(), *net.buffers(), *handed.inputs, *leaves.values()]
        wanted = [*leaves.values(), *net.parameters()]
        torch.manual_seed(0)
        counter = StorageCounter(known)
        with counter:
            output = call(net, *handed.inputs)
            seen = [tensor.detach().clone() for _, tensor in flatten_tensors(output)]
            self.cloned = sum(tensor.untyped_storage().nbytes() for tensor in seen)
            with contextlib.suppress(RuntimeError):
                self.raises = True
                summed(output).backward()
                self.raises = False
        if not self.raises:
            seen += [torch.zeros(0) if leaf.grad is None else leaf.grad for leaf in wanted]
        self.seen = [bits(tensor) for tensor in (*seen, *net.buffers())]
        self.peak = counter.peak - self.cloned


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(text=programs(), data=st.data())
def test_a_program_that_forgets_computes_the_same(text, data):
    for net in build(text):
        plain = Step(net, lambda net, x: net(x))
        call = CallArguments((EXAMPLE.clone().requires_grad_(),), {})
        try:
            tape = record_step(net, call)
        except RuntimeError:  # an overwritten leaf, or a view that backward refuses
            assert plain.raises
            return
        able = [place for place, operator in enumerate(tape.operators) if operator.can_replay]
        drawn = data.draw(st.sets(st.sampled_from(able)) if able else st.just(set()))
        simulation = Simulation(tape)
        forgotten = simulation.completed(drawn)
        with counted_replays() as replays:
            found = Step(net, lambda net, x: forgetful(tape.forgetting(forgotten), net, x))
        assert found.seen == plain.seen
        assert found.raises == plain.raises
        if not found.raises:
            simulated = simulation.run(forgotten)
            assert found.peak <= simulated.peak
            assert len(replays) == simulated.replays


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(text=programs(), data=st.data())
def test_no_choice_takes_less_than_the_bound(text, data):
    """A choice at random proves that its peak is possible, and what that may cost at most."""
    for net in build(text):
        try:
            tape = record_step(net, CallArguments((EXAMPLE.clone().requires_grad_(),), {}))
        except RuntimeError:  # torch refuses its backward
            return
        able = [place for place, operator in enumerate(tape.operators) if operator.can_replay]
        drawn = data.draw(st.sets(st.sampled_from(able)) if able else st.just(set()))
        simulation = Simulation(tape)
        some = simulation.run(simulation.completed(drawn))
        chosen = choose(simulation, some.peak)
        assert chosen.bound <= some.seconds * (1 + 1e-6)
        if chosen.choice is None:
            assert chosen.lowest.bound <= some.peak
        else:
            assert chosen.choice.simulated.peak <= some.peak
            assert chosen.bound <= chosen.choice.simulated.seconds * (1 + 1e-6)


def test_the_error_of_a_program_names_what_it_should():
    """A step that forgets raises where the plain one does, and says what to do."""
    net = torch.nn.Sequential(torch.nn.Sigmoid(), torch.nn.ReLU(inplace=True))
    x = torch.randn(4, requires_grad=True)
    tape = record_step(net, CallArguments((x,), {}))
    with pytest.raises(sm.CheckpointError, match="modified by an inplace operation"):
        forgetful(tape.forgetting(()), net, x).sum().backward()


NORMS = {
    "batch": torch.nn.BatchNorm1d(4),
    "layer": torch.nn.LayerNorm(4),
    "group": torch.nn.GroupNorm(2, 4),
    "rms": torch.nn.RMSNorm(4),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("count", [1, 2])
def test_replays_are_counted_as_they_are_made(norm, count):
    """What is kept of a result, as the mean of a norm, is not computed again when asked for."""
    layers = (torch.nn.Linear(4, 4), norm, torch.nn.Tanh(), torch.nn.Linear(4, 4))
    net = torch.nn.Sequential(*copy.deepcopy(layers * count)).double()
    tape = record_step(net, CallArguments((EXAMPLE,), {}))
    able = [place for place, operator in enumerate(tape.operators) if operator.can_replay]
    for places in (*([place] for place in able), able):
        completed = Simulation(tape).completed(places)
        plan = tape.forgetting(completed)
        with counted_replays() as replays:
            forgetful(plan, net, EXAMPLE).sum().backward()
        assert len(replays) == Simulation(tape).run(completed).replays
