"""All that a region may read, as its forward met it, for its recomputation to meet again.

NOTE [ The Same Objects ]: the recomputation runs the user's own function on the user's own
modules, cells and containers. Before it, their contents are exchanged for what they were in
the forward, with fresh copies of what the region may write; after it, for what they were
before it. So nothing that it writes to them is left, and whatever else refers to them (hooks,
parents, other closures) meets the same objects.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from safemodules.checkpointing.exclusion import Stay, staying_alone
from safemodules.checkpointing.held import Copied, Held, Saved, copies_of
from safemodules.checkpointing.packing import Path, unpack
from safemodules.checkpointing.walk import Walk
from safemodules.state.places import Place

__all__ = ["Snapshot"]

# Per function or module, and the modules that its region reaches: what the region was seen to
# overwrite. Regions that are not in it have not run yet.
_habits: "WeakKeyDictionary[Any, dict[tuple[int, ...], set[str]]]" = WeakKeyDictionary()


class Snapshot:
    """What a call of a function may read.

    Args:
        key: the code or the module by which the habits of a region are remembered.
        function: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Attributes:
        devices: where the tensors are.
        is_lazy: an uninitialised module is among what was met.
        may_stop_early: a recomputation may end as soon as everything is saved.
    """

    def __init__(
        self, key: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        walk = Walk()
        self._args = [
            walk.pack(value, Path(None, "argument {}", index)) for index, value in enumerate(args)
        ]
        self._kwargs = {
            name: walk.pack(value, Path(None, "argument {!r}", name))
            for name, value in kwargs.items()
        }
        self._function = walk.pack(function, Path(None, "attribute self"))
        walk.note_empty()
        self._places, self._contents = walk.places, walk.contents
        self._held = tuple(walk.tensors)
        self._provisional: dict[Held, Tensor] = {}
        self._habits = _habits.setdefault(key, {})
        self._who = tuple(map(id, walk.modules))
        self._copy(walk)
        self.devices, self.is_lazy = walk.devices, walk.is_lazy
        self.may_stop_early = walk.may_stop_early

    def _copy(self, walk: Walk) -> None:
        """Copy what is written, as far as anybody knows; the first time, whatever might be."""
        written = self._habits.get(self._who)
        chosen: list[Held] = []
        provisional: list[Held] = []
        for held in self._held:
            if isinstance(held, Copied) or (written and str(held.path) in written):
                chosen.append(held)
            elif written is None and walk.may_overwrite and isinstance(held, Saved):
                provisional.append(held)
        copies = copies_of([walk.tensors[held] for held in (*chosen, *provisional)])
        for held, copy in zip(chosen, copies, strict=False):
            held.adopt(copy)
        self._provisional = dict(zip(provisional, copies[len(chosen) :], strict=True))

    def settle(self) -> None:
        """Look, after the forward, for what it has overwritten; only that goes on being copied."""
        written = self._habits.setdefault(self._who, set())
        for held in self._held:
            if held.copy is None and held.token.is_stale:
                written.add(str(held.path))
                if held in self._provisional:
                    held.adopt(self._provisional[held])
        self._provisional = {}

    @property
    def places(self) -> Sequence[Place]:
        """Every place that the call may read."""
        return self._places

    def _changed(self, before: list[Any] | None) -> list[bool]:
        """For each place, whether its content has to be exchanged."""
        found = [place.now() for place in self._places] if before is None else before
        pairs = zip(found, self._contents, strict=True)
        return [packed or not _is_same(now, content) for now, (content, packed) in pairs]

    @contextmanager
    def restored(
        self, region: object, draws: bool
    ) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
        """Everything as it was; yields the function and its arguments.

        Args:
            region: the region; ``str`` of it is for messages.
            draws: whether it draws from torch's streams of random numbers.

        Raises:
            CheckpointError: another thread keeps on using what is to be exchanged.
        """
        tensors = self._tensors(region)
        stay = Stay(region, self._places, self._changed, draws)
        with staying_alone(stay):
            before = [place.now() for place in self._places]
            stay.note(before)
            try:
                for place, (content, packed) in zip(self._places, self._contents, strict=True):
                    place.put(_tighten(content, tensors) if packed else content)
                args = [unpack(value, tensors) for value in self._args]
                kwargs = {name: unpack(value, tensors) for name, value in self._kwargs.items()}
                yield unpack(self._function, tensors), args, kwargs
            finally:
                for place, content in zip(self._places, before, strict=True):
                    place.put(content)

    def _tensors(self, region: object) -> dict[Held, Tensor]:
        copied = [(held, held.copy) for held in self._held if held.copy is not None]
        # Reading what was saved may compute an outer region again: before anything is exchanged.
        tensors = {held: held.get(region) for held in self._held if held.copy is None}
        fresh = copies_of([copy for _, copy in copied])
        for (held, _), copy in zip(copied, fresh, strict=True):
            tensors[held] = held.dress(copy)
        return tensors


def _is_same(now: Any, content: Any) -> bool:
    if isinstance(now, dict) and isinstance(content, dict):
        return now.keys() == content.keys() and all(content[k] is now[k] for k in now)
    return now is content


def _tighten(content: Any, tensors: dict[Held, Tensor]) -> Any:
    """A content with its tensors."""
    kind = type(content)
    if kind is dict:
        return {key: unpack(value, tensors) for key, value in content.items()}
    if kind is list:
        return [unpack(value, tensors) for value in content]
    return unpack(content, tensors)
