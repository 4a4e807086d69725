"""`diagnose` and `watch` against plain PyTorch, on random programs with known lines."""

import random
import warnings

import pytest
from diagnosis_programs import Program, disagreement, make_program, truth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("ignore")
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@st.composite
def programs(draw):
    return make_program(lambda some: draw(st.sampled_from(list(some))), draw(st.integers(1, 6)))


@settings(max_examples=40, deadline=None, suppress_health_check=_QUIET)
@given(programs())
def test_a_clash_is_reported_exactly_where_backward_raises(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert disagreement(program) is None, program.text()


@pytest.mark.parametrize("block", range(6))
def test_seeded_programs_are_judged_as_pytorch_judges_them(block):
    for seed in range(1_000_000 + 25 * block, 1_000_000 + 25 * (block + 1)):
        choices = random.Random(seed)
        program = make_program(choices.choice, choices.randrange(2, 12))
        assert disagreement(program) is None, f"seed {seed}\n{program.text()}"


START = ("a = x * 1.0", "b = x + 0.5")
# Programs on which an earlier version was wrong, by the kind of its fault.
COUNTEREXAMPLES = {
    "the operation overwrites what it has saved itself": (
        "a.addcmul_(a, a)",
        "return a.sum()",
    ),
    "the node of a written view hides in CopySlices": (
        "b = self.conv(b[None]).squeeze(0)",
        "b.addcmul_(a, a)",
        "a.add_(a)",
        "return b.sum()",
    ),
    "a written view saves itself": (
        "v0 = b.view(16)[4:8]",
        "v0.mul_(v0)",
        "return (b.sum() + v0.sum())",
    ),
    "a written view saves its base": (
        "v2 = a.view_as(a)",
        "v2.mul_(a)",
        "a.exp_()",
        "return v2.sum()",
    ),
    "the result of an in-place activation on a view": (
        "v0 = self.conv(b[None]).squeeze(0)",
        "F.relu(v0, inplace=True)",
        "v0 /= 3.0",
        "return v0.sum()",
    ),
    "a write through .data has a counter of its own": (
        "v1 = a.std() + a",
        "a.data.mul_(2.0)",
        "v4 = a.narrow(0, 1, 2)",
        "v4.zero_()",
        "return (b.sum() + v1.sum())",
    ),
    "one Function kept two tensors, and both were overwritten": (
        "v0 = KeepsBoth.apply(b, a)",
        "b -= 0.1",
        "a.copy_(v0)",
        "return (a.sum() + v0.sum())",
    ),
    "a view of a Function's result is no part of it": (
        "v0 = b ** 2",
        "v1 = KeepsBoth.apply(v0, v0)",
        "v0.relu_()",
        "v7 = self.conv(v1[None]).squeeze(0)",
        "return v1.sum()",
    ),
    "an operation whose result is a view of what it made": (
        "b = torch.einsum('ij,jk->ik', b, a)",
        "v1 = self.act(b)",
        "a.addcmul_(v1, v1)",
        "return b.sum()",
    ),
    "a view that may not be written, after its base was": (
        "v0 = a.t()",
        "v1 = a.chunk(2)[0]",
        "F.leaky_relu_(v0)",
        "v1.mul_(1.5)",
        "return v0.sum()",
    ),
    "a parameter is overwritten": (
        "v0 = self.linear(a)",
        "v1 = self.linear(v0)",
        "with torch.no_grad(): self.linear.weight.mul_(0.5)",
        "return v1.sum()",
    ),
    "the optimizer steps": (
        "v0 = self.linear(self.linear(a))",
        "self.step()",
        "return v0.sum()",
    ),
    "a custom Function has saved one of several views, whose base is written": (
        "v1 = b.chunk(2)[0]",
        "v1 = KeepsBoth.apply(v1, v1)",
        "v4 = b.abs()",
        "b.clamp_(-1, 1)",
        "return (v1.sum() + v4.sum())",
    ),
}


@pytest.mark.parametrize("lines", COUNTEREXAMPLES.values(), ids=COUNTEREXAMPLES)
def test_former_counterexample(lines):
    program = Program((*START, *lines))
    assert disagreement(program) is None


@pytest.mark.parametrize(
    ("lines", "raises"),
    [
        (("v0 = a.sigmoid()", "v0.mul_(2.0)", "return v0.sum()"), True),
        (("v0 = a.sigmoid()", "v0.detach().mul_(2.0)", "return v0.sum()"), True),
        (("v0 = a.sigmoid()", "v0.data.mul_(2.0)", "return v0.sum()"), False),
        (("v0 = a.sigmoid()", "v0.mul_(2.0)", "return a.sum()"), False),
        (("v0 = NeverAsks.apply(a)", "a.mul_(2.0)", "return v0.sum()"), False),
    ],
)
def test_the_oracle_agrees_with_what_is_known(lines, raises):
    expected = truth(Program((*START, *lines)))
    assert (expected.backward_error is not None) == raises
    first = len(Program(()).source.splitlines()) + 1
    assert expected.clashes == ({(first + 2, first + 3)} if raises else frozenset())
