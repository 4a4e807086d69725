# Checkpointed functions that close over a loop variable.
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x):
        factor = 2.0
        for k in range(1, 3):
            x = checkpoint(lambda t, k=k: self.net(t) * k, x, use_reentrant=False)
            x = checkpoint(lambda t, k=k: self.net(t) * k, x, use_reentrant=False)
            x = checkpoint(lambda t: self.net(t) * factor, x, use_reentrant=False)
        for k in range(1, 3):
            def run(t):
                return self.net(t) * k

            x = checkpoint(run, x, use_reentrant=False)
        return x


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
