# Functions with a flag.
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, inplace=True):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.inplace = inplace

    def forward(self, x):
        h = F.relu(self.net(x), inplace=True)
        g = F.leaky_relu(self.net(h), 0.2, True)
        F.silu(g, inplace=True)
        k = F.hardtanh(
            self.net(g),
            min_val=-0.5,
            inplace=True,
        )
        return F.relu(k, inplace=self.inplace)


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
