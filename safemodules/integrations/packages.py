"""Libraries that are imported when an integration is used, not when it is imported."""

from __future__ import annotations

import importlib
from types import ModuleType

from safemodules.errors import MissingPackageError

__all__ = ["require"]


def require(module: str, extra: str) -> ModuleType:
    """Import a library's module.

    Args:
        module: dotted name of the module.
        extra: the extra of safemodules that installs the library.

    Raises:
        MissingPackageError: the library is not installed.

    Example:
        >>> require("no_such_library.callbacks", "trainers")
        Traceback (most recent call last):
            ...
        safemodules.errors.MissingPackageError: no_such_library is not installed; ...
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A library that is there and misses one of its own tells that better itself.
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingPackageError(
            f"{package} is not installed; `pip install {package}` or "
            f"`pip install 'safemodules[{extra}]'` installs it.",
            name=error.name,
        ) from error
