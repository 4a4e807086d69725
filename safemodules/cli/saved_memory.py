"""How much a forward keeps for backward."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class SavedMemory:
    """Saved-for-backward tensors of one forward.

    Attributes:
        nbytes: Bytes of all different storages, those of parameters and buffers left out.
        storages: How many there are.
    """

    nbytes: int
    storages: int

    def __str__(self) -> str:
        return f"{self.nbytes / 2**20:.2f} MiB in {self.storages} tensors"


def measure_saved(model: nn.Module, *inputs: Tensor) -> SavedMemory:
    """Run one forward of a copy and add up what autograd saves in it.

    The copy leaves the model's buffers as they are. Only the forward is run: what is saved
    can be measured for a model whose backward raises.
    """
    model = copy.deepcopy(model)
    owned = {t.untyped_storage().data_ptr() for t in chain(model.parameters(), model.buffers())}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        # Detached: an op's own result handed back as it is would keep its graph alive forever.
        kept = tensor.detach()
        saved.setdefault(kept.untyped_storage().data_ptr(), kept)
        return kept

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        model(*inputs)
    sizes = [
        tensor.untyped_storage().nbytes()
        for pointer, tensor in saved.items()
        if pointer not in owned
    ]
    return SavedMemory(nbytes=sum(sizes), storages=len(sizes))
