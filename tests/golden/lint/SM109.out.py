# Tensors that are overwritten after they were collected.
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x):
        kept, named = [], {}
        h = self.net(x)
        kept.append(h)
        h = h + 1
        h = self.net(h)
        kept.append(h)
        h = h + 1
        named["h"] = h
        h = h.mul(2)
        for _ in range(2):
            h = self.net(h)
            kept.append(h)
        g = self.net(h)
        kept.append(g)
        g = self.act(g)
        return sum(kept) + named["h"] + g


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
