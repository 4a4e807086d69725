"""What may be called, as memory: a container or a name that may be several things holds it.

NOTE [ Callables as memory ]: a module or a function of the user's that is put into a list, or
that is one of two, is not known one by one any more. Were it forgotten there, a call of the
list's entry could overwrite a tensor unseen. So each gets a number, as memory has, below
zero: it travels with the memory that a value may hold, and whoever calls such a value calls
one of these. Where unknown code is given one, all that it runs is unknown.
"""

import functools
import sys
import threading
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from safemodules.mutation.resolution import is_foreign

__all__ = [
    "callables_in",
    "entries_in",
    "forget_callables",
    "functions_around",
    "is_of_the_user",
    "lose",
    "lost",
    "number_of",
    "numbered",
]

_DEPTH = 3  # lists in lists that are looked into
_PLAIN = (int, float, str, bytes, bool, type(None), complex, type, range, ModuleType, Tensor)


class _Registry(threading.local):
    """Numbers of callables in the abstract run of this thread."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.values: list[Any] = []
        self.lost: list[Any] = []


_registry = _Registry()
_of_the_user: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def forget_callables() -> None:
    """Begin anew, and keep no object alive."""
    _registry.__init__()  # type: ignore[misc]


def lose(value: Any) -> None:
    """A list or the like that exists already is one of several, and may be changed as such."""
    if isinstance(value, list | dict | set):
        _registry.lost.append(value)


def lost() -> list[Any]:
    """What :func:`lose` was told of."""
    return _registry.lost


def number_of(key: Any, value: Any) -> int:
    """The number of what may be called, below zero.

    Args:
        key: its identity.
        value: what :func:`numbered` shall return.
    """
    number = _registry.numbers.get(key)
    if number is None:
        _registry.values.append(value)
        number = _registry.numbers[key] = -len(_registry.values)
    return number


def numbered(number: int) -> Any:
    """What has a number."""
    return _registry.values[-number - 1]


def callables_in(value: Any, depth: int = 0) -> frozenset[int]:
    """Numbers of what may be called in an object that exists already."""
    if isinstance(value, _PLAIN):
        return frozenset()
    if isinstance(value, list | tuple | dict | set | frozenset):
        if depth == _DEPTH:
            return frozenset()
        return frozenset().union(*(callables_in(each, depth + 1) for each in entries_in(value)))
    if isinstance(value, MethodType):  # a new one whenever it is asked for
        key: Any = (id(value.__func__), id(value.__self__))
        return frozenset({number_of(key, value)})
    if _may_run_code_of_the_user(value):
        return frozenset({number_of(id(value), value)})
    return frozenset()


def _may_run_code_of_the_user(value: Any) -> bool:
    if isinstance(value, nn.Module | functools.partial):
        return True
    if isinstance(value, FunctionType):
        if not _is_foreign(value.__code__.co_filename):
            return True
        return any(map(_may_run_code_of_the_user, functions_around(value)))
    return is_of_the_user(type(value))


def entries_in(value: Any) -> Iterable[Any]:
    """What a list or the like holds, whatever iteration of a class of the user's would give."""
    if isinstance(value, dict):
        return list(dict.values(value))  # which may change meanwhile
    kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
    return kind.__iter__(value)


def functions_around(function: FunctionType) -> list[FunctionType]:
    """Functions that a wrapper of a library's may call: what it has closed over."""
    found = []
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(held, FunctionType):
            found.append(held)
    return found


@functools.cache
def _is_foreign(filename: str) -> bool:
    return is_foreign(filename)


def is_of_the_user(cls: type) -> bool:
    """Whether a class has methods that are not torch's or Python's."""
    known = _of_the_user.get(cls)
    if known is None:
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        files = [file] if file is not None else _files_of(cls)
        known = _of_the_user[cls] = not all(map(is_foreign, files))
    return known


def _files_of(cls: type) -> list[str]:
    """Where the methods of a class are written that no file has defined: in a notebook, say."""
    methods = (value for value in vars(cls).values() if isinstance(value, FunctionType))
    return [method.__code__.co_filename for method in methods]
