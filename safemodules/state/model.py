"""Snapshot of a whole module tree."""

import argparse
import contextlib
import enum
import sys
import types
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from safemodules.errors import StateError
from safemodules.state.places import (
    ArrayPlace,
    DictPlace,
    GeneratorPlace,
    ListPlace,
    Place,
    SetPlace,
    SlotsPlace,
    is_generator,
)
from safemodules.state.randomness import RandomState
from safemodules.state.tensors import TensorRecord

__all__ = ["ModelState", "holds_state", "module_tensors", "preserved", "slot_names"]

# Objects of these packages keep no state of a user's model; theirs are webs and caches.
_FOREIGN: Final = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"collections"}
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace)
_NOT_ENTERED: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    enum.Enum,
)
_LAZY: Final = (UninitializedParameter, UninitializedBuffer)
# A module keeps these three apart from its attributes: their entries are named directly.
_REGISTRIES: Final = frozenset({"_parameters", "_buffers", "_modules"})


class _Record(Protocol):
    def restore(self) -> str | None:
        """Put a value back; return what cannot be mended."""


class _PlaceRecord:
    """A place and the content that it had."""

    def __init__(self, place: Place) -> None:
        self.place, self.content = place, place.now()

    def restore(self) -> None:
        """Put the content back."""
        self.place.put(self.content)


def slot_names(obj: object) -> tuple[str, ...]:
    """Return the names that the classes of an object declare as ``__slots__``."""
    names: list[str] = []
    for cls in type(obj).__mro__:
        declared = cls.__dict__.get("__slots__", ())
        names += [declared] if isinstance(declared, str) else list(declared)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def holds_state(obj: object) -> bool:
    """Tell whether the attributes of a plain object belong to the model's state."""
    if isinstance(obj, (nn.Module, *_NAMESPACES)):
        return True
    return type(obj).__module__.partition(".")[0] not in _FOREIGN


class _Walker:
    """Visits everything that hangs on a model once, and records it."""

    def __init__(self, model: nn.Module, copy_parameters: bool | Collection[str]) -> None:
        self.records: list[Any] = []
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, object] = {}  # holds the objects, so that no id is reused
        self._stack: list[tuple[str, object]] = [("", model)]
        names = copy_parameters if not isinstance(copy_parameters, bool) else ()
        self._copied: set[int] = set()
        self._parameter_memory: set[int] = set()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if copy_parameters is True or name in names:
                self._copied.add(id(parameter))
            elif not isinstance(parameter, _LAZY) and parameter.layout == torch.strided:
                self._parameter_memory.add(parameter.untyped_storage().data_ptr())
        self._parameter_memory.discard(0)
        for module in model.modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
                self._copied.add(id(module.weight))
        # A ScriptModule keeps its tensors where no attribute shows them.
        self._stack += [(name, buffer) for name, buffer in model.named_buffers()]
        self._stack += [(name, parameter) for name, parameter in model.named_parameters()]

    def walk(self) -> None:
        while self._stack:
            path, obj = self._stack.pop()
            if id(obj) in self._seen:
                continue
            self._seen[id(obj)] = obj
            self._visit(path, obj)

    def _visit(self, path: str, obj: object) -> None:
        if isinstance(obj, Tensor):
            self._visit_tensor(path, obj)
        elif isinstance(obj, dict):
            self._record(DictPlace(obj))
            self._push(path, ((f"[{key!r}]", value) for key, value in obj.items()))
        elif isinstance(obj, (list, deque)):
            self._record(ListPlace(obj))
            self._push(path, ((f"[{i}]", value) for i, value in enumerate(obj)))
        elif isinstance(obj, tuple):
            self._push(path, ((f"[{i}]", value) for i, value in enumerate(obj)))
        elif isinstance(obj, set):
            self._record(SetPlace(obj))
        elif not self._visit_generator(obj) and not isinstance(obj, _NOT_ENTERED):
            self._visit_object(path, obj)

    def _push(self, path: str, children: Iterator[tuple[str, object]]) -> None:
        self._stack += [(path + suffix, value) for suffix, value in children]

    def _visit_tensor(self, path: str, tensor: Tensor) -> None:
        if isinstance(tensor, _LAZY):
            return
        self.tensors[path] = tensor
        watched = isinstance(tensor, nn.Parameter)
        if not watched and tensor.layout == torch.strided and not tensor.is_meta:
            watched = tensor.untyped_storage().data_ptr() in self._parameter_memory
        copied = id(tensor) in self._copied or not watched
        self.records.append(TensorRecord(path, tensor, copy_values=copied))

    def _visit_generator(self, obj: object) -> bool:
        """Record a random generator or an array; tell whether it was one."""
        numpy: Any = sys.modules.get("numpy")
        if is_generator(type(obj)):
            self._record(GeneratorPlace(obj))
        elif numpy is not None and isinstance(obj, numpy.ndarray):
            self._record(ArrayPlace(obj))
        else:
            return False
        return True

    def _record(self, place: Place) -> None:
        self.records.append(_PlaceRecord(place))

    def _visit_object(self, path: str, obj: object) -> None:
        if not holds_state(obj):
            return
        names = slot_names(obj)
        if names:
            place = SlotsPlace(obj, names)
            self._record(place)
            self._push(path, ((f".{name}", value) for name, value in place.now().items()))
        namespace = getattr(obj, "__dict__", None)
        if not isinstance(namespace, dict):
            return
        self._record(DictPlace(namespace))
        self._seen[id(namespace)] = namespace
        prefix = f"{path}." if path else ""
        for name, value in namespace.items():
            if name in _REGISTRIES and isinstance(obj, nn.Module) and isinstance(value, dict):
                self._seen[id(value)] = value
                self._record(DictPlace(value))
                self._stack += [(prefix + key, child) for key, child in value.items()]
            else:
                self._stack.append((prefix + name, value))


class ModelState:
    """The state of a model at one moment, to which it can be set back any number of times.

    Recorded are, over the whole module tree: buffers and other tensors with their values,
    which object each name stands for, numbers, strings, lists, dicts, sets, deques, arrays,
    random generators and plain objects in attributes, training flags, hooks, and for every
    leaf its ``.grad`` and ``requires_grad``; besides, all random number streams.

    Parameters are not copied but watched, see NOTE [ Parameters Are Watched, Not Copied ]
    in ``state/tensors.py``. What a run keeps outside the module tree (globals, closures,
    iterators, files) is not seen.

    Example:
        >>> import torch
        >>> from safemodules.state import ModelState
        >>> net = torch.nn.BatchNorm1d(2)
        >>> state = ModelState.capture(net)
        >>> _ = net(torch.randn(4, 2))
        >>> int(net.num_batches_tracked)
        1
        >>> state.restore()
        >>> int(net.num_batches_tracked)
        0
    """

    def __init__(self, records: Collection[_Record], randomness: RandomState) -> None:
        self._records = tuple(records)
        self._randomness = randomness

    @classmethod
    def capture(
        cls, model: nn.Module, *, copy_parameters: bool | Collection[str] = False
    ) -> "ModelState":
        """Record the present state.

        Args:
            model: An initialised module.
            copy_parameters: Names of parameters that a run may overwrite, or True for all:
                these are copied and restored. ``nn.Embedding`` weights under ``max_norm``
                always are.
        """
        walker = _Walker(model, copy_parameters)
        with torch.inference_mode(False):
            walker.walk()
        return cls(walker.records, RandomState.capture())

    def restore(self) -> None:
        """Put everything back.

        Raises:
            StateError: A watched parameter or a ``.grad`` was overwritten, or a buffer is a
                view that became part of a graph. All else has been restored.
        """
        with torch.inference_mode(False):
            problems = [problem for record in self._records if (problem := record.restore())]
        self._randomness.restore()
        if problems:
            more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
            raise StateError(
                f"A run of the model changed what cannot be put back: "
                f"{'; '.join(problems[:3])}{more}. Parameters and gradients are not copied "
                f"before a run. Run a copy.deepcopy of the model, or pass copy_parameters=True "
                f"(or the names of those that forward overwrites) to have them restored."
            )


@contextlib.contextmanager
def preserved(
    model: nn.Module, *, copy_parameters: bool | Collection[str] = False
) -> Iterator[ModelState]:
    """Leave a model and the random number streams as they were, whatever happens inside.

    Args:
        model: An initialised module.
        copy_parameters: See :meth:`ModelState.capture`.

    Yields:
        The state, to which the model may also be set back within the block.

    Raises:
        StateError: A parameter was changed, see :meth:`ModelState.restore`.

    Example:
        >>> import torch
        >>> from safemodules.state import preserved
        >>> net = torch.nn.Dropout()
        >>> with preserved(net):
        ...     _ = net.eval()
        >>> net.training
        True
    """
    state = ModelState.capture(model, copy_parameters=copy_parameters)
    try:
        yield state
    finally:
        state.restore()


def module_tensors(model: nn.Module) -> dict[str, Tensor]:
    """List every tensor that hangs on a model, parameters and buffers included, by path."""
    walker = _Walker(model, False)
    walker.walk()
    return walker.tensors
