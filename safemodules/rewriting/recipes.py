"""What another process needs to make the classes of a conversion again.

NOTE [ Pickling ]: a generated class cannot be imported, so an object reduces to its original
class and a :class:`Recipe`: the edits with a digest of the text they belong to. A process
that unpickles makes the class again; where the text has changed since, the original class is
used, which computes the same, and a warning says so.
"""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from safemodules.errors import SourceChangedError, SourceError
from safemodules.mutation.reach import underlying_functions, wrapped_functions
from safemodules.mutation.source import SourceFile, load_file
from safemodules.rewriting.edits import Edit
from safemodules.rewriting.functions import EditedFile


@dataclass(frozen=True)
class FunctionName:
    """How to find a plain function again, be it behind decorators.

    Attributes:
        module: name of the module to import.
        qualname: what to look up there.
        code: name of the function's code.
        lineno: its first line; tells functions apart that one decorator wraps.
    """

    module: str
    qualname: str
    code: str
    lineno: int

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname} (line {self.lineno})"


@dataclass(frozen=True)
class FileEdits:
    """The edits of one source file.

    Attributes:
        module: name of the Python module to import.
        digest: digest of the text that the edits belong to.
        edits: what to change in it.
    """

    module: str
    digest: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, eq=False)
class Recipe:
    """All that is needed to make the classes of a conversion again in another process.

    A deep copy of a model shares it, and a pickle holds it once.

    Attributes:
        token: names the conversion.
        files: edits per file.
        methods: importable name of a class -> names of its methods that were reached.
        functions: plain functions that were edited.
        lost: edited functions that nothing importable leads to; they run unedited elsewhere.
    """

    token: str
    files: tuple[FileEdits, ...]
    methods: tuple[tuple[str, tuple[str, ...]], ...]
    functions: tuple[FunctionName, ...]
    lost: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Digest of all but the token."""
        parts = (sorted(map(repr, self.files)), sorted(self.methods), self.functions, self.lost)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def __copy__(self) -> "Recipe":
        return self

    def __deepcopy__(self, memo: Any) -> "Recipe":
        return self


def digest(file: SourceFile) -> str:
    """Digest of the text of a source file."""
    return hashlib.blake2b(file.data, digest_size=16).hexdigest()


def load_edits(edits: FileEdits) -> EditedFile:
    """Import the module of a file and edit its text again.

    Raises:
        ImportError: the module cannot be imported.
        SourceError: its text has vanished or is another one.
    """
    module = importlib.import_module(edits.module)
    filename = _code_filename(module)
    file = load_file(filename, vars(module))
    if digest(file) != edits.digest:
        raise SourceChangedError(f"{filename} has changed since")
    return EditedFile.make(file, edits.edits)


def _code_filename(module: Any) -> str:
    """The name that code objects of a module give, which may differ from ``__file__``."""
    for value in vars(module).values():
        for function in _candidates(value):
            if function.__globals__ is vars(module):
                return function.__code__.co_filename
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute in vars(value).values():
                if isinstance(attribute, FunctionType) and attribute.__globals__ is vars(module):
                    return attribute.__code__.co_filename
    return module.__file__ or ""


def name_of(function: FunctionType) -> FunctionName | None:
    """How another process finds a function: by its name, or behind one of its module's names."""
    code = function.__code__
    places = [(function.__module__, function.__qualname__)]
    home = function.__globals__.get("__name__", function.__module__)
    module = sys.modules.get(home)
    places += [(home, name) for name in (vars(module) if module is not None else ())]
    for module_name, qualname in places:
        if function in _lookup(module_name, qualname):
            return FunctionName(module_name, qualname, code.co_name, code.co_firstlineno)
    return None


def find_function(name: FunctionName) -> FunctionType:
    """Import a function.

    Raises:
        ImportError: the module cannot be imported.
        SourceError: it has no such function.
    """
    importlib.import_module(name.module)
    for function in _lookup(name.module, name.qualname):
        code = function.__code__
        if (code.co_name, code.co_firstlineno) == (name.code, name.lineno):
            return function
    raise SourceError(f"there is no function {name} any more")


def _lookup(module_name: str, qualname: str) -> list[FunctionType]:
    value: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        value = inspect.getattr_static(value, part, None)
    return list(_candidates(value))


def _candidates(value: Any) -> Iterator[FunctionType]:
    """Functions behind a value, and those that they wrap."""
    seen: set[FunctionType] = set()
    rest = underlying_functions(value)
    while rest:
        function = rest.pop()
        if function not in seen:
            seen.add(function)
            yield function
            rest += [inner for _, inner in wrapped_functions(function)]


def make_recipe(
    token: str,
    files: Mapping[str, EditedFile],
    modules: Mapping[str, str],
    methods: Mapping[str, tuple[str, ...]],
    functions: tuple[FunctionType, ...],
) -> Recipe:
    """Describe the edited code of a conversion; see :class:`Recipe`."""
    names = {function: name_of(function) for function in functions}
    return Recipe(
        token,
        tuple(
            FileEdits(modules[name], digest(file.original), file.edits)
            for name, file in files.items()
        ),
        tuple(methods.items()),
        tuple(name for name in names.values() if name is not None),
        tuple(
            f"{function.__module__}.{function.__qualname__}"
            for function, name in names.items()
            if name is None
        ),
    )
