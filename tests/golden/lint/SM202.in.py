# Checkpoints that leave use_reentrant open.
import torch
from torch import nn
from torch.utils import checkpoint as cp
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x, options=None):
        x = checkpoint(self.net, x)
        x = cp.checkpoint(
            self.net,
            (x),
        )
        x = cp.checkpoint_sequential([self.net], 1, x)
        return checkpoint(self.net, x, **(options or {"use_reentrant": False}))


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
