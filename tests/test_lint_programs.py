"""Random programs compute the same after ``fix``, and fixing them twice changes nothing more."""

import ast

import pytest
import torch
from hypothesis import Phase, given, reject, settings
from program_strategy import programs
from tensor_strategy import bits
from test_generated_programs import INPUTS, MODES, build, run

from safemodules.linting.fixer import fix_bytes
from safemodules.linting.run import lint_paths

pytestmark = pytest.mark.filterwarnings("ignore")


# a failing program is read as it is: shrinking one takes minutes
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


def fixed(text, folder, *, unsafe=False):
    path = folder / "program.py"
    path.write_text(text)
    result = lint_paths([str(path)], jobs=1)
    return fix_bytes(
        str(path),
        text.encode(),
        is_wanted=lambda found: True,
        reached=result.reached,
        unsafe=unsafe,
    ).after.decode()


def record(text, x, *, train, graph, autocast=False):
    """What the program does, in bits; ``None`` where it raises anything but a clash."""
    for net in build(text):
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                found = run(net.float() if autocast else net, x, train=train, graph=graph)
        except Exception:
            return None
        return (
            [bits(value) for value in found.outputs],
            {name: bits(value) for name, value in found.buffers.items()},
            found.handed,
            # where the original's backward raises, the mended one may have gradients
            None if found.gradients is None
            else [None if g is None else bits(g) for g in found.gradients],
        )  # fmt: skip
    return None


def check(text, after):
    for train, graph in MODES:
        for x in INPUTS:
            before = record(text, x, train=train, graph=graph)
            if before is None:
                reject()
            now = record(after, x, train=train, graph=graph)
            assert now is not None and now[:3] == before[:3], after
            assert before[3] is None or now[3] == before[3], after


@pytest.mark.parametrize("wild", [False, True])
def test_a_mended_program_computes_the_same(wild, tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    seen = []

    @settings(max_examples=25, deadline=None, phases=PHASES)
    @given(programs(wild=wild))
    def holds(text):
        after = fixed(text, folder)
        seen.append(after != text)
        if after != text:
            check(text, after)
            assert fixed(after, folder) == after

    holds()
    assert any(seen)


@settings(max_examples=25, deadline=None, phases=PHASES)
@given(programs(wild=True))
def test_a_mended_program_computes_the_same_under_autocast(tmp_path_factory, text):
    after = fixed(text, tmp_path_factory.getbasetemp())
    x = INPUTS[0].float()
    before = record(text, x, train=True, graph=True, autocast=True)
    if after == text or before is None:
        reject()
    now = record(after, x, train=True, graph=True, autocast=True)
    assert now is not None and now[:3] == before[:3], after
    assert before[3] is None or now[3] == before[3], after


@settings(max_examples=25, deadline=None, phases=PHASES)
@given(programs(wild=True))
def test_unsafe_fixes_leave_programs_that_parse_and_stay(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp()
    after = fixed(text, folder, unsafe=True)
    ast.parse(after)
    assert fixed(after, folder, unsafe=True) == after
    assert after.count("\n") == text.count("\n")
