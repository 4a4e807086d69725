"""Agreement of processes that train together."""

import torch
from torch import distributed

from safemodules.blocks.paths import Place
from safemodules.errors import LoopBodyError

__all__ = ["require_same_count"]


def require_same_count(count: int, device: torch.device, place: Place) -> None:
    """Check that every process ran the same number of iterations.

    Data parallel training averages the gradients of the processes, which is no mean over all
    items where their numbers differ.

    Args:
        count: Number of iterations of this process.
        device: Where the loss is; the backend exchanges tensors of this kind.
        place: Where the loop stands, for messages.

    Raises:
        LoopBodyError: On every process, if the numbers differ.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    if distributed.get_world_size() == 1:
        return
    bounds = torch.tensor([count, -count], device=device)
    distributed.all_reduce(bounds, distributed.ReduceOp.MAX)
    most, least = int(bounds[0]), -int(bounds[1])
    if most != least:
        raise LoopBodyError(
            f"{place}: this process ran {count} iterations, others from {least} to {most}. The "
            f"average of the processes' gradients is no mean over all items then. Give every "
            f"process the same number (drop_last=True of its DataLoader), or pass "
            f'check_ranks=False with reduction="sum" and divide by a count of your own.'
        )
