"""AccumulatingLoop where two processes train together, on loopback with gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()),
    reason="needs torch.distributed with gloo",
)

HERE = Path(__file__).parent
LIMIT = 120


def run_pair(name: str) -> list[str]:
    """Run a function of ``loop_processes.py`` in two processes; returns what they printed."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    env = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / "loop_processes.py"), name],
            env={**env, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=LIMIT)[0])
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return outputs


@pytest.mark.parametrize(
    "name",
    [
        "ddp",
        "ddp_find_unused",
        "ddp_accumulates",
        "counts_differ",
        "sharded_around",
        "sharded_inside",
    ],
)
def test_two_processes(name: str) -> None:
    assert all("passed" in output for output in run_pair(name))


def test_one_process_needs_no_agreement() -> None:
    assert not distributed.is_initialized()
    assert torch.zeros(()).dim() == 0
