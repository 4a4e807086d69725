"""Classes for sequences that are checkpointed in place, and the way back.

NOTE [ Wrapped sequences ]: a plain ``nn.Sequential`` is given the class ``CheckpointedSeq``
itself. One of a subclass that computes what ``nn.Sequential`` does is given a generated class
above its own (compare NOTE [ Class swap ] in ``rewriting/classes.py``), with its name; it is
pickled as its user's class, and given the generated one again when it is loaded.
"""

import copyreg
from collections.abc import Callable
from typing import Any

from torch import nn

from safemodules.rewriting.classes import make_class

__all__ = ["WrappedSeq", "original_class", "wrapped_class"]

_ORIGINAL = "_safemodules_original_class"


class WrappedSeq:
    """Mixed into every generated class; it has no ``__slots__``, see ``Converted``."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if _ORIGINAL not in vars(cls):  # a class that a user derives from a generated one
            super().__init_subclass__(**kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        generated = next(cls for cls in type(self).__mro__ if _ORIGINAL in vars(cls))
        user: type = vars(generated)[_ORIGINAL]
        reducer = copyreg.dispatch_table.get(user)
        reduced = super().__reduce_ex__(protocol) if reducer is None else reducer(self)
        if not isinstance(reduced, tuple):  # the name of a global
            return reduced
        make, args, *rest = reduced
        args = tuple(user if argument is type(self) else argument for argument in args)
        make = user if make is type(self) else make
        base = next(c for c in generated.__mro__ if vars(c).get("_safemodules_wraps"))
        return (_remake, (base, make, *args), *rest)


def _remake(base: type, make: Callable[..., Any], *args: Any) -> Any:
    made = make(*args)
    made.__class__ = wrapped_class(type(made), base)
    return made


def wrapped_class(user: type, base: type) -> type:
    """The class for a sequence that is checkpointed.

    Args:
        user: the class that it has.
        base: ``CheckpointedSeq``.
    """
    if user is nn.Sequential:
        return base
    subclasses: list[type] = type.__subclasses__(user)
    for known in subclasses:
        if vars(known).get(_ORIGINAL) is user:
            return known
    namespace = {
        "__module__": user.__module__,
        "__qualname__": user.__qualname__,
        "__doc__": user.__doc__,
        _ORIGINAL: user,
    }
    made: type = make_class(type(user), user.__name__, (WrappedSeq, user, base), namespace)
    return made


def original_class(cls: type, base: type) -> type | None:
    """The class that a checkpointed sequence had, or None where a user derived its class.

    Args:
        cls: the class that it has.
        base: ``CheckpointedSeq``.
    """
    if cls is base:
        return nn.Sequential
    found: type | None = vars(cls).get(_ORIGINAL)
    return found
