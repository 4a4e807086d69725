"""How much a forward keeps for backward."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import chain

from torch import Tensor, nn

from safemodules.state.saved import SavedBytes


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
    sizes: list[int] = []
    with SavedBytes(chain(model.parameters(), model.buffers())).counted(sizes.append):
        model(*inputs)
    return SavedMemory(nbytes=sum(sizes), storages=len(sizes))
