"""Ways in which a forward reaches its lines; each is converted, reverted and pickled."""

import functools
import pickle

import pytest
import torch
from torch import nn

import safemodules as sm


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x).sigmoid()
        y += x
        return y


class Middle(Base):
    def forward(self, x):
        y = super().forward(x).exp()
        y *= 5
        return y


class SkipsOne(Middle):
    """Calls the method behind the next one."""

    def forward(self, x):
        y = super(Middle, self).forward(x).exp()
        y -= 1
        return y


class NamesItself(Base):
    def forward(self, x):
        y = super(NamesItself, self).forward(x).exp()  # noqa: UP008
        y -= 1
        return y


class OwnCall(Base):
    def __call__(self, x):
        y = super().__call__(x).exp()
        y *= 3
        return y


def make_mutual():
    def one(x, n):
        y = x.exp()
        y *= 2
        return other(y.sigmoid(), n - 1) if n else y

    def other(x, n):
        y = x.exp()
        y *= 3
        return one(y.sigmoid(), n - 1) if n else y

    return one


mutual = make_mutual()


class Mutual(nn.Module):
    """Calls two functions that hold each other in their closures."""

    def forward(self, x):
        return mutual(x, 3)


class Partial(nn.Module):
    def scaled(self, x, by):
        y = x.exp()
        y *= by
        return y

    doubled = functools.partialmethod(scaled, by=2)

    def forward(self, x):
        return self.doubled(x).sigmoid()


class Cached(nn.Module):
    @functools.cached_property
    def offset(self):
        y = self.scale.exp()
        y += 1
        return y

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.offset


class NoGrad(Base):
    @torch.no_grad()
    def target(self, x):
        y = x.exp()
        y += 1
        return y

    def forward(self, x):
        y = super().forward(x)
        y -= self.target(x)
        return y


def example():
    return torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.mark.parametrize(
    ("cls", "sites"),
    [
        (SkipsOne, {"y += x", "y -= 1"}),
        (NamesItself, {"y += x", "y -= 1"}),
        (OwnCall, {"y += x", "y *= 3"}),
        (Mutual, {"y *= 2", "y *= 3"}),
        (Partial, {"y *= by"}),
        (Cached, {"y += 1"}),
        (NoGrad, {"y += x", "y += 1", "y -= self.target(x)"}),
    ],
)
def test_all_that_forward_reaches_is_swapped(cls, sites):
    torch.manual_seed(0)
    model = cls()
    plan = sm.plan_conversion(model, example())
    assert {site.site.source for site in plan.sites if site.decision == "swap"} == sites
    assert not plan.skipped
    with torch.no_grad():
        expected = model(example())
    vars(model).pop("offset", None)  # what cached_property keeps
    plan.apply()
    x = example().requires_grad_()
    out = model(x)
    assert torch.equal(out, expected)
    out.sum().backward()
    vars(model).pop("offset", None)
    loaded = pickle.loads(pickle.dumps(model))
    loaded(x).sum().backward()
    assert torch.equal(loaded(x), expected)
    assert type(sm.revert_model(model)) is cls
    assert torch.equal(model(example()), expected)


@pytest.mark.parametrize("cls", [NamesItself, Mutual, NoGrad])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_compiles_without_a_graph_break(cls):
    torch.compiler.reset()
    torch.manual_seed(0)
    model = sm.convert_model(cls(), example())
    expected = model(example())
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(example())
    assert torch.equal(found, expected)


def test_super_past_a_class_is_the_same_without_example_inputs():
    torch.manual_seed(0)
    model = SkipsOne()
    with torch.no_grad():
        expected = model(example())
        assert torch.equal(sm.convert_model(model)(example()), expected)


@functools.lru_cache(maxsize=4)
def cached(x):
    y = x.exp()
    y *= 2
    return y


@functools.lru_cache(maxsize=4)
def harmless(x):
    return x.exp()


class CallsCached(nn.Module):
    def forward(self, x):
        return cached(x) + harmless(x)


def test_a_function_whose_results_are_cached_is_left_and_named():
    (skipped,) = sm.plan_conversion(CallsCached()).skipped
    assert skipped.name == f"{__name__}.cached"
    assert "cached" in skipped.reason


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_scripted_function_is_left_and_named_if_it_overwrites():
    @torch.jit.script
    def overwrites(x):
        y = x.exp()
        return y.relu_()

    @torch.jit.script
    def keeps(x):
        return x.exp()

    class Calls(nn.Module):
        def forward(self, x):
            return overwrites(x) + keeps(x)

    (skipped,) = sm.plan_conversion(Calls()).skipped
    assert "overwrites" in skipped.name
    assert skipped.reason == "compiled by TorchScript"
