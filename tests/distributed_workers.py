"""Two processes that train together over gloo on the loopback interface, bounded in time."""

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

WORLD = 2
# What a hung collective takes to raise, and what the parent waits for.
COLLECTIVE = timedelta(seconds=300)
PARENT_SECONDS = 600


def _worker(rank, store, function, arguments, results):
    torch.set_num_threads(1)
    # No address is looked up, and nothing but the loopback is listened on.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=COLLECTIVE
        )
        try:
            found = function(rank, *arguments)
        finally:
            dist.destroy_process_group()
        results.put((rank, None, found))
    except BaseException:
        results.put((rank, traceback.format_exc(), None))


def run_together(function, *arguments):
    """What a function of the rank returns in each of two new processes.

    Args:
        function: a function of a module; it is given the rank and the arguments.
        arguments: what can be pickled. So must be the results, without tensors.

    Raises:
        AssertionError: a process raised, or did not end in time.
    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        processes = [
            context.Process(
                target=_worker, args=(rank, str(store), function, arguments, results), daemon=True
            )
            for rank in range(WORLD)
        ]
        for process in processes:
            process.start()
        try:
            rows = [results.get(timeout=PARENT_SECONDS) for _ in processes]
            for process in processes:
                process.join(timeout=30)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
    errors = [error for _, error, _ in rows if error is not None]
    assert not errors, "\n".join(errors)
    return [found for _, _, found in sorted(rows, key=lambda row: row[0])]
