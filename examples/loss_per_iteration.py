"""A loop that adds a loss in each iteration.

Each iteration's gradient is known as soon as it has run, so ``AccumulatingLoop`` takes it then
and frees the iteration: one is alive at a time, and nothing is computed twice. Gradients are
summed in the order of the iterations, where autograd sums in the reverse order; that is the
whole difference.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import safemodules as sm

STEPS, ITEMS = 4, 6


class Model(nn.Module):
    """An extractor and a head under a loss for each image."""

    def __init__(self, safe: bool) -> None:
        super().__init__()
        self.extractor = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(8, 10)
        self.loop = sm.AccumulatingLoop(self.loss) if safe else None

    def loss(self, item: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the loss of one batch of images."""
        image, label = item
        return F.cross_entropy(self.head(self.extractor(image).amax((-2, -1))), label)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute the mean of the losses."""
        items = list(zip(images, labels, strict=True))
        if self.loop is not None:
            total: Tensor = self.loop(items)
            return total
        return torch.stack([self.loss(item) for item in items]).sum() / len(items)


def train(safe: bool) -> Tensor:
    """Train the model; returns its parameters and buffers in one vector."""
    torch.manual_seed(0)
    model = Model(safe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        images, labels = torch.randn(ITEMS, 4, 3, 12, 12), torch.randint(10, (ITEMS, 4))
        optimizer.zero_grad()
        model(images, labels).backward()
        optimizer.step()
    return torch.cat([value.double().flatten() for value in model.state_dict().values()])


def main() -> int:
    """Train both and compare."""
    plain, safe = train(False), train(True)
    difference = float((plain - safe).norm() / plain.norm())
    print(f"{len(plain)} numbers after {STEPS} steps differ by {difference:.1e} of their size")
    return 0 if difference <= 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
