"""Two networks that people train whose published weights rely on an in-place activation.

Written after how they are described: an image-translation U-Net of nested blocks, and the
residual unit of a depth network.
"""

import copy

import pytest
import torch
from torch import nn

import safemodules as sm
import safemodules.testing


class SkipBlock(nn.Module):
    """Down, an inner block, up; the input is concatenated with the result.

    The inner Sequential begins with an in-place LeakyReLU on that very input, so the skip
    carries the activated tensor.
    """

    def __init__(self, outer, inner, within=None, outermost=False):
        super().__init__()
        down = nn.Conv2d(outer, inner, 4, 2, 1, bias=False)
        up = nn.ConvTranspose2d(inner * (1 if within is None else 2), outer, 4, 2, 1)
        if outermost:
            layers = [down, within, nn.ReLU(True), up, nn.Tanh()]
        elif within is None:
            layers = [nn.LeakyReLU(0.2, True), down, nn.ReLU(True), up, nn.BatchNorm2d(outer)]
        else:
            layers = [nn.LeakyReLU(0.2, True), down, nn.BatchNorm2d(inner), within,
                      nn.ReLU(True), up, nn.BatchNorm2d(outer), nn.Dropout(0.5)]  # fmt: skip
        self.model = nn.Sequential(*layers)
        self.outermost = outermost

    def forward(self, x):
        return self.model(x) if self.outermost else torch.cat([x, self.model(x)], 1)


def image_translation():
    return SkipBlock(1, 1, SkipBlock(1, 1, SkipBlock(1, 1)), outermost=True)


class ResidualUnit(nn.Module):
    """The skip reads the input after the in-place ReLU at the top has overwritten it."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(x)
        out = self.conv1(out)
        out = self.relu(out)
        out = self.conv2(out)
        return out + x


class Fusion(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = ResidualUnit(width), ResidualUnit(width)

    def forward(self, x, lateral):
        return self.second(x + self.first(lateral))


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.lateral = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(1, 2, 1)
        self.fusion, self.head = Fusion(2), nn.Conv2d(2, 1, 1)

    def forward(self, x):
        return self.head(self.fusion(self.stem(x), self.lateral(x)))


TRAPS = {
    "image translation": (image_translation, (2, 1, 8, 8)),
    "depth": (Depth, (2, 1, 6, 6)),
}


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.parametrize("with_inputs", [True, False])
def test_the_skip_goes_on_reading_the_activated_tensor(name, with_inputs):
    build, shape = TRAPS[name]
    torch.manual_seed(0)
    model, x = build(), torch.randn(shape)
    original = copy.deepcopy(model)
    sm.convert_model(model, x if with_inputs else None)
    assert sm.verify(original, model, x).equivalent
    kept = [s for s in sm.conversion_plan(model).sites if s.decision == "keep"]
    assert kept
    assert all("load-bearing" in site.reason for site in kept)
    swapped = [s for s in sm.conversion_plan(model).sites if s.decision == "swap"]
    assert bool(swapped) == (name == "image translation")  # the unit has one ReLU for both uses


def nested(model):
    """The part of a network whose output shows what the skip has read."""
    block = model.model[1] if isinstance(model, SkipBlock) else model
    return lambda x: block(x.clone())


@pytest.mark.parametrize("name", TRAPS)
def test_with_intended_semantics_the_skip_carries_the_raw_tensor(name):
    build, shape = TRAPS[name]
    torch.manual_seed(0)
    model, x = build().eval(), torch.randn(shape)
    naive = copy.deepcopy(model)
    for module in naive.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    # the decoder's ReLU hides it at the end of the first network: relu(leaky_relu(x)) is relu(x)
    seen = nested(model)(x)
    sm.convert_model(model, x, semantics="intended")
    assert torch.equal(model(x), naive(x))
    assert torch.equal(nested(model)(x), nested(naive)(x))
    assert not torch.equal(nested(model)(x), seen)


@pytest.mark.parametrize("name", TRAPS)
def test_gradients_are_those_of_the_original_forward(name):
    build, shape = TRAPS[name]
    torch.manual_seed(0)
    model = sm.convert_model(build().double().eval(), torch.randn(shape, dtype=torch.float64))
    x = torch.randn(1, *shape[1:], dtype=torch.float64, requires_grad=True)
    assert sm.testing.gradcheck_module(model, x)
