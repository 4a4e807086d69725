"""The loop of ``fill_stack.py`` with each iteration under a checkpoint, written by hand.

``torch.utils.checkpoint`` moves the statistics of batch norm twice; ``safemodules.checkpoint``
moves them once, so that the model trains to the parameters and buffers of the plain loop.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import safemodules as sm

STEPS, ITEMS = 4, 6


def train(way: str) -> list[Tensor]:
    """Train an extractor and a head; returns their parameters and buffers."""
    torch.manual_seed(0)
    extractor = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1)
    )
    head = nn.Linear(8, 10)
    loop = sm.AccumulatingLoop(extractor, reduction="stack")
    tensors = [*extractor.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(tensors, lr=0.1)
    for _ in range(STEPS):
        images, labels = torch.randn(ITEMS, 4, 3, 12, 12), torch.randint(10, (4,))
        if way == "loop":
            stack = loop(images)
        else:
            stack = torch.zeros(ITEMS, 4, 8, 12, 12)
            for i, image in enumerate(images):
                if way == "plain":
                    stack[i] = extractor(image)
                elif way == "safemodules.checkpoint":
                    stack[i] = sm.checkpoint(extractor, image)
                else:
                    stack[i] = torch_checkpoint(extractor, image, use_reentrant=False)
        optimizer.zero_grad()
        F.cross_entropy(head(stack.amax((-2, -1)).mean(0)), labels).backward()
        optimizer.step()
    return [*extractor.state_dict().values(), *head.state_dict().values()]


def main() -> int:
    """Train all and compare."""
    plain = train("plain")
    status = 0
    for way in ("loop", "safemodules.checkpoint", "torch.utils.checkpoint"):
        pairs = zip(plain, train(way), strict=True)
        different = sum(not torch.equal(a, b) for a, b in pairs)
        print(f"{way:24} {different} of {len(plain)} tensors differ from the plain loop's")
        if different and way != "torch.utils.checkpoint":
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
