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
        self.live = self.peak = 0
        self._seen = WeakIdKeyDictionary()
        for tensor in known:
            self._seen[tensor.untyped_storage()] = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._count(output)
        self.peak = max(self.peak, self.live)
        return outputs

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._seen:
            return
        self._seen[storage] = True
        size = storage.nbytes()
        self.live += size
        weakref.finalize(storage, self._free, size).atexit = False

    def _free(self, size: int) -> None:
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
