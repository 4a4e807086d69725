"""Loops of an abstract run: how often their bodies run, if at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.unseen import Unseen
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import NOTHING, Items, Known, Once, Value
from safemodules.mutation.liveness.world import forget_counts, join, shape_of

_MOST_PASSES = 40  # names and lists that a loop may hand something along, one to the next


class Repetition(Unseen):
    """Runs loops of any number of passes."""

    @contextmanager
    def optionally(self, frame: Frame) -> Iterator[None]:
        """What runs here perhaps does not."""
        before = dict(frame.names), frame.world.copy()
        yield
        frame.names, frame.world = join(before, (frame.names, frame.world), self.numbers)

    @contextmanager
    def unchanged(self, iterated: Value, frame: Frame) -> Iterator[None]:
        """A loop that shall not change what it goes through.

        Raises:
            UnsupportedError: it does, where the entries were taken as they are before the loop.
        """
        lists = [self.sources.get(storage, NOTHING) for storage in iterated.storages]
        of = NOTHING.union(iterated.of if isinstance(iterated, Once) else NOTHING, *lists)
        held = {storage: frame.world.heap.get(storage) for storage in of}
        objects = len(self.changing.objects)
        yield
        taken = isinstance(iterated, Known | Items) and len(self.changing.objects) > objects
        if taken or any(frame.world.heap.get(each) != was for each, was in held.items()):
            raise UnsupportedError("a loop changes what it goes through")

    def passes(self, frame: Frame) -> Iterator[None]:
        """Let a loop's body run until another pass would only do the same again.

        Raises:
            UnsupportedError: it still does something else after many passes.
        """
        first, shape = self.numbers.next, None
        kinds: dict[Any, str] = {}
        names, attributes = dict(frame.names), dict(frame.world.attributes)
        for _ in range(_MOST_PASSES):
            yield
            if not frame.alive:
                return
            before, shape = shape, shape_of(frame.names, frame.world, first, kinds)
            if shape == before:
                return
            forget_counts(frame.names, names)
            forget_counts(frame.world.attributes, attributes)
        raise UnsupportedError("a loop hands things along too often")
