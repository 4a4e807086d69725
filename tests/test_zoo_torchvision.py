"""Every torchvision model that is small enough for a test suite, converted and compared.

The truth is the benchmark's own comparison, which shares no code with the package's. All
models, those too large for here included, stand in ``benchmarks/zoo.py`` and its table.
"""

import pytest
import torch
from torch import nn

from benchmarks.cases import Call, Case, load_suite
from benchmarks.compare import compare
from benchmarks.converters import make_converter

SECONDS = 1.0  # of one pass of original and converted model, so that all take two minutes
CASES = [case for case in load_suite("torchvision") if (case.seconds or SECONDS) < SECONDS]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torchvision's and torch's own, about old builders
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_torchvision_model_computes_the_same_bit_for_bit(case):
    outcome = compare(case, make_converter("safemodules"))
    assert outcome.status == "equal", outcome


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "mobilenet_v2", "vgg11_bn"])
def test_without_example_inputs_it_computes_the_same_too(name):
    [case] = [c for c in load_suite("torchvision") if c.name == f"torchvision/{name}"]
    outcome = compare(case, make_converter("safemodules"), with_inputs=False)
    assert outcome.status == "equal", outcome
    assert outcome.sites.swapped > 0


class SkipSeesRelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        h = self.lin(x)
        return self.lin(self.relu(h)) + h


def test_the_comparison_tells_a_blind_swap_apart_and_the_product_keeps_the_site():
    inputs = lambda mode, generator: Call((torch.randn(2, 4, generator=generator),))  # noqa: E731
    case = Case("own/skip", SkipSeesRelu, inputs)
    assert compare(case, make_converter("flags")).status == "mismatch"
    assert compare(case, make_converter("safemodules")).status == "equal"
