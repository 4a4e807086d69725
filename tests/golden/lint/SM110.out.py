# requires_grad switched in forward.
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.net.bias.requires_grad = False

    def forward(self, x):
        x.requires_grad_(True)
        self.net.weight.requires_grad = True
        own = x.detach()
        own.requires_grad_(True)
        other = torch.zeros(3, 4).requires_grad_()
        return self.net(x) + own + other


def inputs():
    return torch.rand(3, 4, dtype=torch.float64)
