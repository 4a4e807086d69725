"""What code reads from outside of its arguments: global variables, and functions it calls."""

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

__all__ = [
    "Facts",
    "codes",
    "facts",
    "functions_of_class",
    "global_names",
    "is_foreign",
    "is_wrapper",
]

# Code of these reads nothing that a region changes, but for what it is given.
_FOREIGN: Final = frozenset(
    {*sys.stdlib_module_names, "torch", "numpy", "safemodules"} - {"__main__"}
)
# Globals that nobody rebinds in a forward.
_CONSTANT: Final = (type, types.ModuleType, types.BuiltinFunctionType)

_CODES: Final = 4096  # more are forgotten
# By code and the id of its global variables, which are kept so that no other gets that id.
_global_names: dict[tuple[types.CodeType, int], tuple[dict[str, Any], tuple[str, ...]]] = {}
_functions: "WeakKeyDictionary[type, tuple[types.FunctionType, ...]]" = WeakKeyDictionary()


def is_foreign(module: Any) -> bool:
    """Whether a module's name is that of torch, NumPy, the standard library, or one of ours."""
    return isinstance(module, str) and module.partition(".")[0] in _FOREIGN


def is_wrapper(function: types.FunctionType) -> bool:
    """Whether a function of ours stands for one of the user's, which its closure holds."""
    return function.__closure__ is not None and function.__module__.startswith("safemodules.")


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of the functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


class Facts(NamedTuple):
    """What code mentions, that of functions inside of it included.

    Attributes:
        names: global names and attributes.
        may_overwrite: whether there is anything by which a tensor could be overwritten.
    """

    names: frozenset[str]
    may_overwrite: bool


@functools.lru_cache(maxsize=_CODES)
def facts(code: types.CodeType) -> Facts:
    """Look through code.

    Example:
        >>> facts((lambda x: x.relu()).__code__).may_overwrite
        False
        >>> facts((lambda x: x.relu_()).__code__).may_overwrite
        True
    """
    inner = tuple(codes(code))
    names = frozenset(name for part in inner for name in part.co_names)
    return Facts(names, any(map(_may_overwrite, inner)))


def global_names(function: types.FunctionType) -> tuple[str, ...]:
    """Global variables that a function may read, those left out that are never rebound.

    Args:
        function: a function; the code inside of it is looked at, not the functions it calls.
    """
    code, scope = function.__code__, function.__globals__
    known = _global_names.get((code, id(scope)))
    if known is not None:
        return known[1]
    if len(_global_names) >= _CODES:
        _global_names.clear()
    found = tuple(
        name
        for name in facts(code).names
        if name in scope
        and not isinstance(scope[name], _CONSTANT)
        and not is_foreign(getattr(scope[name], "__module__", None))
    )
    _global_names[code, id(scope)] = scope, found
    return found


def _may_overwrite(code: types.CodeType) -> bool:
    if any(name.endswith("_") and not name.endswith("__") for name in code.co_names):
        return True
    keywords = [constant for constant in code.co_consts if isinstance(constant, tuple)]
    if any(name in keyword for keyword in keywords for name in ("inplace", "out")):
        return True
    return any(
        instruction.opname in ("STORE_SUBSCR", "STORE_SLICE")
        or instruction.opname.startswith("INPLACE_")
        or (instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="))
        for instruction in dis.get_instructions(code)
    )


def functions_of_class(cls: type) -> tuple[types.FunctionType, ...]:
    """Functions in the bodies of a class and of its bases, those of torch left out."""
    if cls not in _functions:
        _functions[cls] = tuple(
            function for base in cls.__mro__ for function in _plain_functions(base)
        )
    return _functions[cls]


def _plain_functions(cls: type) -> Iterator[types.FunctionType]:
    if is_foreign(cls.__module__):
        return
    for value in vars(cls).values():
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        for function in (value.fget, value.fset) if isinstance(value, property) else (value,):
            if isinstance(function, types.FunctionType) and not is_foreign(function.__module__):
                yield function
