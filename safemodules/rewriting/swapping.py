"""Give living modules another class, and the one that they had.

Our class goes directly above the user's (see NOTE [ Class swap ]). The class that
``torch.nn.utils.parametrize`` makes for one module lies above it, and its first base is what
removing the parametrization leaves. Deep copies share that class, so it is never changed:
the module gets a copy of it with another base, and on the way back the very class it had,
unless parametrizations came or went in the meantime.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from safemodules.errors import RevertError
from safemodules.mutation.internals import is_parametrized_class
from safemodules.rewriting.classes import generated_class, make_class

# Entry of a copied parametrized class: the class that torch made.
_PARAMETRIZED = "_safemodules_parametrized"


def swap_class(module: nn.Module, cls: type) -> Callable[[], None]:
    """Give a module another class below its parametrization.

    Args:
        module: a module; other swaps than parametrizations are not looked under.
        cls: its new class: the user's, or one generated for it.

    Returns:
        How to undo it.

    Raises:
        TypeError: Python cannot change the class, since objects of the two are laid out
            differently.
    """
    before = type(module)
    _assign(module, _rebased(before, cls) if is_parametrized_class(before) else cls)
    return lambda: _assign(module, before)


def _assign(module: nn.Module, cls: type) -> None:
    """Set ``__class__`` past a property of that name, and past ``__setattr__``."""
    object.__dict__["__class__"].__set__(module, cls)


def _rebased(parametrized: type, base: type) -> type:
    """The class of a parametrized module over another base."""
    original = vars(parametrized).get(_PARAMETRIZED, parametrized)
    namespace = _namespace(parametrized)
    if original.__bases__[0] is base and _namespace(original) == namespace:
        return original  # type: ignore[no-any-return]
    # a generated base swallows the user's __init_subclass__; the right one is set afterwards
    quiet = base if generated_class(base) is not None else parametrized.__bases__[0]
    made: type = make_class(
        type(parametrized),
        parametrized.__name__,
        (quiet, *parametrized.__bases__[1:]),
        {**namespace, _PARAMETRIZED: original},
    )
    if quiet is not base:
        type.__dict__["__bases__"].__set__(made, (base, *parametrized.__bases__[1:]))
    return made


def _namespace(cls: type) -> dict[str, Any]:
    """What a class defines, without what Python adds to every class."""
    added = ("__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__")
    hidden = (*added, "_abc_impl", "__abstractmethods__", _PARAMETRIZED)
    return {name: value for name, value in vars(cls).items() if name not in hidden}


def restore_class(module: nn.Module, path: str) -> Callable[[], None]:
    """Give a module back the class of its user.

    Args:
        module: any module.
        path: its dotted path, for the error.

    Returns:
        How to undo it.

    Raises:
        RevertError: another swap lies above ours.
    """
    cls = type(module)
    generated = generated_class(cls)
    if generated is None:
        return lambda: None
    below = cls.__bases__[0] if is_parametrized_class(cls) else cls
    if below is not generated:
        raise RevertError(
            f"{path or 'the model itself'} was given the class {cls.__name__!r} on top of the "
            "conversion (by fully_shard, for instance). Undo that first, then revert."
        )
    return swap_class(module, generated._safemodules_user_class)
