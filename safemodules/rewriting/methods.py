"""Methods and functions compiled from edited text, as one class runs them.

What a function calls depends on who runs it: ``super().forward`` on the class of the object,
an edited callee on the conversion. So every class gets functions of its own, with the
original's cells, defaults and globals, and cells of ours for what is looked up.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CellType, FunctionType
from typing import Any

from safemodules.mutation.reach import underlying_functions, wrapped_functions
from safemodules.mutation.resolution import is_foreign, next_in_mro
from safemodules.mutation.source import FunctionSource, source_of
from safemodules.rewriting.functions import EditedFile, cell, helper_names, rebuild
from safemodules.rewriting.runtime import helper, make_twin
from safemodules.rewriting.templates import PREFIX


class MethodBuilder:
    """Makes the edited functions of a conversion, as one class (or no class) runs them.

    Attributes:
        files: edited files by the name of the original.
        user: the class whose methods are made; ``None`` for plain functions.
        table: original -> edited function; it is what the code looks its callees up in.
    """

    def __init__(
        self,
        files: Mapping[str, EditedFile],
        user: type | None,
        table: dict[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        self.files, self.user, self.table = files, user, table
        self.lookup = make_twin(table)
        self.twin = cell(self.lookup)
        self.entered: set[FunctionType] = set()

    def methods(self, names: Iterable[str]) -> dict[str, Any]:
        """The class attributes of these names, as far as they have an edit."""
        user = self.user
        assert user is not None
        for base in user.__mro__:  # for explicit `Base.forward(self, x)` and behind decorators
            for attribute in vars(base).values():
                for function in underlying_functions(attribute):
                    self.enter(function)
        found = {name: inspect.getattr_static(user, name, None) for name in names}
        edited = {name: _map_functions(value, self.edited) for name, value in found.items()}
        return {name: value for name, value in edited.items() if value is not found[name]}

    def enter(self, function: FunctionType) -> None:
        """Enter the edited form of a function, and of those in its closure, into the table."""
        if function in self.entered:
            return
        self.entered.add(function)
        for _, inner in wrapped_functions(function):
            self.enter(inner)
        edited = self.edited(function)
        if edited is not function:
            self.table[function] = edited

    def edited(self, function: FunctionType) -> FunctionType:
        """A function compiled from edited text; the function itself if it has no edit."""
        known = self.table.get(function)
        if known is not None:
            assert isinstance(known, FunctionType)
            return known
        if is_foreign(function.__code__.co_filename):
            return self._with_inner(function)
        source = self._source(function)
        if source is None:
            return function
        code = self.files[function.__code__.co_filename].code(source)
        cells = {f"{PREFIX}{name}": self._cell(name, function) for name in helper_names(code)}
        return rebuild(function, code, cells)

    def _source(self, function: FunctionType) -> FunctionSource | None:
        """The source of a function that is edited, else ``None``."""
        file = self.files.get(function.__code__.co_filename)
        if file is None:
            return None
        first = function.__code__.co_firstlineno
        lines = file.original.line_starts
        if first > len(lines) or not any(lines[first - 1] <= edit.start for edit in file.edits):
            return None
        source = source_of(function)
        return source if file.holds(source) else None

    def _with_inner(self, function: FunctionType) -> FunctionType:
        """A wrapper of torch's own (such as ``no_grad``) around edited functions."""
        own = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        replaced = {
            name: cell(self.lookup(own[name].cell_contents))
            for name, inner in wrapped_functions(function)
            if inner in self.table
        }
        return rebuild(function, function.__code__, replaced) if replaced else function

    def _cell(self, name: str, function: FunctionType) -> CellType:
        if name == "twin":
            return self.twin
        if name.startswith("super_"):
            return cell(self._super(name[len("super_") :], function))
        return cell(helper(name))

    def _super(self, name: str, function: FunctionType) -> FunctionType:
        """What ``super().<name>`` finds from a method of the class or one of its bases."""
        assert self.user is not None
        closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        target = next_in_mro(self.user, closure["__class__"].cell_contents, name)
        return self.edited(target)


def _map_functions(attribute: Any, edit: Callable[[FunctionType], FunctionType]) -> Any:
    """Apply a change to the functions behind a class attribute, and wrap it up as before."""
    if isinstance(attribute, FunctionType):
        return edit(attribute)
    if isinstance(attribute, staticmethod | classmethod):
        inner = _map_functions(attribute.__func__, edit)
        return attribute if inner is attribute.__func__ else type(attribute)(inner)
    if isinstance(attribute, functools.partial | functools.partialmethod):
        inner = _map_functions(attribute.func, edit)
        if inner is attribute.func:
            return attribute
        return type(attribute)(inner, *attribute.args, **attribute.keywords)
    if isinstance(attribute, property) and isinstance(attribute.fget, FunctionType):
        getter = edit(attribute.fget)
        return attribute if getter is attribute.fget else attribute.getter(getter)
    if isinstance(attribute, functools.cached_property):
        getter = _map_functions(attribute.func, edit)
        if getter is attribute.func:
            return attribute
        made = type(attribute)(getter)
        made.__set_name__(type(None), attribute.attrname or getter.__name__)
        return made
    return attribute
