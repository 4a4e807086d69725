"""In inference a converted model overwrites as its original does, and needs no more memory.

NOTE [ Entry ]: where gradients were off when the outermost forward of the converted model was
entered, no graph can hold what is overwritten, so the original's own behaviour is exact: sites
in source overwrite, and flags are set again until the forward returns. A ``no_grad`` block
inside a training forward does not count: an operation before it may have saved the tensor.
Compiled and traced code is left alone.

NOTE [ Flags of two threads ]: a flag is seen by every thread. While any thread is in a
training forward, flags stay off; one that begins switches off what an inference has switched
on, which then goes on out of place, as it may at any time.
"""

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# Kept in the __dict__ of a module whose flag was switched off: where the flag stood before.
FLAG_MARK = "_safemodules_inplace"
_FLAG = "inplace"


class _Thread(threading.local):
    """What the outermost forward of this thread was entered for."""

    training = False
    inference = False


_thread = _Thread()
_lock = threading.Lock()
_trainings = 0  # training forwards that run, in all threads
_switched: list[nn.Module] = []  # whose flags an inference has set again


def overwrites() -> bool:
    """Whether a swapped site may overwrite after all, see NOTE [ Entry ]."""
    if torch.compiler.is_compiling():
        return False
    return _thread.inference and not torch.is_grad_enabled()


def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """``__call__`` of the class of a converted model."""
    if torch.compiler.is_compiling() or _thread.training or _thread.inference:
        return nn.Module.__call__(self, *args, **kwargs)
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return nn.Module.__call__(self, *args, **kwargs)
    if torch.is_grad_enabled():
        return _train(self, args, kwargs)
    return _infer(self, args, kwargs)


def _train(model: nn.Module, args: Any, kwargs: Any) -> Any:
    global _trainings
    with _lock:
        _trainings += 1
        _switch_off()
    _thread.training = True
    try:
        return nn.Module.__call__(model, *args, **kwargs)
    finally:
        _thread.training = False
        with _lock:
            _trainings -= 1


def _infer(model: nn.Module, args: Any, kwargs: Any) -> Any:
    with _lock:
        if not _trainings:
            for module in _switched_off(model):
                module.__dict__[_FLAG] = True
                _switched.append(module)
    _thread.inference = True
    try:
        return nn.Module.__call__(model, *args, **kwargs)
    finally:
        _thread.inference = False
        with _lock:
            _switch_off()


def _switched_off(model: nn.Module) -> Iterator[nn.Module]:
    """Modules whose flag a conversion has switched off on the instance."""
    for module in model.modules():
        state = module.__dict__
        if FLAG_MARK in state and state.get(_FLAG) is False:
            yield module


def _switch_off() -> None:
    for module in _switched:
        module.__dict__[_FLAG] = False
    _switched.clear()


class out_of_place:  # noqa: N801  # a context manager, which reads as a function
    """Runs in which swapped sites never overwrite: what is compared is the swapped code."""

    def __enter__(self) -> None:
        self._before = _thread.training
        _thread.training = True

    def __exit__(self, *exception: object) -> None:
        _thread.training = self._before
