"""Proof that two models compute the same: outputs, gradients, buffers, random numbers.

:func:`verify` compares two models. A model that is changed in place is compared with
itself by the pieces that ``verify`` is built on, see NOTE [ Reference First, Then The
Candidate ] in ``modes.py``::

    reference = observe_reference(model, args, kwargs, modes)
    ...  # change the model in place
    candidate = observe_modes(model, args, kwargs, modes, like=reference)
    compare_modes(reference, candidate).raise_if_different()

``trace_modules`` before and after, and ``first_difference``, name the first module whose
output differs.
"""

from safemodules.verification.comparison import Difference, compare
from safemodules.verification.digests import TensorDigest, digest_tensor
from safemodules.verification.equivalence import Check, Equivalence, compare_modes, verify
from safemodules.verification.modes import (
    as_arguments,
    check_reference,
    is_out_of_memory,
    observe_mode,
    observe_modes,
    observe_reference,
)
from safemodules.verification.observation import Mode, Observation, RunError, observe
from safemodules.verification.traces import ModuleCall, first_difference, trace_modules

__all__ = [
    "Check",
    "Difference",
    "Equivalence",
    "Mode",
    "ModuleCall",
    "Observation",
    "RunError",
    "TensorDigest",
    "as_arguments",
    "check_reference",
    "compare",
    "compare_modes",
    "digest_tensor",
    "first_difference",
    "is_out_of_memory",
    "observe",
    "observe_mode",
    "observe_modes",
    "observe_reference",
    "trace_modules",
    "verify",
]
