"""Models whose forwards loop, in every form of a loop that Python has."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 4


def block():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.count = 0


class Calls(Net):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Indexed(Net):
    def forward(self, x):
        for i in range(len(self.layers)):
            x = self.layers[i](x)
        return x


class Repeated(Net):
    def forward(self, x):
        i = 0
        while i < 3:
            x = x + self.layers[0](self.norm(x))
            i += 1
        return x


class Consecutive(Net):
    def forward(self, x):
        for layer in self.layers:
            skip = x
            h = self.norm(x)
            h = layer(h)
            h = F.gelu(h) * 2
            x = skip + h
        return x


class Appending(Net):
    def forward(self, x):
        outs = []
        for k, layer in enumerate(self.layers):
            x = layer(x)
            self.count += 1
            outs.append(self.norm(x) * k)
        return torch.stack(outs).sum(0)


class Comprehended(Net):
    def forward(self, x):
        outs = [layer(x) for layer in self.layers]
        named = {k: self.norm(v) for k, v in enumerate(outs)}
        return sum(named.values()) + sum(self.norm(self.layers[0](v)) for v in outs)


class Mapped(Net):
    def forward(self, x):
        return sum(map(self.layers[0], x.split(2)))


class Branching(Net):
    def forward(self, x):
        for i, layer in enumerate(self.layers):
            if i % 2:
                x = layer(x)
            else:
                with torch.autocast("cpu", enabled=False):
                    x = layer(x.float())
        return x


class Nested(Net):
    def forward(self, x):
        for _ in range(2):
            for layer in self.layers:
                x = layer(x)
            x = self.norm(x)
        return x


class Outer(nn.Module):
    """Runs modules with loops of their own in a loop."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(Calls() for _ in range(2))

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], WIDTH)
        outs = []
        for t in range(4):
            h, c = self.cell(x * (t + 1), (h, c))
            outs.append(h)
        return torch.stack(outs)


class Stepping(Net):
    def step(self, x, k):
        self.count += 1
        return self.layers[k](x).sin()

    def forward(self, x):
        for k in range(3):
            x = self.step(x, k)
        return x


class Formatted(Net):
    """Line breaks, comments, keywords, brackets and trailing commas."""

    def forward(self, x):
        for layer in self.layers:
            h = self.norm(
                x,  # a comment, with (brackets
            )
            # between
            h = layer(input=h) + 1
            y = h * 2
            x = self.norm(y) + x
        return x


class Functions(Net):
    def forward(self, x):
        scale = lambda v: v * 2  # noqa: E731
        for f in (scale, torch.sin, *self.layers, F.relu):
            x = f(x)
        return x


class Private(Net):
    def __init__(self):
        super().__init__()
        self.__inner = block()

    def forward(self, x):
        for _ in range(2):
            y = self.__inner(x)
            x = self.norm(y) + x
        return x


class Closed(Net):
    def forward(self, x):
        def run(x):
            for layer in self.layers:
                x = layer(x)
                x = self.norm(x).sin()
            return x

        later = lambda v: run(v) * 2  # noqa: E731
        return later(x)


class InPlaceFirst(Net):
    """The first operation of each body overwrites what it is given, and that is read later."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(WIDTH, WIDTH))
            for _ in range(3)
        )

    def forward(self, x):
        x = x * 1
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)[:, 1 : WIDTH + 1]
        return x


class InPlaceInside(Net):
    def forward(self, x):
        for layer in self.layers:
            h = layer(x)
            h += x
            h.mul_(2)
            x = self.norm(h)
        return x


class Updated(Net):
    """What a region binds is only updated in place afterwards, which reads it too."""

    def forward(self, x):
        for layer in self.layers:
            h = self.norm(x)
            x = layer(h) + x
            seen = torch.stack([x, h]).mean(0)
            seen -= 2
        return x


class MethodsOfResults(Net):
    """In-place methods of what a module returns, in brackets and in a list."""

    def forward(self, x):
        for layer in self.layers:
            (out, x) = [(layer(x * 2)).lerp_((x * 3), 0.3), layer(x).mul_(2).add_(1)]
            x = x + out
        return x


class OnACopy(Net):
    """A module in a loop saves its result for backward, which is overwritten under two names."""

    def __init__(self):
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        h = x * 2
        held = {"h": h}
        for layer in self.layers:
            h = self.act(h)
            self.count += 1
            x = layer(x)
        h.add_(1)
        return x + held["h"]


MODELS = [
    *(Calls, Indexed, Repeated, Consecutive, Appending, Comprehended, Mapped, Branching, Nested),
    *(Outer, Recurrent, Stepping, Formatted, Functions, Private, Closed, InPlaceFirst),
    *(InPlaceInside, Updated, MethodsOfResults),
]
