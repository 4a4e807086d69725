"""What code reads from outside of its arguments: global variables, and functions it calls."""

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

__all__ = ["functions_of_class", "global_names", "is_foreign", "may_overwrite", "names"]

# Code of these reads nothing that a region changes, but for what it is given.
_FOREIGN: Final = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}
# Globals that nobody rebinds in a forward.
_CONSTANT: Final = (type, types.ModuleType, types.BuiltinFunctionType)

_all_names: "WeakKeyDictionary[types.CodeType, frozenset[str]]" = WeakKeyDictionary()
_names: "WeakKeyDictionary[types.CodeType, tuple[str, ...]]" = WeakKeyDictionary()
_functions: "WeakKeyDictionary[type, tuple[types.FunctionType, ...]]" = WeakKeyDictionary()


def is_foreign(module: Any) -> bool:
    """Whether a module's name is that of torch, NumPy or the standard library."""
    return isinstance(module, str) and module.partition(".")[0] in _FOREIGN


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def names(code: types.CodeType) -> frozenset[str]:
    """Global names and attributes that code mentions, that of functions inside of it included."""
    if code not in _all_names:
        _all_names[code] = frozenset(name for inner in _codes(code) for name in inner.co_names)
    return _all_names[code]


def global_names(function: types.FunctionType) -> tuple[str, ...]:
    """Global variables that a function may read, those left out that are never rebound.

    Args:
        function: a function; the code inside of it is looked at, not the functions it calls.
    """
    code = function.__code__
    if code not in _names:
        found = names(code)
        scope = function.__globals__
        _names[code] = tuple(
            name
            for name in found
            if name in scope
            and not isinstance(scope[name], _CONSTANT)
            and not is_foreign(getattr(scope[name], "__module__", None))
        )
    return _names[code]


@functools.lru_cache(maxsize=4096)
def may_overwrite(code: types.CodeType) -> bool:
    """Whether code mentions anything by which a tensor could be overwritten.

    Example:
        >>> (
        ...     may_overwrite((lambda x: x.relu()).__code__),
        ...     may_overwrite((lambda x: x.relu_()).__code__),
        ... )
        (False, True)
    """
    return any(_may_overwrite(inner) for inner in _codes(code))


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
