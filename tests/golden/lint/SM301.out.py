# Loops that keep every iteration.
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        outputs = []
        for row in x:
            outputs.append(self.net(row))
        more = [self.net(row) for row in x]
        total = 0.0
        for row in x:
            y = self.net(row)
            total = total + 1
            outputs.insert(0, y)
        for layer in self.layers:
            x = layer(x)
            outputs.append(x.sum(0))
        lengths = []
        for row in x:
            lengths.append(self.net(row).detach())
        return torch.stack(outputs + more) + total + len(lengths)


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
