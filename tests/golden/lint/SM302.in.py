# Losses summed with their graphs.
import torch
from torch import nn


def train(net, batches, optimizer):
    total, seen, losses = 0.0, 0.0, []
    for x in batches:
        loss = net(x).mean()
        loss.backward()
        total += loss
        seen += loss.item()
        losses.append(loss)
        losses.append(loss.detach())
        optimizer.step()
    return total, seen, losses


def together(net, batches):
    total = 0.0
    for x in batches:
        total += net(x).mean()
    total.backward()


model = nn.Linear(4, 1)
epoch = 0.0
for batch in torch.rand(2, 3, 4):
    loss = model(batch).sum()
    loss.backward()
    epoch = epoch + loss
