"""Make PyTorch models train that in-place operations break, computing exactly the same.

Verbs: :func:`convert_model` mends a model and :func:`verify` proves it. See the README for
the errors this is for, and ``python -m safemodules --help`` for the command line.
"""

from safemodules.blocks import AccumulatingLoop, CheckpointedSeq, SafeResidual
from safemodules.checkpointing import checkpoint, is_recomputing
from safemodules.conversion.checkpoints import plan_checkpoints
from safemodules.conversion.convert import (
    conversion_plan,
    convert_model,
    is_converted,
    revert_model,
)
from safemodules.conversion.plan import ConversionPlan, plan_conversion
from safemodules.conversion.record import PlannedSite
from safemodules.diagnosis import Clash, Diagnosis, SiteReport, diagnose, watch
from safemodules.errors import (
    BudgetError,
    BudgetWarning,
    CheckpointError,
    ConversionError,
    DeviceMismatchError,
    EquivalenceError,
    ExampleInputError,
    LoopBodyError,
    LoopItemsError,
    MismatchError,
    ModuleTypeError,
    NonFiniteReferenceError,
    OptionError,
    OverwrittenInputError,
    PrecisionError,
    RegionError,
    ResidualError,
    RevertError,
    SafeModulesError,
    SourceChangedError,
    SourceError,
    StateError,
)
from safemodules.memory.plans import CheckpointPlan, ForgottenResult
from safemodules.memory.profile import MemoryProfile, ModuleMemory, profile_memory
from safemodules.mutation.reach import Skipped
from safemodules.mutation.sites import Site, SiteKind
from safemodules.rewriting.classes import ConversionWarning
from safemodules.verification import Equivalence, verify

__version__ = "0.1.0"

__all__ = [
    "AccumulatingLoop",
    "BudgetError",
    "BudgetWarning",
    "CheckpointError",
    "CheckpointPlan",
    "CheckpointedSeq",
    "Clash",
    "ConversionError",
    "ConversionPlan",
    "ConversionWarning",
    "DeviceMismatchError",
    "Diagnosis",
    "Equivalence",
    "EquivalenceError",
    "ExampleInputError",
    "ForgottenResult",
    "LoopBodyError",
    "LoopItemsError",
    "MemoryProfile",
    "MismatchError",
    "ModuleMemory",
    "ModuleTypeError",
    "NonFiniteReferenceError",
    "OptionError",
    "OverwrittenInputError",
    "PlannedSite",
    "PrecisionError",
    "RegionError",
    "ResidualError",
    "RevertError",
    "SafeModulesError",
    "SafeResidual",
    "Site",
    "SiteKind",
    "SiteReport",
    "Skipped",
    "SourceChangedError",
    "SourceError",
    "StateError",
    "__version__",
    "checkpoint",
    "conversion_plan",
    "convert_model",
    "diagnose",
    "is_converted",
    "is_recomputing",
    "plan_checkpoints",
    "plan_conversion",
    "profile_memory",
    "revert_model",
    "verify",
    "watch",
]
