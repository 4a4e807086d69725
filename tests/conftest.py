"""Fixtures of all tests."""

import pytest
import torch

# small models gain nothing from threads, and lose much where test processes share the cores
torch.set_num_threads(1)


def _devices():
    yield pytest.param("cpu")
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        yield pytest.param(kind, marks=pytest.mark.gpu)
    else:
        skip = pytest.mark.skip(reason="no accelerator is present")
        yield pytest.param("accelerator", marks=[pytest.mark.gpu, skip])


@pytest.fixture(params=_devices())
def device(request):
    """Give the CPU and every kind of accelerator that is present."""
    return torch.device(request.param)


# golden files are text, and no test modules
collect_ignore_glob = ["golden/*"]
