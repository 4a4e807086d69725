"""Where in a model a module stands, for messages."""

import sys

from torch import nn

__all__ = ["Place", "describe_place"]


def describe_place(module: nn.Module) -> str:
    """Name a module by its dotted path in the outermost module that is being called.

    A module does not know its parents, but they are on the stack while they run.

    Args:
        module: The module to name.

    Returns:
        ``"layer1.0 (SafeResidual) of ResNet"``, or the name of the class if no parent runs.
    """
    place = type(module).__name__
    frame = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and owner is not module:
            for path, child in owner.named_modules():
                if child is module:
                    place = f"{path} ({type(module).__name__}) of {type(owner).__name__}"
                    break
        if frame.f_back is None:
            break
        frame = frame.f_back
    return place


class Place:
    """Where a module stands, found out when it is printed, while the module runs.

    Args:
        module: The module to name.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __str__(self) -> str:
        return describe_place(self.module)
