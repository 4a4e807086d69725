"""Which line of whose code runs an operation, and in which module.

The innermost frame outside torch is where the operation is written; where that is a
library's, the innermost frame outside installed packages is the user's call of it.
"""

import linecache
import os
import re
import sys
import sysconfig
import weakref
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FrameType
from typing import NamedTuple

from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from safemodules.mutation.resolution import is_foreign

_PACKAGES = tuple(
    {os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "platlib")}
)
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Whose frames call the model; what lies below them is no part of it.
_DIAGNOSE = os.path.join(_OURS, "diagnosis", "diagnose.py")
_EDITED = re.compile(r"<safemodules \d+ of (.*)>", re.DOTALL)

Position = tuple[CodeType, int]


class Owner(Enum):
    """Whose code a frame runs."""

    TORCH = "torch"
    OPTIMIZER = "optimizer"
    CALL = "module call"
    CHECKPOINT = "checkpoint"
    DIAGNOSIS = "diagnosis"
    LIBRARY = "library"
    USER = "user"


# The forward of reentrant checkpointing; it also recomputes in backward.
_REENTRANT = frozenset({CheckpointFunction.forward.__code__, CheckpointFunction.backward.__code__})
# By id, since hashing a code object reads all of it; the objects are kept, so that no id is
# used again.
_owners: dict[int, tuple[Owner, CodeType]] = {}


def real_filename(filename: str) -> str:
    """The file of a line of code, where the code was edited: that of the original.

    Example:
        >>> real_filename("<safemodules 3 of net.py>"), real_filename("net.py")
        ('net.py', 'net.py')
    """
    match = _EDITED.fullmatch(filename)
    return match[1] if match else filename


def _owner(code: CodeType) -> Owner:
    known = _owners.get(id(code))
    if known is None:
        known = _owners[id(code)] = _classify(real_filename(code.co_filename)), code
    return known[0]


_owners[id(nn.Module._call_impl.__code__)] = Owner.CALL, nn.Module._call_impl.__code__


def _classify(filename: str) -> Owner:
    absolute = os.path.abspath(filename)  # of `safemodules/../net.py` too, which is not ours
    path = absolute.replace(os.sep, "/")
    if path.endswith("torch/utils/checkpoint.py"):
        return Owner.CHECKPOINT
    if "/torch/optim/" in path and is_foreign(filename):
        return Owner.OPTIMIZER
    if absolute == _DIAGNOSE:
        return Owner.DIAGNOSIS
    if is_foreign(filename) or absolute.startswith(_OURS):
        return Owner.TORCH
    return Owner.LIBRARY if absolute.startswith(_PACKAGES) else Owner.USER


@dataclass(frozen=True)
class Line:
    """One line of code that ran.

    Attributes:
        filename: its real file.
        lineno: counted from 1.
        source: its text, without surrounding blanks.
    """

    filename: str
    lineno: int
    source: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno} `{self.source}`"


class Where(NamedTuple):
    """Where an operation ran; lines are looked up only when they are asked for.

    Attributes:
        position: the innermost code outside torch, and its line.
        caller: the same of the user's call, where ``position`` is in a library.
        region: the call of ``checkpoint``, where it ran inside a checkpointed region.
        module_ref: weak reference to the innermost module whose call was running.
        root_ref: weak reference to the outermost one.
        optimizer: an optimizer did it.
        reentrant: the checkpointed region is a reentrant one.
    """

    position: Position
    caller: Position | None = None
    region: Position | None = None
    module_ref: "weakref.ref[nn.Module] | None" = None
    root_ref: "weakref.ref[nn.Module] | None" = None
    optimizer: bool = False
    reentrant: bool = False

    @property
    def module(self) -> nn.Module | None:
        """The innermost module whose call was running, while it lives."""
        return None if self.module_ref is None else self.module_ref()

    @property
    def root(self) -> nn.Module | None:
        """The outermost module whose call was running, while it lives."""
        return None if self.root_ref is None else self.root_ref()

    @property
    def line(self) -> Line:
        """The line of the operation."""
        return line_at(self.position)

    @property
    def called_at(self) -> Line | None:
        """The user's line, where the operation is written in a library."""
        return None if self.caller is None else line_at(self.caller)

    @property
    def checkpointed(self) -> bool:
        """It ran inside a checkpointed region."""
        return self.region is not None


def line_at(position: Position) -> Line:
    """Look a line up."""
    code, lineno = position
    filename = real_filename(code.co_filename)
    source = linecache.getline(filename, lineno) or linecache.getline(code.co_filename, lineno)
    return Line(filename, lineno, source.strip())


def locate(skip: int = 1) -> Where:
    """Find where the calling operation is written.

    Args:
        skip: frames to leave out, the caller's own included.
    """
    return locate_from(sys._getframe(skip))


def locate_from(frame: FrameType | None) -> Where:
    """Find where what a frame does is written."""
    found: FrameType | None = None
    last = frame
    caller: Position | None = None
    region: Position | None = None
    inner: FrameType | None = None
    outer: FrameType | None = None
    forward: FrameType | None = None
    library = optimizer = checkpointed = reentrant = False
    owners, torch, call = _owners, Owner.TORCH, Owner.CALL
    while frame is not None:
        code = frame.f_code
        known = owners.get(id(code))
        owner = _owner(code) if known is None else known[0]
        if owner is call:
            outer = frame
            if inner is None:
                inner, forward = frame, last
        elif owner is Owner.CHECKPOINT:
            checkpointed = True
            reentrant = reentrant or code in _REENTRANT
        elif owner is Owner.OPTIMIZER:
            optimizer = optimizer or found is None
        elif owner is Owner.DIAGNOSIS:
            break
        elif owner is not torch:
            if found is None:
                found, library = frame, owner is Owner.LIBRARY
            elif library and caller is None and owner is Owner.USER:
                caller = code, frame.f_lineno
            if checkpointed and region is None:
                region = code, frame.f_lineno
        last, frame = frame, frame.f_back
    found = found or forward or last  # torch's own forward, where no other code is involved
    assert found is not None
    position = found.f_code, found.f_lineno
    if checkpointed and region is None:
        region = position
    module, root = _module_of(inner), _module_of(outer)
    return Where(position, caller, region, module, root, optimizer, reentrant)


def _module_of(frame: FrameType | None) -> "weakref.ref[nn.Module] | None":
    """The module whose call a frame is."""
    return None if frame is None else weakref.ref(frame.f_locals["self"])


def locate_function(frame: FrameType | None) -> Where | None:
    """Where the autograd Function is applied whose ``forward`` is running, if one is.

    Its frame is that of a ``forward`` which no module's call has entered; C++ stands between.
    """
    forward: FrameType | None = None
    while frame is not None:
        back = frame.f_back
        if frame.f_code.co_name == "forward" and back is not None:
            if _owner(back.f_code) is not Owner.CALL:
                forward = frame
        frame = back
    if forward is None:
        return None
    where = locate_from(forward.f_back)
    return where._replace(reentrant=True) if forward.f_code in _REENTRANT else where
