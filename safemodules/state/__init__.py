"""Exact snapshot and restore of everything that a run of a model may change.

:class:`ModelState` covers the module tree (buffers, tensor and Python attributes, training
flags, ``.grad``) and the random number streams (:class:`RandomState`). Values are put back
into the same objects, so references held elsewhere stay good.
"""

from safemodules.state.model import (
    ModelState,
    holds_state,
    module_tensors,
    preserved,
    slot_names,
)
from safemodules.state.randomness import RandomState, seed_everything
from safemodules.state.tensors import tensor_bits

__all__ = [
    "ModelState",
    "RandomState",
    "holds_state",
    "module_tensors",
    "preserved",
    "seed_everything",
    "slot_names",
    "tensor_bits",
]
