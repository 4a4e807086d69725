"""Converted models straight from torchvision's builders.

NOTE [ What is patched ]
A builder is what ``torchvision.models.list_models()`` lists. While at least one
:func:`converted_models` block is open, every attribute of a loaded ``torchvision.models``
module that is a builder, or ``get_model_builder``, is bound to a wrapper. ``get_model``
looks its builder up through ``get_model_builder``, so it follows wherever it was imported.
torchvision's registry is not touched. A wrapper converts only where the calling context has
a block open; elsewhere it hands on what the builder returns. That makes it harmless in
other threads, and in the hands of whoever kept a wrapper after the last block closed.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

import torchvision.models
from torch import nn

import safemodules as sm

__all__ = ["converted_models"]

Builder = Callable[..., nn.Module]

#: Options of the innermost open block, or None where builders shall return plain models.
_options: ContextVar[Mapping[str, Any] | None] = ContextVar("_options", default=None)


@contextmanager
def converted_models(**options: Any) -> Iterator[None]:
    """Let torchvision's model builders return converted models.

    Builders are reached as ``torchvision.models.resnet50``, through ``get_model(name)`` and
    ``get_model_builder(name)``, and in ``detection``, ``segmentation``, ``video``,
    ``optical_flow`` and ``quantization``. A backbone built on the way to a larger model is
    converted with that model, once. When the block ends, also by an exception, torchvision
    is as it was.

    Blocks nest; the innermost one's options hold. A block is seen by the thread (and the
    :mod:`asyncio` task) that opened it: other threads get plain models throughout.

    A function imported earlier by name (``from torchvision.models import resnet50``) is out
    of reach and keeps returning plain models.

    Args:
        **options: Keyword arguments of :func:`safemodules.convert_model`, used for each
            model built.

    Yields:
        Nothing.

    Raises:
        SafeModulesError: From a builder, if its model cannot be converted.

    Example:
        >>> import torchvision
        >>> import safemodules as sm
        >>> from safemodules.integrations.torchvision import converted_models
        >>> with converted_models():
        ...     net = torchvision.models.resnet18()
        >>> sm.is_converted(net)
        True
    """
    token = _options.set(options)
    try:
        _patch.acquire()
        try:
            yield
        finally:
            _patch.release()
    finally:
        _options.reset(token)


class _Patch:
    """The wrappers in torchvision's modules, in place while at least one block is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._replaced: list[tuple[ModuleType, str, Any, Any]] = []  # module, name, old, new

    def acquire(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._install()
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._remove()

    def _install(self) -> None:
        get_builder = torchvision.models.get_model_builder
        wrappers: dict[FunctionType, Any] = {
            builder: _wrap_builder(builder)
            for builder in map(get_builder, torchvision.models.list_models())
            if isinstance(builder, FunctionType)
        }
        wrappers[get_builder] = _wrap_lookup(get_builder, wrappers)
        try:
            for module in _modules():
                for name, value in list(vars(module).items()):
                    wrapper = wrappers.get(value) if isinstance(value, FunctionType) else None
                    if wrapper is not None:
                        self._replaced.append((module, name, value, wrapper))
                        setattr(module, name, wrapper)
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        for module, name, original, wrapper in reversed(self._replaced):
            # Whoever bound the name anew while a block was open is not to be overruled.
            if vars(module).get(name) is wrapper:
                setattr(module, name, original)
        self._replaced.clear()


_patch = _Patch()


def _modules() -> list[ModuleType]:
    package = torchvision.models.__name__
    return [
        module
        for name, module in list(sys.modules.items())
        if name == package or name.startswith(f"{package}.")
    ]


def _wrap_builder(builder: Builder) -> Builder:
    @functools.wraps(builder)
    def build(*args: Any, **kwargs: Any) -> nn.Module:
        options = _options.get()
        if options is None:
            return builder(*args, **kwargs)
        # What the builder itself builds is part of its model: converted with it, not before.
        token = _options.set(None)
        try:
            model = builder(*args, **kwargs)
        finally:
            _options.reset(token)
        return sm.convert_model(model, **options)

    return build


def _wrap_lookup(
    get_builder: Callable[[str], Builder], wrappers: Mapping[Any, Builder]
) -> Callable[[str], Builder]:
    @functools.wraps(get_builder)
    def get_model_builder(name: str) -> Builder:
        builder = get_builder(name)
        wrapper = wrappers.get(builder) if isinstance(builder, FunctionType) else None
        # A model that was registered while the block was open has no wrapper yet.
        return _wrap_builder(builder) if wrapper is None else wrapper

    return get_model_builder
