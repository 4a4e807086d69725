"""Who calls a function of torch: the model, or what shards it.

Told by the files that the code on the stack is of; ``tests/test_memory_budget.py`` and
``tests/test_distributed.py`` fail where a version of torch has them elsewhere.
"""

import functools
import os
from types import CodeType, FrameType
from typing import Final

import torch

__all__ = ["is_sharding"]

_TORCH: Final = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_SHARDING: Final = os.path.join(_TORCH, "distributed") + os.sep
# Files through which somebody else's call of a function comes.
_BETWEEN: Final = frozenset(
    os.path.join(_TORCH, *name.split("/"))
    for name in (
        "_ops.py",
        "_tensor.py",
        "autograd/grad_mode.py",
        "autograd/profiler.py",
        "functional.py",
        "nn/functional.py",
        "overrides.py",
        "utils/_contextlib.py",
    )
)


def is_sharding(frame: FrameType | None) -> bool:
    """Whether a call is made by what shards a model, in hooks around its modules.

    Args:
        frame: the innermost frame of the call.
    """
    while frame is not None:
        found = _is_sharding_code(frame.f_code)
        if found is not None:
            return found
        frame = frame.f_back
    return False


@functools.cache
def _is_sharding_code(code: CodeType) -> bool | None:
    """``None`` if somebody else calls through this code."""
    file = code.co_filename
    return None if file in _BETWEEN else file.startswith(_SHARDING)
