"""The walk over everything that a region may read.

It starts at the function and its arguments and follows closures, defaults, bound objects,
attributes, containers and the global variables that code names. Of each it notes the place
and its content; tensors in the content are replaced by what is held of them.
"""

import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from safemodules.checkpointing.held import Copied, Held, Kept, Saved, is_parameter
from safemodules.checkpointing.names import (
    facts,
    functions_of_class,
    global_names,
    is_foreign,
    is_wrapper,
)
from safemodules.checkpointing.packing import Consumed, Packed, Path
from safemodules.checkpointing.tables import (
    IGNORED_ATTRIBUTES,
    SAVES_TOO_EARLY,
    always_copied,
)
from safemodules.mutation.internals import REGISTRIES
from safemodules.state import holds_state, slot_names
from safemodules.state.places import (
    ArrayPlace,
    AttributesPlace,
    CellPlace,
    DefaultsPlace,
    DictPlace,
    EmptyPlace,
    EntryPlace,
    GeneratorPlace,
    ListPlace,
    Place,
    SetPlace,
    SlotsPlace,
    is_generator,
)

__all__ = ["COPIED_BYTES", "Walk"]

# What needs no gradient and is smaller is copied without asking whether anybody writes it.
COPIED_BYTES: Final = 2**20
# Containers with more entries are noted, and not searched.
SEARCHED_ENTRIES: Final = 10_000
_ATOMS: Final = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), type(...), type, types.ModuleType),
        *(types.BuiltinFunctionType, torch.dtype, torch.device, torch.Size, torch.memory_format),
    }
)

# Parameters of other classes are exchanged by whoever shards them, with hooks of its own.
_EXCHANGED: Final = (nn.Parameter, UninitializedParameter)
_UNINITIALISED: Final = (UninitializedParameter, UninitializedBuffer)
_INITIALISED: Final = (Tensor, nn.Parameter)  # `isinstance` asks a metaclass, which takes longer
_SIMPLE: Final = (nn.Parameter, Tensor, type(None))
_DICTS: Final = (dict, OrderedDict)


class Walk:
    """One walk.

    Attributes:
        places: every place met.
        contents: their contents, and whether something in them is packed.
        tensors: the tensors, by what is held of them.
        modules: the modules.
        may_overwrite: something is set or written so that it might overwrite a tensor.
        devices: where the tensors are.
        is_lazy: an uninitialised module was met.
        may_stop_early: a recomputation may end as soon as everything is saved.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.contents: list[tuple[Any, bool]] = []
        self.tensors: dict[Held, Tensor] = {}
        self.modules: list[nn.Module] = []
        self.may_overwrite = False
        self.devices: set[torch.device] = set()
        self.is_lazy = False
        self.may_stop_early = True
        self._empty: list[dict[Any, Any]] = []
        self._variables: set[object] = set()
        # What was met, alive so that no id is used twice, and what stands for it.
        self._met: dict[int, tuple[object, Any]] = {}

    def pack(self, value: Any, path: Path) -> Any:
        """Note a value and what it leads to; returns what stands for it in a content."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        known = self._met.get(id(value))
        if known is not None:
            return known[1]
        return _handler(kind)(self, value, path)  # type: ignore[arg-type]

    def _note(self, place: Place, content: Any, is_packed: bool) -> None:
        self.places.append(place)
        self.contents.append((content, is_packed))

    def _note_value(self, place: Place, value: Any, path: Path) -> None:
        content = self.pack(value, path)
        self._note(place, content, content is not value)

    def note_empty(self) -> None:
        """Note the dicts that were met and are empty; for the end of the walk."""
        if self._empty:
            self._note(EmptyPlace(self._empty), [], False)

    # -- tensors ----------------------------------------------------------------------------

    def visit_tensor(self, tensor: Tensor, path: Path) -> Any:
        """Hold a tensor."""
        if type(tensor) not in _INITIALISED and isinstance(tensor, _UNINITIALISED):
            self.is_lazy = True
            return tensor
        return self._hold(tensor, _kind(tensor)(tensor, path))

    def _hold(self, tensor: Tensor, held: Held) -> Held:
        self.devices.add(tensor.device)
        self.tensors[held] = tensor
        self._met[id(tensor)] = tensor, held
        return held

    # -- modules and objects ----------------------------------------------------------------

    def visit_module(self, module: nn.Module, path: Path) -> Any:
        """Note the attributes, parameters, buffers, children and forward hooks of a module."""
        self._met[id(module)] = module, module
        self.modules.append(module)
        if type(module).__name__ in SAVES_TOO_EARLY:
            self.may_stop_early = False
        if module.__dict__.get("inplace"):
            self.may_overwrite = True
        for name in always_copied(module):
            tensor = getattr(module, name)
            if isinstance(tensor, Tensor) and id(tensor) not in self._met:
                self._hold(tensor, Copied(tensor, Path(path, ".{}", name)))
        namespace = module.__dict__
        content, is_packed = dict(namespace), False
        for name, value in namespace.items():
            kind = type(value)
            if kind in _ATOMS or name in IGNORED_ATTRIBUTES:
                continue
            if kind in _DICTS and not value:
                self._empty.append(value)
            elif name in REGISTRIES:
                self._registry(value, path)
            else:
                inner = Path(path, ".{}", name)
                found = (self._state if isinstance(value, Tensor) else self.pack)(value, inner)
                if found is not value:
                    content[name], is_packed = found, True
        self._note(DictPlace(namespace), content, is_packed)
        self._class(type(module), path)
        return module

    def _state(self, tensor: Tensor, path: Path) -> Any:
        """Hold a tensor that a module keeps: copied if it is small, even if it has a graph."""
        if is_parameter(tensor) or id(tensor) in self._met or not _is_small(tensor):
            return self.pack(tensor, path)
        return self._hold(tensor, Copied(tensor, path))

    def _registry(self, registry: dict[str, Any], path: Path) -> None:
        for value in registry.values():
            if type(value) not in _SIMPLE and is_parameter(value):
                if type(value) not in _EXCHANGED:
                    return
        self._met[id(registry)] = registry, registry
        self._note(DictPlace(registry), *self._pack_entries(registry, path, ".{}"))

    def _class(self, cls: type, path: Path) -> None:
        for function in functions_of_class(cls):
            self.pack(function, path)

    def visit_object(self, obj: Any, path: Path) -> Any:
        """Note the attributes of an object that may hold state."""
        self._met[id(obj)] = obj, obj
        if not holds_state(obj):
            return obj
        slots = slot_names(obj)
        if slots:
            place = SlotsPlace(obj, slots)
            self._note(place, *self._pack_entries(place.now(), path, ".{}"))
        namespace = getattr(obj, "__dict__", None)
        if isinstance(namespace, dict):
            self._note(DictPlace(namespace), *self._pack_entries(namespace, path, ".{}"))
        self._class(type(obj), path)
        return obj

    # -- containers -------------------------------------------------------------------------

    def _pack_entries(
        self, entries: Mapping[Any, Any], path: Path, step: str
    ) -> tuple[dict[Any, Any], bool]:
        content, is_packed = dict(entries), False
        if len(content) > SEARCHED_ENTRIES:
            return content, False
        for key, value in entries.items():
            if type(value) not in _ATOMS:
                found = self.pack(value, Path(path, step, key))
                if found is not value:
                    content[key], is_packed = found, True
        return content, is_packed

    def _pack_items(self, items: Collection[Any], path: Path) -> tuple[list[Any], bool]:
        content, is_packed = list(items), False
        if len(content) > SEARCHED_ENTRIES or _ATOMS.issuperset(map(type, content)):
            return content, False
        for index, value in enumerate(content):
            found = self.pack(value, Path(path, "[{}]", index))
            if found is not value:
                content[index], is_packed = found, True
        return content, is_packed

    def visit_mapping(self, mapping: dict[Any, Any], path: Path) -> Any:
        """Note the entries of a dict."""
        self._met[id(mapping)] = mapping, mapping
        place = DictPlace(mapping)
        self._note(place, *self._pack_entries(place.now(), path, "[{!r}]"))
        return mapping

    def visit_sequence(self, items: "list[Any] | deque[Any]", path: Path) -> Any:
        """Note the items of a list or a deque."""
        self._met[id(items)] = items, items
        self._note(ListPlace(items), *self._pack_items(items, path))
        return items

    def visit_set(self, members: "set[Any]", path: Path) -> Any:
        """Note the members of a set."""
        self._met[id(members)] = members, members
        self._note(SetPlace(members), frozenset(members), False)
        return members

    def visit_tuple(self, items: tuple[Any, ...], path: Path) -> Any:
        """Pack a tuple that holds tensors; note what another leads to."""
        parts, is_packed = self._pack_items(items, path)
        packed: Any = items
        if is_packed:
            kind: Any = type(items)
            packed = Packed(getattr(kind, "_make", kind), parts)
        self._met[id(items)] = items, packed
        return packed

    # -- what is called ---------------------------------------------------------------------

    def visit_function(self, function: types.FunctionType, path: Path) -> Any:
        """Note the closure, the defaults and the global variables of a function."""
        self._met[id(function)] = function, function
        if is_foreign(function.__module__) and not is_wrapper(function):
            return function
        code = facts(function.__code__)
        if not SAVES_TOO_EARLY.isdisjoint(code.names):
            self.may_stop_early = False
        self.may_overwrite |= code.may_overwrite
        free = function.__code__.co_freevars
        for name, cell in zip(free, function.__closure__ or (), strict=True):
            self._variable(CellPlace(cell), id(cell), name)
        scope = function.__globals__
        for name in global_names(function):
            self._variable(EntryPlace(scope, name), (id(scope), name), name)
        for name in ("__defaults__", "__kwdefaults__"):
            defaults = getattr(function, name)
            if defaults:
                self._note_value(DefaultsPlace(function, name), defaults, path)
        if function.__dict__:
            place = AttributesPlace(function.__dict__)
            self._note(place, *self._pack_entries(function.__dict__, path, ".{}"))
        return function

    def _variable(self, place: "CellPlace | EntryPlace", key: Any, name: str) -> None:
        if key in self._variables:
            return
        self._variables.add(key)
        content = place.now()
        if type(content) is not type:
            self._note_value(place, content, Path(None, "variable {!r}", name))

    def visit_method(self, method: types.MethodType, path: Path) -> Any:
        """Note what a bound method is bound to, and what its function reads."""
        self._met[id(method)] = method, method
        self.pack(method.__self__, path)
        self.pack(method.__func__, path)
        return method

    def visit_partial(self, partial: "functools.partial[Any]", path: Path) -> Any:
        """Pack a partial that holds tensors; note what another leads to."""
        function = self.pack(partial.func, path)
        given, _ = self._pack_items(partial.args, path)
        keywords, _ = self._pack_entries(partial.keywords, path, "[{!r}]")
        parts: list[Any] = [function, *given, *keywords.values()]
        before = [partial.func, *partial.args, *partial.keywords.values()]
        packed: Any = partial
        if any(part is not value for part, value in zip(parts, before, strict=True)):
            count = len(given) + 1

            def make(parts: list[Any]) -> Any:
                named = dict(zip(keywords, parts[count:], strict=True))
                return functools.partial(parts[0], *parts[1:count], **named)

            packed = Packed(make, parts)
        self._met[id(partial)] = partial, packed
        return packed

    # -- what moves on when it is read ------------------------------------------------------

    def visit_generator(self, generator: Any, path: Path) -> Any:
        """Note the state of a generator of random numbers."""
        place = GeneratorPlace(generator)
        self._met[id(generator)] = generator, generator
        self._note(place, place.now(), False)
        return generator

    def visit_array(self, array: Any, path: Path) -> Any:
        """Note the elements of an array, if they are few."""
        self._met[id(array)] = array, array
        if array.nbytes <= COPIED_BYTES:
            place = ArrayPlace(array)
            self._note(place, place.now(), False)
        return array

    def visit_iterator(self, iterator: Any, path: Path) -> Any:
        """Give the recomputation something that raises: what an iterator gave is gone."""
        packed = Consumed(f"{path} is {type(iterator).__name__}")
        self._met[id(iterator)] = iterator, packed
        return packed


def _kind(tensor: Tensor) -> type[Held]:
    if is_parameter(tensor):
        return Kept
    return Saved if tensor.requires_grad or not _is_small(tensor) else Copied


def _is_small(tensor: Tensor) -> bool:
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_meta:
        return False
    return not tensor.is_inference() and tensor.untyped_storage().nbytes() <= COPIED_BYTES


# The first that fits.
_HANDLERS: Final[tuple[tuple[Any, Callable[[Walk, Any, Path], Any]], ...]] = (
    (Tensor, Walk.visit_tensor),
    (nn.Module, Walk.visit_module),
    (dict, Walk.visit_mapping),
    ((list, deque), Walk.visit_sequence),
    (tuple, Walk.visit_tuple),
    (set, Walk.visit_set),
    (types.FunctionType, Walk.visit_function),
    (types.MethodType, Walk.visit_method),
    (functools.partial, Walk.visit_partial),
    (object, Walk.visit_object),
)


@functools.cache
def _handler(kind: type) -> Callable[[Walk, Any, Path], Any]:
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return Walk.visit_array
    if is_generator(kind):
        return Walk.visit_generator
    if issubclass(kind, Iterator) and not hasattr(kind, "fileno"):
        return Walk.visit_iterator
    return next(handler for base, handler in _HANDLERS if issubclass(kind, base))
