"""Whether the running code is a recomputation."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_recomputing", "recomputation"]


class _Depth(threading.local):
    value = 0


_depth = _Depth()


def is_recomputing() -> bool:
    """Whether a checkpointed region is being run again for its backward, in this thread.

    For side effects of one's own that shall happen once per step: everything that a module
    keeps is put back after a recomputation, but a line that has been printed stays printed.

    Returns:
        True in whatever a recomputation calls, hooks included.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> def region(x):
        ...     print("again" if sm.is_recomputing() else "first")
        ...     return x.sin().cos()
        >>> out = sm.checkpoint(region, torch.ones(2, requires_grad=True))
        first
        >>> out.sum().backward()
        again
    """
    return _depth.value > 0


@contextmanager
def recomputation() -> Iterator[None]:
    """Make :func:`is_recomputing` true."""
    _depth.value += 1
    try:
        yield
    finally:
        _depth.value -= 1
