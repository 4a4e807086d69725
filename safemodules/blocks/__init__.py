"""Blocks to write new models with: each is exact, and needs no more memory than it must."""

from safemodules.blocks.checkpointed_seq import CheckpointedSeq
from safemodules.blocks.loop import AccumulatingLoop
from safemodules.blocks.residual import SafeResidual

__all__ = ["AccumulatingLoop", "CheckpointedSeq", "SafeResidual"]
