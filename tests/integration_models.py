"""Small models that fail or that overwrite on purpose, for the tests with other libraries."""

import torch
from torch import nn


class Fails(nn.Module):
    """Overwrites what backward needs, in a residual network for images of 3 channels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.branch = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        h = torch.sigmoid(self.stem(x))
        h += self.branch(h)
        return self.head(h.mean((2, 3)))


class Mended(Fails):
    """The same, edited by hand."""

    def forward(self, x):
        h = torch.sigmoid(self.stem(x))
        h = h + self.branch(h)
        return self.head(h.mean((2, 3)))


class Residual(nn.Module):
    """Trains as it is, and overwrites: flags, and a sum in place."""

    def __init__(self, channels=8, classes=5):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU(inplace=True)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        h = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(h))
        out += h
        return self.head(self.relu2(out).mean((2, 3)))


def build(kind, seed=0):
    """Build a model from a seed."""
    torch.manual_seed(seed)
    return kind()


def images(count=2, side=8, seed=1):
    """Images of 3 channels."""
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def assert_same_parameters(net, other):
    """Parameters and buffers are equal bit for bit."""
    state, expected = net.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state[name], value), name
