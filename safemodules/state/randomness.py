"""The random number streams of the process."""

import hashlib
import importlib
import random
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["RandomState", "seed_everything"]


def _accelerators() -> Iterator[tuple[str, Any]]:
    """Yield (name, device module) of each accelerator that is initialised already."""
    names = {"cuda", "xpu"}
    if torch.accelerator.is_available():
        current = torch.accelerator.current_accelerator()
        names |= {current.type} if current is not None else set()
    for name in sorted(names):
        module = getattr(torch, name, None)
        # Asking an uninitialised device for its state would initialise it.
        if module is not None and getattr(module, "is_initialized", lambda: True)():
            yield name, module


def _numpy_random() -> Any:
    """NumPy's streams, if NumPy is imported; it loads them itself when they are first used."""
    return importlib.import_module("numpy.random") if "numpy" in sys.modules else None


@dataclass(frozen=True)
class RandomState:
    """The random number streams of the process: torch on every device, Python, NumPy.

    Devices that are not initialised and a NumPy that is not imported are left alone.

    Args:
        streams: State of each stream by its name.

    Example:
        >>> import torch
        >>> from safemodules.state import RandomState
        >>> state = RandomState.capture()
        >>> first = torch.rand(3)
        >>> state.restore()
        >>> torch.equal(torch.rand(3), first)
        True
    """

    streams: dict[str, Any]

    @classmethod
    def capture(cls) -> "RandomState":
        """Take the present state of every stream."""
        streams: dict[str, Any] = {"torch.cpu": torch.get_rng_state()}
        for name, module in _accelerators():
            if hasattr(module, "get_rng_state_all"):
                for index, state in enumerate(module.get_rng_state_all()):
                    streams[f"torch.{name}:{index}"] = state
            elif hasattr(module, "get_rng_state"):
                streams[f"torch.{name}"] = module.get_rng_state()
        return cls({**streams, **cls.capture_outside_torch(("python", "numpy")).streams})

    @classmethod
    def capture_outside_torch(cls, names: Collection[str]) -> "RandomState":
        """Take the present state of streams that are not torch's: ``"python"``, ``"numpy"``."""
        streams: dict[str, Any] = {}
        if "python" in names:
            streams["python"] = random.getstate()
        numpy_random = _numpy_random() if "numpy" in names else None
        if numpy_random is not None:
            streams["numpy"] = numpy_random.get_state()
        return cls(streams)

    def restore(self) -> None:
        """Set every captured stream back."""
        for name, state in self.streams.items():
            if name == "python":
                random.setstate(state)
            elif name == "numpy":
                sys.modules["numpy.random"].set_state(state)
            elif name == "torch.cpu":
                torch.set_rng_state(state)
            else:
                device, _, index = name.removeprefix("torch.").partition(":")
                module = getattr(torch, device)
                module.set_rng_state(state, *([int(index)] if index else []))

    def digests(self) -> dict[str, str]:
        """Return a hash of each stream's state, to compare streams without keeping them."""
        hashes: dict[str, str] = {}
        for name, state in self.streams.items():
            if isinstance(state, torch.Tensor):
                raw = bytes(state.tolist())
            else:
                raw = repr([x.tolist() if hasattr(x, "tolist") else x for x in state]).encode()
            hashes[name] = hashlib.blake2b(raw, digest_size=16).hexdigest()
        return hashes


def seed_everything(seed: int) -> None:
    """Seed every stream that :class:`RandomState` captures.

    Unlike ``torch.manual_seed`` this queues no seed for devices not initialised yet, which
    would outlast a later restore.

    Args:
        seed: Any non-negative integer below 2**32.
    """
    torch.default_generator.manual_seed(seed)
    for _, module in _accelerators():
        seeding = getattr(module, "manual_seed_all", None) or module.manual_seed
        seeding(seed)
    random.seed(seed)
    numpy_random = _numpy_random()
    if numpy_random is not None:
        numpy_random.seed(seed)
