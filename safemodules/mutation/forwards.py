"""Forwards that stand on an instance, in place of its class's."""

from typing import Final

from torch import nn

__all__ = ["FORWARD", "OF_CONVERSION", "has_own_forward"]

FORWARD: Final = "forward"
# True of the function behind a forward that a conversion puts there, which computes the same.
OF_CONVERSION: Final = "_safemodules_forward"


def has_own_forward(module: nn.Module) -> bool:
    """Whether a module runs another forward than that of its class.

    Example:
        >>> layer = nn.ReLU()
        >>> has_own_forward(layer)
        False
        >>> layer.forward = abs
        >>> has_own_forward(layer)
        True
    """
    forward = module.__dict__.get(FORWARD)
    return forward is not None and not hasattr(getattr(forward, "func", None), OF_CONVERSION)
