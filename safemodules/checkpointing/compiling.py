"""Which regions torch's own checkpoint may have under ``torch.compile``.

NOTE [ Compiled regions ]: a compiler that recomputes reads a buffer as the graph has left it,
not as the region met it. So it may have a region only if the region writes nothing: no module's
attribute or buffer, no container, nothing in place. Whether code does is told from the code, of
the class or function; what is not sure counts as a write. Such a region runs plain inside of the
graph. Statistics of batch norm are written by an operator and read by no other in a forward, and
the compiler takes random numbers again by itself. All of this holds for compilers that trace the
backward too; others run the graph's checkpoint as torch does without a compiler.

What is called here is traced by Dynamo, but for what is assumed constant.
"""

import dis
import types
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from safemodules.checkpointing.names import codes, facts, functions_of_class, is_foreign
from safemodules.checkpointing.tables import COMPILABLE_CLASSES, SAVES_TOO_EARLY
from safemodules.mutation.internals import compiles_ahead, has_hooks

__all__ = ["writes_nothing"]

_STORES: Final = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"})
_WRITERS: Final = frozenset(
    """add append appendleft clear copy_ data discard extend insert pop popitem popleft remove
    reverse setattr __setattr__ setdefault sort update __dict__ globals vars exec eval""".split()
)
_PLAIN_VALUES: Final = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)


def _is_pure(code: types.CodeType) -> bool:
    if facts(code).may_overwrite:
        return False
    for inner in codes(code):
        if not _WRITERS.isdisjoint(inner.co_names):
            return False
        for instruction in dis.get_instructions(inner):
            if instruction.opname in _STORES:
                return False
            if instruction.opname in ("STORE_DEREF", "DELETE_DEREF"):
                if instruction.argval in code.co_freevars:
                    return False
    return True


def _reached(function: types.FunctionType) -> Iterator[Any]:
    """What global variables and cells of a function hold."""
    scope = function.__globals__
    for inner in codes(function.__code__):
        yield from (scope[name] for name in inner.co_names if name in scope)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # of `super()`, or not bound yet
            continue


def _is_harmless(value: Any) -> bool:
    """Whether code that reads a value cannot write with it."""
    if isinstance(value, (types.ModuleType, types.BuiltinFunctionType, type, *_PLAIN_VALUES)):
        return True
    module = getattr(value, "__module__", None)
    if isinstance(value, types.FunctionType):
        is_ours = isinstance(module, str) and module.partition(".")[0] == "safemodules"
        return (is_foreign(module) and not is_ours) or is_pure_function(value)
    return isinstance(value, Tensor) or is_foreign(module)


def is_pure_function(function: types.FunctionType) -> bool:
    """Whether neither a function nor what it calls by a global name writes anything.

    Example:
        >>> is_pure_function(lambda x: x.relu() + 1), is_pure_function(lambda x: x.relu_())
        (True, False)
    """
    found, left = set(), [function]
    while left:
        one = left.pop()
        if one.__code__ in found:
            continue
        found.add(one.__code__)
        if not _is_pure(one.__code__):
            return False
        for value in _reached(one):
            if isinstance(value, types.FunctionType) and not is_foreign(value.__module__):
                left.append(value)
            elif not _is_harmless(value):
                return False
    return True


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_pure_class(cls: type) -> bool:
    """Whether the forward of a class and the methods that it mentions write nothing."""
    if cls in COMPILABLE_CLASSES:
        return True
    functions: dict[str, list[types.FunctionType]] = {}
    for function in functions_of_class(cls):
        functions.setdefault(function.__name__, []).append(function)
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "torch"]
    if bases[0] not in (*COMPILABLE_CLASSES, nn.Module):
        return False
    seen, left = set(), {"forward", "__call__", "__getattr__"}
    while left:
        name = left.pop()
        seen.add(name)
        for function in functions.get(name, ()):
            if not is_pure_function(function):
                return False
            left |= (facts(function.__code__).names & functions.keys()) - seen
    return True


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_pure_constant(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and is_pure_function(function)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_ahead() -> bool:
    return compiles_ahead()


def _module_writes_nothing(module: nn.Module) -> bool:
    for part in module.modules():
        if getattr(part, "inplace", False) or getattr(part, "max_norm", None) is not None:
            return False
        if type(part).__name__ in SAVES_TOO_EARLY or has_hooks(part):
            return False
        if not _is_pure_class(type(part)):
            return False
    return True


def writes_nothing(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a region can be left to the compiler, as far as can be told.

    Args:
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if not _is_ahead():
        return False
    for value in (*args, *kwargs.values()):
        if isinstance(value, nn.Module):
            if not _module_writes_nothing(value):
                return False
        elif not isinstance(value, (Tensor, bool, int, float, str, type(None))):
            return False
    if isinstance(fn, nn.Module):
        return _module_writes_nothing(fn)
    if not isinstance(fn, types.FunctionType):
        return False
    for cell in fn.__closure__ or ():
        # Dynamo makes no constant of a function whose closure holds anything else.
        if not isinstance(cell.cell_contents, (bool, int, float, str, type(None))):
            return False
    return bool(_is_pure_constant(fn))
