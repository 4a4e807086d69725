"""Random programs compute with checkpoints what they compute without, or say why not."""

import pytest
import torch
from checkpoint_programs import judge, make_program, random_program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint as torch_checkpoint


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_programs_agree(data):
    text = make_program(lambda choices: data.draw(st.sampled_from(list(choices))))
    kind, difference = judge(text)
    assert difference is None, f"{kind}: {difference}\n{text}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_seeded_programs_agree(first):
    kinds = set()
    for seed in range(first, first + 50):
        text = random_program(seed)
        kind, difference = judge(text)
        assert difference is None, f"seed {seed}, {kind}: {difference}\n{text}"
        kinds.add(kind)
    assert {"runs", "backward raises"} <= kinds  # both sides of the claim are met


def test_the_oracle_tells_torchs_own_checkpoint_from_an_exact_one():
    """Else that nothing is found would show nothing."""

    def inexact(fn, *args, **kwargs):
        return torch_checkpoint(fn, *args, use_reentrant=False, **kwargs)

    found = [judge(random_program(seed), inexact)[1] for seed in range(30)]
    assert sum(difference is not None for difference in found) > 5
    assert torch.is_grad_enabled()
