"""Models that checkpoint parts of themselves with torch's functions, in every way of calling them.

With ``recompute=False`` each runs the same parts plain, which is the truth for the other.
"""

import functools

import torch
import torch.utils.checkpoint
import torch.utils.checkpoint as cp
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential
from torch.utils.checkpoint import checkpoint as remember_little

WIDTH = 4


class Part(nn.Module):
    def __init__(self, recompute):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.block = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.3)
        )
        self.last = nn.Linear(WIDTH, WIDTH)
        self.recompute = recompute
        self.count = 0


class Imported(Part):
    def forward(self, x):
        x = self.first(x)
        if self.recompute:
            return self.last(checkpoint(self.block, x, use_reentrant=True))
        return self.last(self.block(x))


class Renamed(Part):
    def forward(self, x):
        x = self.first(x)
        x = remember_little(self.block, x, use_reentrant=False) if self.recompute else self.block(x)
        return self.last(x)


class ByModule(Part):
    def forward(self, x):
        if self.recompute:
            x = torch.utils.checkpoint.checkpoint(
                self.first, x, use_reentrant=True, preserve_rng_state=False
            )
            return cp.checkpoint(self.block, x, use_reentrant=False, determinism_check="none")
        return self.block(self.first(x))


class ImportedLocally(Part):
    def forward(self, x):
        from torch.utils.checkpoint import checkpoint as local

        return local(self.block, x, use_reentrant=False) if self.recompute else self.block(x)


class WithCp(Part):
    """As the blocks of some vision libraries: an inner function, and a flag."""

    def forward(self, x):
        def _inner_forward(x):
            self.count += 1
            return x + self.block(self.first(x))

        if self.recompute and x.requires_grad:
            out = cp.checkpoint(_inner_forward, x, use_reentrant=True)
        else:
            out = _inner_forward(x)
        return self.last(out).tanh()


class Factory(Part):
    """As the decoders of some language models: a function that makes the function."""

    def forward(self, x):
        def create_custom_forward(module):
            def custom_forward(*inputs):
                return module(*inputs)

            return custom_forward

        for layer in (self.first, self.block):
            if self.recompute:
                x = checkpoint(create_custom_forward(layer), x, use_reentrant=True)
            else:
                x = create_custom_forward(layer)(x)
        return x


class Late(Part):
    def forward(self, x):
        for layer in (self.first, self.block, self.last):
            if self.recompute:
                x = checkpoint(lambda t: torch.tanh(layer(t)), x, use_reentrant=False)
            else:
                x = torch.tanh(layer(x))
        return x


class Partial(Part):
    def forward(self, x):
        run = functools.partial(checkpoint, use_reentrant=True)
        return run(self.block, x) if self.recompute else self.block(x)


class Attribute(Part):
    """The function is set on the module, by name only known when it runs."""

    def __init__(self, recompute):
        super().__init__(recompute)
        self._gradient_checkpointing_func = None
        if recompute:
            self._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=True)

    def forward(self, x):
        if self.recompute:
            return self._gradient_checkpointing_func(functools.partial(self.block), x)
        return self.block(x)


class Segments(Part):
    def forward(self, x):
        layers = nn.Sequential(self.first, self.block, self.last, nn.Tanh())
        if self.recompute:
            return checkpoint_sequential(layers, 2, x, use_reentrant=False)
        return layers(x)


class Applied(Part):
    def forward(self, x):
        x = self.first(x)
        return CheckpointFunction.apply(self.block, True, x) if self.recompute else self.block(x)


class Decorated(Part):
    def forward(self, x):
        def body(x):
            return self.block(x).sin()

        if self.recompute:
            return checkpoint(use_reentrant=False)(body)(self.first(x))
        return body(self.first(x))


class Selective(Part):
    def forward(self, x):
        if not self.recompute:
            return self.block(self.first(x))
        contexts = functools.partial(
            cp.create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
        )
        return checkpoint(self.block, self.first(x), use_reentrant=False, context_fn=contexts)


class NoGradInput(Part):
    """The region is given a tensor that needs no gradient: reentrant, its parameters get none."""

    def __init__(self, recompute):
        super().__init__(recompute)
        self.register_buffer("table", torch.randn(6, WIDTH))

    def forward(self, x):
        rows = self.table * x.detach()
        if self.recompute:
            return checkpoint(self.block, rows, use_reentrant=True)
        return self.block(rows)


class KeywordMoved(Part):
    def forward(self, x):
        phase = x.new_zeros(WIDTH)
        for layer in (self.first, self.last):
            if self.recompute:
                x = checkpoint(self.turn, layer, x, use_reentrant=False, phase=phase)
            else:
                x = self.turn(layer, x, phase=phase)
            phase += 0.5
        return x

    def turn(self, layer, x, phase):
        return torch.sin(layer(x) + phase)


MODELS = [
    *(Imported, Renamed, ByModule, ImportedLocally, WithCp, Factory, Late, Partial, Attribute),
    *(Segments, Applied, Decorated, Selective, NoGradInput, KeywordMoved),
]


class Clash(Part):
    """Overwrites, in the region, what the region has saved."""

    def inner(self, x):
        h = torch.sigmoid(self.first(x))
        h += x
        return self.last(h).tanh()

    def forward(self, x):
        if self.recompute:
            return checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)
