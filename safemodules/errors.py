"""Errors that safemodules raises.

Every one derives from :class:`SafeModulesError` and from the built-in that fits, so that
both ``except safemodules.SafeModulesError`` and ``except ValueError`` work. A message says
what was given, what was expected, where, and how to mend it.
"""


class SafeModulesError(Exception):
    """Base of all errors raised by safemodules."""


class ModuleTypeError(SafeModulesError, TypeError):
    """What was given is not an initialised ``torch.nn.Module`` instance."""


class OptionError(SafeModulesError, ValueError):
    """An option has a value that is unknown or not available."""


class ConversionError(SafeModulesError, RuntimeError):
    """A model cannot be converted, and was left as it was."""


class MismatchError(ConversionError):
    """The converted model did not compute what the original computes."""


class RevertError(SafeModulesError, RuntimeError):
    """A conversion cannot be undone."""


class CheckpointError(SafeModulesError, RuntimeError):
    """A checkpointed region cannot be computed again as it was, so it has no right gradient."""


class RegionError(SafeModulesError, TypeError):
    """What was given to be checkpointed is not a function whose run can be repeated."""


class SourceError(SafeModulesError, RuntimeError):
    """The source of a function on the forward path cannot be read."""


class SourceChangedError(SourceError):
    """The source file is not the one that the running code was compiled from."""


class EquivalenceError(SafeModulesError, AssertionError):
    """Two models that should compute the same do not."""


class NonFiniteReferenceError(SafeModulesError, ValueError):
    """The reference's own output holds NaN, so nothing can be compared with it."""


class ExampleInputError(SafeModulesError, ValueError):
    """The model's ``forward`` does not accept the example inputs."""


class DeviceMismatchError(SafeModulesError, ValueError):
    """The model and its example inputs are on different devices."""


class PrecisionError(SafeModulesError, ValueError):
    """A tensor is not double precision where finite differences need it to be."""


class StateError(SafeModulesError, RuntimeError):
    """The mode or state of a model could not be set, or not be put back as it was before a run."""


class ResidualError(SafeModulesError, ValueError):
    """A residual block cannot add its branch and its shortcut, or one of them is missing."""


class OverwrittenInputError(SafeModulesError, RuntimeError):
    """A part of a block overwrote the input that another part reads afterwards."""


class LoopItemsError(SafeModulesError, ValueError):
    """What a loop was given to run over is empty, or cannot be taken apart as asked."""


class LoopBodyError(SafeModulesError, RuntimeError):
    """The body of a loop does what would make the loop's result or gradient wrong."""


class BudgetWarning(UserWarning):
    """A forward keeps more than its memory budget was planned for; what it computes is right."""


class BudgetError(SafeModulesError, ValueError):
    """A memory budget is less than the step needs whatever is forgotten."""


class MissingPackageError(SafeModulesError, ImportError):
    """An integration was used whose library is not installed."""
