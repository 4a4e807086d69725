"""Counts what steps under a memory budget compute again."""

import contextlib

import pytest

from safemodules.checkpointing.replaying import Call


@contextlib.contextmanager
def counted_replays():
    """Count the calls of operators that are made again."""
    made, run = [], Call.run

    def counted(call, values):
        made.append(call)
        return run(call, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Call, "run", counted)
        yield made
