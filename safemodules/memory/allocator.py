"""The peak of torch's own allocator in one ordinary step."""

import torch
from torch import nn

from safemodules.memory.recording import LossFn, prepared_step
from safemodules.mutation.graph_internals import memory_changes
from safemodules.trees import CallArguments

__all__ = ["allocator_peak"]


def allocator_peak(model: nn.Module, call: CallArguments, loss_fn: LossFn | None = None) -> int:
    """Bytes that the allocator has handed out at the peak of one step, beyond those before it.

    Buffers within kernels count. The model is left as it was.

    Args:
        model: the model.
        call: what it is called with.
        loss_fn: see :func:`record_step`.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with prepared_step(model, call, loss_fn) as step:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            step.backward(step.forward())
            return torch.cuda.max_memory_allocated(device) - before
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profiler:
            step.backward(step.forward())
    level = peak = 0
    for change in memory_changes(profiler):
        level += change
        peak = max(peak, level)
    return peak
