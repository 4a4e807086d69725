# Item assignments.
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x):
        settings = {}
        settings["rows"] = len(x)
        parts = [None, None]
        parts[0] = x
        canvas = torch.zeros_like(x)
        canvas[:, 0] = 1.0
        h = self.net(x).exp()
        h[:, 1:] = canvas[:, 1:]
        a = self.net(x)
        a[0], b = a[1], 2.0
        return h.sum() + a.sum() * b


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
