"""The private names of torch that checkpointed regions, loops of losses and edited code read.

The others stand in ``internals``; ``tests/test_internals.py`` says of each what it needs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

__all__ = [
    "add_all_",
    "dtypes_of",
    "fake_mode",
    "is_fake",
    "is_traced",
    "is_transformed",
    "memory_changes",
    "sequence_number",
    "shares_storage",
    "tensor_hooks",
    "uncounted",
]

# Whether two tensors have one storage, asked before every overwrite, so by torch's own function.
# Of what has no storage, as in a transform, the answer is no.
shares_storage: Callable[[Tensor, Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]


def sequence_number(node: Any) -> int:
    """Number of a node of the graph: smaller than those of nodes made later in its thread."""
    return int(node._sequence_nr())


def dtypes_of(node: Any) -> list[torch.dtype]:
    """Dtypes of what the operation of a node returned."""
    return [entry.dtype for entry in node._input_metadata]


def tensor_hooks(tensor: Tensor) -> dict[int, Any] | None:
    """What ``Tensor.register_hook`` keeps; emptied, the hooks do not run."""
    found: dict[int, Any] | None = tensor._backward_hooks
    return found


def add_all_(sums: list[Tensor], terms: list[Tensor]) -> None:
    """Add tensors to tensors in place, with one call for all."""
    torch._foreach_add_(sums, terms)


def is_traced() -> bool:
    """Whether ``torch.jit.trace`` is recording; ``torch.jit.is_tracing`` is not exported."""
    return torch._C._is_tracing()


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` runs; it cannot be asked publicly."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has sizes and no values; the class is not exported."""
    return isinstance(tensor, FakeTensor)


def fake_mode() -> FakeTensorMode:
    """A mode in which tensors have no values; real ones may be used, as if they had none."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def uncounted() -> Any:
    """Call torch functions without telling modes of them."""
    return torch._C.DisableTorchFunction()


def memory_changes(profile: torch.profiler.profile) -> list[int]:
    """What torch's CPU allocator has handed out, and with a minus taken back, in its order.

    The public events give these to operators, summed, so that the order within one is lost.
    """
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    events: list[Any] = profile.profiler.kineto_results.events()
    found = [event for event in events if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(found, key=lambda event: event.start_ns())]
