"""Exact checkpointing: see :func:`checkpoint`."""

from safemodules.checkpointing.checkpoint import checkpoint
from safemodules.checkpointing.recomputing import is_recomputing

__all__ = ["checkpoint", "is_recomputing"]
