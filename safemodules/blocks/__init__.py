"""Blocks to write new models with: each is exact, and needs no more memory than it must."""

from safemodules.blocks.checkpointed_seq import CheckpointedSeq

__all__ = ["CheckpointedSeq"]
