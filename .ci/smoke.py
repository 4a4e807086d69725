"""Use the unpacked wheel named on the command line: import, convert, train one step."""

import sys
from pathlib import Path

import torch
from torch import nn

import safemodules as sm


class Net(nn.Module):
    """Overwrites the result that sigmoid keeps for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``sigmoid(linear(x)) + x``."""
        h = torch.sigmoid(self.linear(x))
        h += x
        return h


def main() -> None:
    """Fail loudly unless the wheel, and not the source tree, mends the net above."""
    wheel = Path(sys.argv[1]).resolve()
    found = Path(sm.__file__).resolve()
    assert wheel in found.parents, f"imported {found}, expected it under {wheel}"
    assert (found.parent / "py.typed").is_file(), "py.typed is missing from the wheel"
    top = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {"safemodules"}, f"the wheel holds more than the package: {sorted(top)}"

    x = torch.randn(3, 4)
    net = Net()
    fault = ""
    try:
        net(x).sum().backward()
    except RuntimeError as error:
        fault = str(error)
    assert "modified by an inplace operation" in fault, f"the fault was not raised: {fault!r}"
    assert sm.convert_model(net, example_inputs=x) is net
    net(x).sum().backward()
    assert net.linear.weight.grad is not None
    print(f"smoke test passed: {found}")


if __name__ == "__main__":
    main()
