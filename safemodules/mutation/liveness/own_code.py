"""Where a class of the user's runs code of its own for what Python or torch else would do."""

import inspect
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from safemodules.mutation.internals import user_class_of
from safemodules.mutation.liveness.callables import is_of_the_user
from safemodules.mutation.liveness.values import Known, Value

# Methods by which no operator of Python's runs, or which are looked for one by one.
_NO_OPERATORS = frozenset(
    """__call__ __class_getitem__ __deepcopy__ __dir__ __getattr__ __getattribute__ __getitem__
    __getstate__ __init__ __init_subclass__ __iter__ __len__ __new__ __reduce__ __reduce_ex__
    __setattr__ __setstate__ __subclasshook__""".split()
)
_ITERATION = ("__iter__", "__getitem__", "__len__", "__next__", "keys", "values", "items")


def own(cls: type, name: str) -> Any:
    """What a class of the user's defines under a name, or ``None``."""
    for base in user_class_of(cls).__mro__:
        if name in vars(base):
            return vars(base)[name] if is_of_the_user(base) else None
    return None


def overrides(value: Value, *names: str) -> bool:
    """Whether the class of an object that exists already defines one of some methods itself."""
    if not isinstance(value, Known) or isinstance(value.object, Tensor):
        return False
    return any(own(type(value.object), name) is not None for name in names)


def iterates(value: Value) -> bool:
    """Whether a list of the user's, or a list of modules, gives its entries by code of its own."""
    containers = (list, tuple, dict, set, frozenset, nn.Module)
    return (
        isinstance(value, Known)
        and isinstance(value.object, containers)
        and overrides(value, *_ITERATION)
    )


def has_operators(cls: type) -> bool:
    """Whether a class of the user's says what operators, ``str`` or ``with`` do to its objects."""
    return any(
        name.startswith("__") and name.endswith("__") and name not in _NO_OPERATORS
        for base in user_class_of(cls).__mro__
        if is_of_the_user(base)
        for name, value in vars(base).items()
        if isinstance(value, FunctionType)
    )


def sets_itself(cls: type, name: str) -> bool:
    """Whether code of the user's runs when an attribute is set, other than to keep it."""
    if own(cls, "__setattr__") is not None:
        return True
    return hasattr(type(inspect.getattr_static(cls, name, None)), "__set__") and any(
        name in vars(base) and is_of_the_user(base) for base in cls.__mro__
    )


def gets_itself(cls: type, name: str) -> bool:
    """Whether code of the user's runs when an attribute is read, other than of a property."""
    if own(cls, "__getattribute__") is not None:
        return True
    return own(type(inspect.getattr_static(cls, name, None)), "__get__") is not None


def is_made_plainly(cls: type) -> bool:
    """Whether calling a class does nothing but what its ``__init__`` says."""
    if own(type(cls), "__call__") is not None:
        return False
    hooks = ("__new__", "__del__", "__setattr__", "__getattribute__")
    return not any(_is_written(own(cls, hook)) for hook in hooks)


def has_own_init(cls: type) -> bool:
    """Whether the user has written a class's ``__init__``, as opposed to a dataclass's."""
    return _is_written(own(cls, "__init__"))


def _is_written(value: Any) -> bool:
    """Whether somebody has written a function; one made by ``exec`` has no file."""
    function = value.__func__ if isinstance(value, staticmethod) else value
    return isinstance(function, FunctionType) and not function.__code__.co_filename.startswith("<")
