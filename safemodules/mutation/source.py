"""The text of a running function: found, located in its file, and proven to be its text.

NOTE [ Proof of source ]: a file may have been edited since it was imported, and a decorator
may have replaced a function by another one of the same name. So the text found for a
function is compiled again, and must give the very code object that runs. What does not is
refused: an edit of another text would compute something else.
"""

import __future__

import ast
import functools
import hashlib
import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from safemodules.errors import SourceChangedError, SourceError

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FUTURE_FLAGS = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag,
    __future__.all_feature_names,
    0,
)


class NoSourceError(SourceError):
    """A function has no Python source at all: it is built in, or was made by ``exec``."""


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One source file as text, bytes and syntax tree.

    Columns of :mod:`ast` count UTF-8 bytes, so positions are offsets into ``data``.
    """

    filename: str
    data: bytes
    tree: ast.Module
    line_starts: tuple[int, ...]

    @classmethod
    def parse(cls, filename: str, text: str) -> "SourceFile":
        """Parse the text of a file."""
        data = text.encode()
        starts = [0]
        for line in data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return cls(filename, data, ast.parse(text, filename), tuple(starts))

    def start(self, node: ast.AST) -> int:
        """Offset of the first byte of a node."""
        return self.line_starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def end(self, node: ast.AST) -> int:
        """Offset behind the last byte of a node."""
        return self.line_starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined, no-any-return]

    def find(self, token: bytes, position: int) -> int:
        """Offset of the next token of one byte; comments are passed over."""
        while (found := self.data[position : position + 1]) != token:
            if found == b"#":
                position = self.data.index(b"\n", position)
            position += 1
        return position

    def line(self, lineno: int) -> str:
        """Text of a line, counted from 1, without surrounding blanks."""
        return self.data[self.line_starts[lineno - 1] : self.line_starts[lineno]].decode().strip()

    @functools.cached_property
    def definitions(self) -> tuple[ast.stmt, ...]:
        """Outermost functions and classes, and module-level statements that hold lambdas."""
        return tuple(_outermost(self.tree.body))


@dataclass(frozen=True, eq=False)
class FunctionSource:
    """Where the source of a function stands.

    Attributes:
        function: the running function.
        file: its file.
        node: its definition.
        outermost: the outermost statement that contains it; compiled as a whole, so that
            name mangling and closures come out as in the file.
        path: which code constant of which code object it is, from ``outermost`` down.
        class_name: name of the class that mangles private names, or ``None``.
    """

    function: Any  # a FunctionType; as the type of a field mypy would take it for a method
    file: SourceFile
    node: FunctionNode
    outermost: ast.stmt
    path: tuple[int, ...]
    class_name: str | None

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the function's text, which tells whether it changed."""
        text = self.file.data[self.file.start(self.node) : self.file.end(self.node)]
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    @property
    def name(self) -> str:
        """Importable name of the function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


def _outermost(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, _DEFINITIONS):
            yield statement
            continue
        blocks = [getattr(statement, name, None) or [] for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        if any(blocks):
            for block in blocks:
                yield from _outermost(block)
        elif any(isinstance(node, ast.Lambda) for node in ast.walk(statement)):
            yield statement


def first_line(node: ast.AST) -> int:
    """Line that a code object gives as its first: that of the first decorator, if any."""
    decorators = getattr(node, "decorator_list", None)
    return decorators[0].lineno if decorators else node.lineno  # type: ignore[attr-defined, no-any-return]


# What `exec` calls any text. Some Pythons know one of that name, that of `python -c`.
_SHARED_NAMES = frozenset({"<string>", "<stdin>", "<unknown>"})


def _no_source(filename: str) -> NoSourceError:
    return NoSourceError(f"{filename} is no file: the code was built in or made by exec")


_files: dict[str, tuple[str, SourceFile]] = {}


def load_file(filename: str, namespace: dict[str, Any]) -> SourceFile:
    """Read a source file, or the text that stands for one (a notebook cell, a doctest).

    Args:
        filename: the name that code objects give.
        namespace: globals of the module, whose loader may know the text.

    Raises:
        NoSourceError: there is no text, and there never was a file.
        SourceError: the file has vanished, or is not Python.
    """
    linecache.checkcache(filename)
    text = "".join(linecache.getlines(filename, namespace))
    if not text:
        if filename.startswith("<") or not Path(filename).suffix:
            raise _no_source(filename)
        state = "is empty or cannot be read" if os.path.exists(filename) else "has vanished"
        raise SourceError(
            f"the source file {filename} {state}, so its in-place operations cannot be seen. "
            "Restore the file and import it again."
        )
    known = _files.get(filename)
    if known is None or known[0] != text:
        try:
            known = _files[filename] = (text, SourceFile.parse(filename, text))
        except SyntaxError as error:
            if filename in _SHARED_NAMES:
                raise _no_source(filename) from error
            raise SourceChangedError(
                f"the source file {filename} does not parse (line {error.lineno}: {error.msg}), "
                "so it is not the one the running code was compiled from. "
                "Restore the file, or import it again."
            ) from error
    return known[1]


def compile_module(tree: ast.Module, filename: str, flags: int) -> CodeType:
    """Compile a syntax tree with the future features of given code flags."""
    code = compile(tree, filename, "exec", flags=flags & _FUTURE_FLAGS, dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


CodePath = tuple[int, ...]


def walk_codes(
    code: CodeType, path: CodePath = (), *, added: str | None = None
) -> Iterator[tuple[CodePath, CodeType]]:
    """All code objects below one, each with its path: which code constant of which code.

    Args:
        code: where to begin; it has the path itself.
        path: its path.
        added: name of a variable by which code is told that was not in the original; it is
            passed over.
    """
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for index, constant in enumerate(c for c in inner if added not in c.co_varnames):
        yield (*path, index), constant
        yield from walk_codes(constant, (*path, index), added=added)


_compiled: dict[tuple[int, int], tuple[SourceFile, list[tuple[tuple[int, ...], CodeType]]]] = {}


def _codes(file: SourceFile, flags: int) -> list[tuple[tuple[int, ...], CodeType]]:
    """All code objects of a file.

    It is compiled as a whole: names that a module imports are called by other instructions.
    """
    key = (id(file), flags & _FUTURE_FLAGS)
    if key not in _compiled:
        _compiled[key] = file, list(walk_codes(compile_module(file.tree, file.filename, flags)))
    return _compiled[key][1]


def _locate(function: FunctionType, file: SourceFile) -> tuple[ast.stmt, tuple[int, ...]]:
    code = function.__code__
    codes = _codes(file, code.co_flags)
    statement = next(
        (
            statement
            for statement in file.definitions
            if first_line(statement) <= code.co_firstlineno <= (statement.end_lineno or 0)
        ),
        None,
    )
    for path, candidate in codes if statement is not None else ():
        if candidate.co_firstlineno == code.co_firstlineno and candidate == code:
            assert statement is not None
            lines = range(first_line(statement), (statement.end_lineno or 0) + 1)
            # the first code object of the statement: paths count from there
            base = next(p[0] for p, c in codes if len(p) == 1 and c.co_firstlineno in lines)
            return statement, (path[0] - base, *path[1:])
    if file.filename in _SHARED_NAMES:
        raise _no_source(file.filename)
    raise SourceChangedError(
        f"the text of {function.__qualname__} at {file.filename}:{code.co_firstlineno} is not what "
        "the running code was compiled from: the file was edited since it was imported, or the "
        "code was rewritten after. Import it again (restart the process), then convert."
    )


def _body_holds(node: FunctionNode, code: CodeType) -> bool:
    """Whether a lambda's text spans the positions that its code gives (Python 3.11 and later)."""
    if not isinstance(node, ast.Lambda) or not hasattr(code, "co_positions"):
        return True
    body = node.body
    # instructions that stand for no text of their own have a column of 0
    spans = [p for p in code.co_positions() if p[0] is not None and p[2] is not None and p[3]]
    places = [(line, column) for line, _, column, _ in spans]
    start, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    return all(start <= place <= end for place in places)


def _node_of(function: FunctionType, statement: ast.stmt) -> tuple[FunctionNode, str | None]:
    code = function.__code__
    found: list[tuple[FunctionNode, str | None]] = []

    def visit(node: ast.AST, class_name: str | None) -> None:
        if (
            isinstance(node, _FUNCTION_NODES)
            and getattr(node, "name", "<lambda>") == code.co_name
            and first_line(node) == code.co_firstlineno
            and _body_holds(node, code)
        ):
            found.append((node, class_name))
        inner = node.name if isinstance(node, ast.ClassDef) else class_name
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(statement, None)
    if len(found) != 1:
        raise SourceError(
            f"{len(found)} functions at {code.co_filename}:{code.co_firstlineno} could be "
            f"{function.__qualname__}: write one lambda a line."
        )
    return found[0]


@functools.lru_cache(maxsize=4096)
def _source_of(function: FunctionType, file: SourceFile) -> FunctionSource:
    statement, path = _locate(function, file)
    node, class_name = _node_of(function, statement)
    return FunctionSource(function, file, node, statement, path, class_name)


def source_of(function: FunctionType) -> FunctionSource:
    """Find the source of a running function and prove that it is what runs.

    Args:
        function: a Python function, not a method and not a built-in.

    Raises:
        NoSourceError: the function has no source.
        SourceChangedError: the file is not the one that the code was compiled from.
        SourceError: the file has vanished, or two functions cannot be told apart.

    Example:
        >>> import torchvision.models.resnet as resnet
        >>> found = source_of(resnet.BasicBlock.forward)
        >>> found.node.name, found.class_name
        ('forward', 'BasicBlock')
    """
    return _source_of(function, load_file(function.__code__.co_filename, function.__globals__))
