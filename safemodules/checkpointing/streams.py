"""Streams of random numbers: those of torch's devices, and on request Python's and NumPy's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from safemodules.errors import OptionError
from safemodules.state import RandomState

__all__ = ["STREAMS", "Streams", "TorchStreams"]

# What the user calls a stream, and what its state is called.
STREAMS: Final = {"numpy": "numpy", "random": "python"}


class Streams:
    """The states of some streams at one moment.

    Args:
        names: names of streams.

    Raises:
        OptionError: an unknown name.
    """

    def __init__(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in STREAMS:
                raise OptionError(
                    f"streams={tuple(names)!r}: {name!r} is not known. Torch's own streams are "
                    f"always repeated; besides there are {', '.join(map(repr, STREAMS))}."
                )
        self._names = [STREAMS[name] for name in names]
        self._state = RandomState.capture_outside_torch(self._names)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Give the same numbers again, and leave the streams as they were before."""
        before = RandomState.capture_outside_torch(self._names)
        self._state.restore()
        try:
            yield
        finally:
            before.restore()


class TorchStreams:
    """The states of torch's default generators at one moment.

    Args:
        tensors: one on each accelerator whose generator counts besides the CPU's.
    """

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        self._tensors = tensors
        self._states = self._now()

    def _now(self) -> tuple[Tensor, list[int], list[Tensor]]:
        found = get_device_states(*self._tensors) if self._tensors else ([], [])
        return torch.get_rng_state(), *found

    def has_moved(self) -> bool:
        """Whether anybody has drawn since."""
        (cpu, _, states), (cpu_now, _, states_now) = self._states, self._now()
        pairs = zip([cpu, *states], [cpu_now, *states_now], strict=True)
        return not all(torch.equal(a, b) for a, b in pairs)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Give the same numbers again, and leave the streams as they were before."""
        cpu, devices, states = self._states
        kind = self._tensors[0].device.type if self._tensors else "cuda"
        with torch.random.fork_rng(devices=devices, device_type=kind):
            torch.set_rng_state(cpu)
            if devices:
                set_device_states(devices, states, device_type=kind)
            yield
