"""Streams of random numbers that torch does not keep: Python's and NumPy's."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from safemodules.errors import OptionError

__all__ = ["STREAMS", "Streams"]

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
