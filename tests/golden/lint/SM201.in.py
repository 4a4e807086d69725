# Reentrant checkpoints.
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        x = checkpoint(self.net, x, use_reentrant=True)
        x = checkpoint(self.net, x, use_reentrant=False)
        x = checkpoint_sequential(self.net, 2, x, use_reentrant=True)
        x = torch.utils.checkpoint.checkpoint(
            self.net,
            x,
            use_reentrant=True,
        )
        if x is None:
            return CheckpointFunction.apply(self.net, True, x)
        return x


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
