"""Run regions without checkpointing them: to be looked at, or to be compared with."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_plain", "run_plain"]


class _Thread(threading.local):
    plain = False


_thread = _Thread()


def is_plain() -> bool:
    """Whether regions are run without checkpointing, in this thread."""
    return _thread.plain


@contextmanager
def run_plain() -> Iterator[None]:
    """Run regions without checkpointing, in this thread.

    What a region computes is what it computes without a checkpoint, so that is the reference
    of every comparison; and there a recorder sees what the region saves and overwrites.
    """
    before = _thread.plain
    _thread.plain = True
    try:
        yield
    finally:
        _thread.plain = before
