# Augmented assignments.
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.calls = 0
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        self.total += 1
        rows, width = x.shape
        width += 1
        h = self.first(x)
        h *= 0.5  # nobody else holds it: the same out of place
        g = torch.sigmoid(self.second(x))
        g += h  # sigmoid has saved it
        g -= x - h
        g *= (
            x + 1  # a comment
        )
        g **= -self.scale()
        done = ()
        done += (g,)
        zeros = torch.zeros_like(g)
        zeros += 1
        return g + zeros + width + rows

    def scale(self):
        return -1.0


def inputs():
    return torch.rand(3, 4, dtype=torch.float64) + 0.5
