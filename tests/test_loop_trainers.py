"""Gradients of a loop accumulate under accelerate and Lightning as those of the plain loop."""

import copy
import warnings

import pytest
import torch
from torch import nn

import safemodules as sm

STEPS, EVERY = 4, 2


class Net(nn.Module):
    """The mean of the losses of its chunks, in a loop of ours or in a plain one."""

    def __init__(self, plain):
        super().__init__()
        self.linear, self.plain = nn.Linear(4, 1).double(), plain
        self.loop = sm.AccumulatingLoop(self.loss)

    def loss(self, chunk):
        return self.linear(chunk).tanh().square().mean()

    def forward(self, x):
        if self.plain:
            return torch.stack([self.loss(chunk) for chunk in x]).mean()
        return self.loop(x)


def pair():
    torch.manual_seed(0)
    net = Net(plain=True)
    other = copy.deepcopy(net)
    other.plain = False
    other.loop.body = other.loss
    return net, other


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, 3, 5, 4, dtype=torch.double, generator=generator)


def with_accelerate(net, by_steps):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=EVERY)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    net, optimizer = accelerator.prepare(net, optimizer)
    for x in data():
        with accelerator.accumulate(net):
            if by_steps:
                own = accelerator.unwrap_model(net)
                for _ in own.loop.steps(x, backward=accelerator.backward):
                    pass
            else:
                accelerator.backward(net(x))
            optimizer.step()
            optimizer.zero_grad()


def with_lightning(net, by_steps):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net
            self.automatic_optimization = not by_steps

        def training_step(self, batch, index):
            if not by_steps:
                return self.net(batch)
            for _ in self.net.loop.steps(batch, backward=lambda v: self.manual_backward(v / EVERY)):
                pass
            if (index + 1) % EVERY == 0:
                self.optimizers().step()
                self.optimizers().zero_grad()
            return None

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=1 if by_steps else EVERY,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loaders without workers
        trainer.fit(Module(), torch.utils.data.DataLoader(data(), batch_size=None))


@pytest.mark.parametrize("by_steps", [False, True])
@pytest.mark.parametrize(
    ("library", "train"), [("accelerate", with_accelerate), ("lightning", with_lightning)]
)
@pytest.mark.filterwarnings("ignore")
def test_gradients_accumulate_as_those_of_the_plain_loop(library, train, by_steps):
    pytest.importorskip(library, reason=f"{library} is not installed (extra trainers)")
    plain, net = pair()
    train(plain, False)
    train(net, by_steps)
    before = pair()[0]
    for p, q, start in zip(plain.parameters(), net.parameters(), before.parameters(), strict=True):
        assert not torch.equal(p, start)
        torch.testing.assert_close(q, p, rtol=1e-12, atol=0)  # summed in another order
