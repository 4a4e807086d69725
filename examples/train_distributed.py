"""Train a converted torchvision model in several processes, its stages checkpointed exactly.

Two processes on this machine, without an accelerator::

    torchrun --nproc-per-node 2 examples/train_distributed.py --steps 3

Each process has a part of the data. ``DistributedDataParallel`` averages the gradients, whatever
its options: a region's parameters are marked ready once, since no backward runs inside of
another one.
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import ResNet, get_model

import safemodules as sm


class Staged(nn.Module):
    """A residual network whose four stages are computed again in backward."""

    def __init__(self, net: ResNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, 3, H, W)."""
        net = self.net
        x = net.maxpool(net.relu(net.bn1(net.conv1(x))))
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            x = sm.checkpoint(stage, x)
        logits: Tensor = net.fc(net.avgpool(x).flatten(1))
        return logits


def main() -> None:
    """Run the command line of one process."""
    parser = argparse.ArgumentParser(description="Train a checkpointed ResNet with torchrun.")
    parser.add_argument("--model", default="resnet18", help="a ResNet of torchvision")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--size", type=int, default=64, help="pixels along a side")
    parser.add_argument("--batch", type=int, default=4, help="images per process")
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(minutes=5))
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")

    torch.manual_seed(0)  # the same weights everywhere
    net = get_model(options.model, num_classes=10)
    shape = (options.batch, 3, options.size, options.size)
    # before it is wrapped and moved: every process proves the same conversion
    sm.convert_model(net, example_inputs=torch.randn(shape))
    model = DistributedDataParallel(Staged(net).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    torch.manual_seed(rank + 1)  # other data everywhere
    for step in range(options.steps):
        images = torch.randn(shape, device=device)
        labels = torch.randint(10, (options.batch,), device=device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {float(mean) / dist.get_world_size():.4f}", flush=True)
    tracked = net.bn1.num_batches_tracked, net.layer1[0].bn1.num_batches_tracked
    if rank == 0:
        print(f"batches seen by batch norm: {int(tracked[0])} outside, {int(tracked[1])} inside")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
