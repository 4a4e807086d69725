"""Live tensor bytes, counted by storage: what predictions of a step's peak are measured by."""

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageCounter(TorchDispatchMode):
    """Counts every storage that an operator returns until it is freed.

    Args:
        known: tensors that exist already and do not count.
    """

    def __init__(self, known):
        super().__init__()
        self.live = self.peak = 0
        self._known = {id(t.untyped_storage()): t.untyped_storage() for t in known}
        self._seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                storage = output.untyped_storage()
                key = id(storage)
                if key not in self._known and key not in self._seen:
                    self._seen[key] = storage.nbytes()
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self._free, key).atexit = False
        self.peak = max(self.peak, self.live)
        return outputs

    def _free(self, key):
        self.live -= self._seen.pop(key)
