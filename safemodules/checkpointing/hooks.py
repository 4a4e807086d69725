"""Hooks that watch what a region saves, and hand it on to the hooks that were there.

NOTE [ Chained, not replaced ]: non-reentrant checkpointing works through saved-tensor hooks of
its own. Others entered inside of them would displace them, and nothing would be checkpointed.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor

from safemodules.checkpointing.versions import Token
from safemodules.errors import CheckpointError
from safemodules.mutation.internals import top_saved_tensor_hooks

__all__ = ["versions_watched"]

_LIBRARIES: Final = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    "<",
)
# By the id of code, which is quicker to look up; the code is kept, so that no other gets it.
_library_code: dict[int, tuple[bool, CodeType]] = {}


def _line_of_user() -> tuple[CodeType, int]:
    """Code and line that the user's frame nearest to this one is at."""
    frame = sys._getframe(2)
    while True:
        code = frame.f_code
        known = _library_code.get(id(code)) or _look_at(code)
        outer = frame.f_back
        if outer is None or not known[0]:
            return code, frame.f_lineno
        frame = outer


def _look_at(code: CodeType) -> tuple[bool, CodeType]:
    found = code.co_filename.startswith(_LIBRARIES), code
    _library_code[id(code)] = found
    return found


@contextmanager
def versions_watched(region: object) -> Iterator[None]:
    """Raise, as plain autograd does, where a tensor saved in this block was overwritten.

    Args:
        region: the region; ``str`` of it is for messages.
    """
    pack_inner, unpack_inner = top_saved_tensor_hooks()

    def pack(tensor: Tensor) -> Any:
        return pack_inner(tensor), Token(tensor), _line_of_user()

    def unpack(packed: Any) -> Any:
        inner, token, (code, line) = packed
        if token.is_stale:
            raise CheckpointError(
                f"one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: {token}, saved at {code.co_filename}:{line} in "
                f"{code.co_name} inside the checkpointed region {region}, is at version "
                f"{token.found}; expected version {token.version} instead. "
                f"safemodules.diagnose(model, inputs) names the line that overwrote it, "
                f"safemodules.convert_model mends it."
            )
        return unpack_inner(inner)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
