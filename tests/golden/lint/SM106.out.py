# Modules with a flag.
from functools import partial

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, act=partial(nn.ReLU)):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 4),
            nn.ReLU(),
            nn.Linear(4, 4),
            nn.LeakyReLU(
                0.1,
                inplace=False,  # kept on its own line
            ),
            nn.Linear(4, 4),
            nn.ELU(1.0),
        )
        self.lin = nn.Linear(4, 4)
        self.fresh = nn.SiLU()
        self.shared = nn.Hardswish()
        self.tanh = nn.Tanh()
        self.clash = nn.ReLU()
        self.off = nn.ReLU(inplace=False)

    def forward(self, x):
        h = self.net(x)
        h = self.fresh(self.lin(h))
        g = self.lin(h)
        k = self.shared(g)
        t = self.tanh(self.lin(k))
        t = self.clash(t)
        return self.off(k + g + t)


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
