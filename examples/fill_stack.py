"""A feature extractor that fills a slice of a stack in each iteration of a loop.

Every iteration's activations stay alive until backward. ``AccumulatingLoop`` recomputes them one
iteration at a time, moves the statistics of batch norm once, and draws the same random numbers.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import safemodules as sm

STEPS, ITEMS = 4, 6


class Model(nn.Module):
    """Features of each image, and a head that needs all of them."""

    def __init__(self, safe: bool) -> None:
        super().__init__()
        self.extractor = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Conv2d(8, 8, 3, padding=1),
        )
        self.head = nn.Linear(ITEMS * 8, 10)
        self.loop = sm.AccumulatingLoop(self.extractor, reduction="stack") if safe else None

    def forward(self, images: Tensor) -> Tensor:
        """Compute scores: (N items, batch, 3, H, W) to (batch, 10)."""
        if self.loop is not None:
            stack = self.loop(images)
        else:
            stack = torch.zeros(ITEMS, images.size(1), 8, *images.shape[-2:])
            for i, image in enumerate(images):
                stack[i] = self.extractor(image)
        pooled = stack.amax((-2, -1))  # (items, batch, 8)
        return self.head(pooled.transpose(0, 1).flatten(1))


def train(safe: bool) -> list[Tensor]:
    """Train the model; returns its parameters and buffers."""
    torch.manual_seed(0)
    model = Model(safe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        images, labels = torch.randn(ITEMS, 4, 3, 12, 12), torch.randint(10, (4,))
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return [*model.extractor.state_dict().values(), *model.head.state_dict().values()]


def main() -> int:
    """Train both and compare."""
    plain, safe = train(False), train(True)
    equal = all(torch.equal(a, b) for a, b in zip(plain, safe, strict=True))
    print(f"{len(plain)} tensors after {STEPS} steps: {'equal bit for bit' if equal else 'DIFFER'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
