"""Peak of live tensor bytes in one step, counted by storage."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class StorageCounter(TorchDispatchMode):
    """Count the bytes of every storage that an operator returns until it is freed.

    Args:
        known: Tensors that exist already and do not count (parameters, buffers, inputs).
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.live = 0
        self._history: list[int] = []
        self._made_at = WeakIdKeyDictionary()
        for tensor in known:
            self._made_at[tensor.untyped_storage()] = None

    @property
    def peak(self) -> int:
        """The most bytes alive after any operator."""
        return max(self._history, default=0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._count(output)
        self._history.append(self.live)
        return outputs

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._made_at:
            return
        self._made_at[storage] = len(self._history)
        size = storage.nbytes()
        self.live += size
        weakref.finalize(storage, self._free, size).atexit = False

    def _free(self, size: int) -> None:
        self.live -= size

    def leave_out(self, tensor: Tensor) -> None:
        """Count the memory of a tensor as if it had never been made, and not as freed later."""
        storage = tensor.untyped_storage()
        made = self._made_at[storage]
        if made is not None:
            size = storage.nbytes()
            self._history[made:] = [live - size for live in self._history[made:]]
            self.live -= size


def measure_step(
    model: nn.Module, inputs: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[int, int]:
    """Bytes that forward leaves for backward, and the peak of the whole step.

    Both are beyond parameters, buffers and inputs; the peak contains the gradients.
    """
    model.zero_grad(set_to_none=True)
    counter = StorageCounter([*model.parameters(), *model.buffers(), inputs])
    with counter:
        total = loss(model(inputs))
        saved = counter.live
        total.backward()
    model.zero_grad(set_to_none=True)
    return saved, counter.peak


def measure_activations(
    model: nn.Module, inputs: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[int, int]:
    """As :func:`measure_step`, with the gradients of parameters left out of the peak."""
    model.zero_grad(set_to_none=True)
    counter = StorageCounter([*model.parameters(), *model.buffers(), inputs])
    arrived = []

    def leave_out(parameter: Tensor) -> None:
        assert parameter.grad is not None
        counter.leave_out(parameter.grad)

    for parameter in model.parameters():
        if parameter.requires_grad:
            arrived.append(parameter.register_post_accumulate_grad_hook(leave_out))
    with counter:
        output = model(inputs)
        saved = counter.live
        loss(output).backward()
        peak = counter.peak  # before the gradients are freed
    for hook in arrived:
        hook.remove()
    model.zero_grad(set_to_none=True)
    return saved, peak
