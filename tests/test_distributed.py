"""Checkpointed models train in two processes as they train in one."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import distributed_cases as cases
import pytest
import torch.distributed as dist
from distributed_workers import PARENT_SECONDS, run_together

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()),
        reason="this build of torch has no gloo",
    ),
]


@pytest.fixture(scope="module")
def results():
    """One pair of processes does it all: starting them takes longer than what they do."""
    return run_together(_everything)


SHARDED = list(itertools.product(("inside", "around", "parts"), (None, "matmul")))
BUDGETED = ("ddp", "whole", "parts")
NORMS = list(itertools.product((1, 2), (False, True)))


def _everything(rank):
    return {
        "matrix": cases.whole_matrix(rank),
        "norm": {case: cases.batch_norm(rank, *case) for case in NORMS},
        "sharded": {case: cases.sharded(rank, *case) for case in SHARDED},
        "sync": cases.sync_batch_norm(rank),
        "accumulated": cases.accumulated(rank),
        "budgeted": {around: cases.budgeted(rank, around) for around in BUDGETED},
    }


def test_some_combinations_fail_with_reentrant_checkpoints(results):
    """The error that people come with; without it the next test would show nothing."""
    for found in results:
        failed = {
            case for case, (before, *_) in found["matrix"].items() if before == "marked twice"
        }
        assert failed >= {(True, *case, False) for case in itertools.product((1, 2), (False, True))}
        assert failed >= {(False, 1, True, False), (False, 2, False, False)}


@pytest.mark.parametrize("combination", cases.matrix(), ids=str)
def test_every_combination_passes_with_exact_checkpoints(results, combination):
    """Written with them and converted: the gradients are those of a single process."""
    for found in results:
        _, exact, converted = found["matrix"][combination]
        assert exact is None and converted is None


@pytest.mark.parametrize("case", NORMS, ids=str)
def test_batch_norm_and_broadcast_buffers(results, case):
    """Also where the broadcast overwrites the buffers between a forward and its backward."""
    for found in results:
        equal, tracked = found["norm"][case]
        assert equal is True
        assert tracked == 3 * case[0]


@pytest.mark.parametrize("case", SHARDED, ids=str)
def test_fully_sharded_modules(results, case):
    for found in results:
        assert found["sharded"][case]


def test_sync_batch_norm(results):
    outcomes = [found["sync"] for found in results]
    if all(isinstance(outcome, str) and "GPU" in outcome for outcome in outcomes):
        pytest.skip(f"torch has no SyncBatchNorm on the CPU: {outcomes[0]}")
    assert outcomes == [None, None]


def test_gradients_that_accumulate_without_synchronisation(results):
    assert all(found["accumulated"] for found in results)


@pytest.mark.parametrize("around", BUDGETED)
def test_a_budget_under_one_plan_in_all_processes(results, around):
    """Of a sharded model what is computed of parameters is kept, and the rest still forgotten."""
    counts = []
    for found in results:
        exact, forgotten, replays = found["budgeted"][around]
        assert exact and forgotten
        counts.append(replays)
    assert counts[0] == counts[1] > 0


def test_the_example_trains_under_torchrun(tmp_path):
    """As its docstring says: one count of batches per step, in and outside of the regions."""
    example = Path(__file__).parents[1] / "examples" / "train_distributed.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(example)]
    command += ["--steps", "2", "--size", "32", "--batch", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    launcher = subprocess.Popen(
        command, env=environment, cwd=tmp_path, start_new_session=True, **pipes
    )
    try:
        printed, errors = launcher.communicate(timeout=PARENT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGTERM)  # on which it ends its processes
        launcher.communicate(timeout=60)
        raise
    assert launcher.returncode == 0, errors
    lines = printed.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["step 0", "step 1"]
    assert lines[2] == "batches seen by batch norm: 2 outside, 2 inside"
