"""Functions compiled from edited text, with the cells, globals and defaults of the original.

NOTE [ Factory ]: run-time helpers reach the edited code as closure cells, never through the
module's globals, which stay the live ones. The outermost statement that holds a function is
compiled inside a function whose parameters are the helpers; names that the statement itself
binds are declared global there, so that they resolve as before. Only code objects are
taken from the result: nothing of it is executed.
"""

import ast
import itertools
import linecache
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from safemodules.errors import SourceError
from safemodules.mutation.source import FunctionSource, SourceFile, compile_module, walk_codes
from safemodules.rewriting.edits import Edit, render, unified_diff
from safemodules.rewriting.outlining import with_plain_forms
from safemodules.rewriting.templates import OUTLINED, PREFIX

_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class EditedFile:
    """A source file after its edits, known to :mod:`linecache` under a name of its own.

    Attributes:
        original: the file as it is.
        edits: what was changed.
        text: the edited text.
        edited: the edited file, parsed under a synthetic name.
    """

    original: SourceFile
    edits: tuple[Edit, ...]
    text: str
    edited: SourceFile
    codes: dict[tuple[int, int], dict[tuple[int, ...], CodeType]]

    @classmethod
    def make(cls, original: SourceFile, edits: Iterable[Edit]) -> "EditedFile":
        """Apply edits to a file and register the result.

        Raises:
            SourceError: the file uses names that are reserved for run-time helpers.
        """
        if PREFIX.encode() in original.data:
            raise SourceError(
                f"{original.filename} uses names with {PREFIX!r}, which stands for the run-time "
                "helpers of edited code. Rename them to convert its functions."
            )
        edits = tuple(sorted(set(edits), key=lambda edit: edit.order))
        text = render(original.data, edits)
        name = f"<safemodules {next(_numbers)} of {original.filename}>"
        # a modification time of None keeps `checkcache` from dropping the entry
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        made = cls(original, edits, text, SourceFile.parse(name, text), {})
        weakref.finalize(made, linecache.cache.pop, name, None)  # a trial makes many
        return made

    def diff(self) -> str:
        """The edits as a unified diff."""
        return unified_diff(self.original.filename, self.original.data.decode(), self.text)

    def holds(self, source: FunctionSource) -> bool:
        """Whether a function of the file has an edit in its text."""
        start, end = self.original.start(source.node), self.original.end(source.node)
        return any(start <= edit.start and edit.end <= end for edit in self.edits)

    def code(self, source: FunctionSource) -> CodeType:
        """The edited code object of a function."""
        index = self.original.definitions.index(source.outermost)
        flags = source.function.__code__.co_flags
        key = (index, flags)
        if key not in self.codes:
            statement = _in_factory(with_plain_forms(self.edited.definitions[index]))
            tree = ast.Module([statement], type_ignores=[])
            module = compile_module(tree, self.edited.filename, flags)
            factory = next(c for c in module.co_consts if isinstance(c, CodeType))
            self.codes[key] = dict(walk_codes(factory, added=OUTLINED))
        code = self.codes[key][source.path]
        original = source.function.__code__
        assert (code.co_name, code.co_firstlineno) == (original.co_name, original.co_firstlineno)
        return code


def _in_factory(statement: ast.stmt) -> ast.stmt:
    ours = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id.startswith(PREFIX)
    ]
    local = {node.id for node in ours if isinstance(node.ctx, ast.Store)}
    names = sorted({node.id for node in ours} - local)
    body: list[ast.stmt] = [statement]
    bound = _bound_names(statement)
    if bound:
        body.insert(0, ast.Global(bound))
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in names],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    template = ast.parse("def _sm_factory(): pass").body[0]
    assert isinstance(template, ast.FunctionDef)
    template.args, template.body = arguments, body
    return ast.fix_missing_locations(template)


def _bound_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    stored = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    inner = {
        node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)
    }  # parameters of lambdas are not bound by the statement
    return sorted(stored - inner)


def rebuild(function: FunctionType, code: CodeType, cells: Mapping[str, CellType]) -> FunctionType:
    """A function like another one, with other code.

    Args:
        function: the original; its globals, defaults, annotations and attributes are kept.
        code: the new code.
        cells: cells by name that are not the original's: helpers, or replaced cells.
    """
    own = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] if name in cells else own[name] for name in code.co_freevars)
    made = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    made.__module__ = function.__module__
    made.__doc__ = function.__doc__
    made.__annotations__ = function.__annotations__
    made.__dict__.update(function.__dict__)
    return made


def helper_names(code: CodeType) -> list[str]:
    """Names of run-time helpers that a code object needs, without the prefix."""
    return [name[len(PREFIX) :] for name in code.co_freevars if name.startswith(PREFIX)]


def cell(value: Any) -> CellType:
    """A closure cell that holds a value."""
    return CellType(value)
