"""A model that holds an ``AccumulatingLoop`` is diagnosed and converted like any other."""

import copy

import pytest
import torch
from torch import nn

import safemodules as sm


class Clashing(nn.Module):
    """Overwrites, in the body of a loop, what backward needs."""

    def __init__(self, reduction):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.loop = sm.AccumulatingLoop(self.body, reduction=reduction)

    def body(self, item):
        h = torch.sigmoid(self.linear(item))
        h += item
        out = h.tanh()
        return out.mean() if self.loop.reduction == "mean" else out

    def forward(self, x):
        return self.loop(x)


@pytest.mark.parametrize("reduction", ["mean", "stack"])
def test_a_clash_in_the_body_is_found_and_mended(reduction):
    torch.manual_seed(0)
    net, x = Clashing(reduction), torch.randn(3, 2, 4)
    with pytest.raises(RuntimeError, match=r"overwritten|modified by an inplace"):
        net(x).sum().backward()
    net.zero_grad()
    (clash,) = {
        (clash.saved_at.source, clash.mutated_at.source) for clash in sm.diagnose(net, x).clashes
    }
    assert clash == ("h = torch.sigmoid(self.linear(item))", "h += item")
    plan = sm.plan_conversion(net, x)
    assert [site.decision for site in plan.sites] == ["swap"]
    plan.apply()
    net(x).sum().backward()
    found = copy.deepcopy([p.grad for p in net.parameters()])
    net.zero_grad()
    outs = [torch.tanh(torch.sigmoid(net.linear(item)) + item) for item in x]
    out = torch.stack([o.mean() for o in outs]).mean() if reduction == "mean" else torch.stack(outs)
    out.sum().backward()
    for p, grad in zip(net.parameters(), found, strict=True):
        assert torch.allclose(p.grad, grad, rtol=1e-5, atol=1e-7)  # summed in another order
