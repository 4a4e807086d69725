"""The memory that a forward keeps for its backward, each piece of it counted once."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = ["SavedBytes"]


class SavedBytes:
    """Tells memory that was not met before.

    Args:
        owned: tensors whose memory does not count: parameters and buffers.

    Example:
        >>> import torch
        >>> from safemodules.state.saved import SavedBytes
        >>> x, sizes = torch.ones(4, requires_grad=True), []
        >>> with SavedBytes([x]).counted(sizes.append):
        ...     y = x.sin().exp().exp()
        >>> sizes
        [16, 16]
    """

    def __init__(self, owned: Iterable[Tensor]) -> None:
        self._met: set[int] = set()
        self._alive: list[Tensor] = []  # so that no memory is used twice
        self.meet(owned)

    def meet(self, tensors: Iterable[Tensor]) -> None:
        """Do not count the memory of some tensors from now on."""
        strided = (tensor for tensor in tensors if tensor.layout is torch.strided)
        self._met.update(tensor.untyped_storage().data_ptr() for tensor in strided)

    def counted(self, note: Callable[[int], object]) -> "torch.autograd.graph.saved_tensors_hooks":
        """Watch what is saved.

        Args:
            note: called with the bytes of each piece of memory that was not met before.
        """

        def pack(tensor: Tensor) -> Tensor:
            # Detached: an op's own result handed back as it is would keep its graph alive forever.
            kept = tensor.detach()
            if kept.layout is torch.strided:
                storage = kept.untyped_storage()
                if storage.data_ptr() not in self._met:
                    self._met.add(storage.data_ptr())
                    self._alive.append(kept)
                    note(storage.nbytes())
            return kept

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
