"""Streams of random numbers: those of torch's devices, and on request Python's and NumPy's."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from safemodules.errors import OptionError

__all__ = ["STREAMS", "Streams", "TorchStreams"]

STREAMS: Final = ("numpy", "random")


def _module(name: str) -> Any:
    return random if name == "random" else sys.modules.get("numpy.random")


def _state(name: str) -> Any:
    module = _module(name)
    if module is None:
        return None
    return module.getstate() if name == "random" else module.get_state()


def _set(name: str, state: Any) -> None:
    if state is not None:
        module = _module(name)
        (module.setstate if name == "random" else module.set_state)(state)


class Streams:
    """The states of some streams at one moment.

    Args:
        states: state by name.
    """

    def __init__(self, states: dict[str, Any]) -> None:
        self._states = states

    @classmethod
    def capture(cls, names: Sequence[str]) -> "Streams":
        """Take the states.

        Raises:
            OptionError: an unknown name.
        """
        for name in names:
            if name not in STREAMS:
                raise OptionError(
                    f"streams={tuple(names)!r}: {name!r} is not known. Torch's own streams are "
                    f"always repeated; besides there are {', '.join(map(repr, STREAMS))}."
                )
        return cls({name: _state(name) for name in names})

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Give the same numbers again, and leave the streams as they were before."""
        before = {name: _state(name) for name in self._states}
        for name, state in self._states.items():
            _set(name, state)
        try:
            yield
        finally:
            for name, state in before.items():
                _set(name, state)


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
