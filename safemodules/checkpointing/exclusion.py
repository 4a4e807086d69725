"""Threads that meet in the same modules, kept out of each other's way.

NOTE [ Who waits for whom ]: a recomputation exchanges the contents of places (see NOTE [ The
Same Objects ] in snapshot.py). While it lasts, no other thread may be in a region that reads
one of them. So a thread *stays* in a region: for the time of its forward, which it shares with
other forwards, or for that of a recomputation, which has its places to itself. A thread waits
if its stay would meet another thread's, but

- never for itself: what a recomputation calls is nested, and is put back in order;
- in a thread of autograd's engine, not for a thread that waits for the engine, on whose behalf
  it works;
- in a recomputation, not for a thread that waits here: that one stands still, so what it has
  can be exchanged and put back before it goes on.

Thus threads that wait for each other cannot exist among regions. They can if a region waits, by
means of its own, for another thread; then the wait ends with an error.

NOTE [ One stream for all threads ]: torch has one default stream of random numbers per device.
A region that draws from it can be repeated only if nobody else draws meanwhile, so those of
different threads do not overlap either. Whether one draws is known from its last run.
"""

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from safemodules.errors import CheckpointError
from safemodules.mutation.internals import code_that_runs_the_engine
from safemodules.state.places import Place

__all__ = ["TIMEOUT_SECONDS", "Stay", "is_contended", "staying", "staying_alone"]

# A region in another thread takes as long as its own forward or recomputation.
TIMEOUT_SECONDS: Final = 120.0
# How often a waiting thread looks whether another has gone into autograd's engine.
_TICK_SECONDS: Final = 0.01
_NOW: Final = float("inf")


class HasPlaces(Protocol):
    """What knows the places that a call may read."""

    @property
    def places(self) -> Sequence[Place]:
        """The places."""


class Stay:
    """One thread's time in a region.

    Args:
        region: the region; ``str`` of it is for messages.
        places: what it may read; ``None`` until that is known.
        changed: for each place whether its content is exchanged, given what the contents were
            before, if that has been noted; ``None`` for a forward, which exchanges none.
        draws: whether it draws random numbers from torch's streams, as far as is known.
    """

    __slots__ = (
        "_before",
        "_changed",
        "_keys",
        "draws",
        "is_alone",
        "order",
        "places",
        "region",
        "thread",
    )

    def __init__(
        self,
        region: object,
        places: Sequence[Place] | None,
        changed: "Callable[[list[Any] | None], list[bool]] | None" = None,
        draws: bool = True,
    ) -> None:
        self.region, self.places, self._changed = region, places, changed
        self.is_alone, self.draws = changed is not None, draws
        self.order = _NOW
        self.thread = threading.get_ident()
        self._before: list[Any] | None = None
        self._keys: tuple[frozenset[Any], frozenset[Any]] | None = None

    def note(self, before: list[Any]) -> None:
        """Note the contents that are to be exchanged; until then they tell what will be."""
        with _threads.condition:  # under which keys are asked for
            self._before, self._keys = before, None

    def keys(self) -> tuple[frozenset[Any], frozenset[Any]]:
        """Keys of all places, and of those that this stay has to itself."""
        if self._keys is None:
            places = self.places or ()
            everything = frozenset(key for place in places for key in place.keys)
            alone: frozenset[Any] = frozenset()
            if self._changed is not None:
                marks = zip(places, self._changed(self._before), strict=True)
                own = (p for p, changed in marks if changed or not p.is_fixed)
                alone = frozenset(key for place in own for key in place.keys)
            self._keys = everything, alone
        return self._keys

    def meets(self, other: "Stay") -> bool:
        """Whether the two must not be at once in two threads."""
        if self.draws and other.draws:
            return True
        if not self.is_alone and not other.is_alone:
            return False
        if self.places is None or other.places is None:
            return True
        (mine, my_own), (theirs, their_own) = self.keys(), other.keys()
        return not (my_own.isdisjoint(theirs) and their_own.isdisjoint(mine))


class _Threads:
    """The stays of all threads."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.stays: dict[int, list[Stay]] = {}
        self.waiting: dict[int, Stay] = {}
        self.orders = itertools.count()
        # How many have had places to themselves, and threads that have called a region.
        self.exchanges = 0
        self.callers: set[int] = set()

    def enter(self, stay: Stay) -> None:
        """Begin a stay as soon as it meets no other."""
        with self.condition:
            if not self._is_free(stay.thread):
                self._wait(stay)
            self._begin(stay)

    def enter_if_only(self, stay: Stay) -> bool:
        """Begin a stay if no other thread is in a region, nor waits to be."""
        with self.condition:
            if self._is_free(stay.thread):
                self._begin(stay)
                return True
        return False

    def _is_free(self, me: int) -> bool:
        return self.is_only(me) if self.stays else not self.waiting

    def _begin(self, stay: Stay) -> None:
        stay.order = next(self.orders)
        self.exchanges += stay.is_alone
        self.stays.setdefault(stay.thread, []).append(stay)

    def is_only(self, me: int) -> bool:
        """Whether no other thread is in a region."""
        return len(self.stays) <= (me in self.stays)

    def has_exchanged(self, me: int) -> bool:
        """Whether another thread has places to itself now."""
        with self.condition:
            others = [stays for thread, stays in self.stays.items() if thread != me]
        return any(stay.is_alone for stays in others for stay in [*stays])

    def leave(self, stay: Stay) -> None:
        """End a stay."""
        with self.condition:
            mine = self.stays[stay.thread]
            mine.remove(stay)
            if not mine:
                del self.stays[stay.thread]
            if self.waiting:
                self.condition.notify_all()

    def _wait(self, stay: Stay) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        self.waiting[stay.thread] = stay
        is_of_engine = _is_of_engine()
        try:
            while (blocker := self._blocker(stay, is_of_engine)) is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CheckpointError(_too_long(stay, blocker))
                self.condition.wait(min(left, _TICK_SECONDS))
        finally:
            del self.waiting[stay.thread]
            self.condition.notify_all()

    def _blocker(self, stay: Stay, is_of_engine: bool) -> "Stay | None":
        me = stay.thread
        mine = [*self.stays.get(me, ()), stay]
        for thread, theirs in self.stays.items():
            if thread == me or (is_of_engine and _is_in_engine(thread)):
                continue
            stands = thread in self.waiting
            for a, b in itertools.product(mine, theirs):
                if a.meets(b) and not (stands and a.is_alone and a.order > b.order):
                    return b
        if len(mine) == 1 and not is_of_engine:  # behind those who came before
            for earlier in self.waiting.values():
                if earlier is stay:
                    break
                if stay.meets(earlier):
                    return earlier
        return None


_threads: Final = _Threads()
# A child process has one thread, which holds no lock that another held as it was forked.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.__init__)  # type: ignore[misc]


def _is_of_engine() -> bool:
    """Whether this is a thread of autograd's engine, which works for one that waits for it."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    is_main = threading.get_ident() == threading.main_thread().ident
    return not is_main and frame.f_code.co_filename != threading.__file__


def _is_in_engine(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code is code_that_runs_the_engine()


def _too_long(stay: Stay, blocker: Stay) -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    what = ("the forward", "the recomputation")
    return (
        f"thread {names.get(stay.thread, stay.thread)!r} has waited {TIMEOUT_SECONDS:g} s to begin "
        f"{what[stay.is_alone]} of the checkpointed region {stay.region}, since thread "
        f"{names.get(blocker.thread, blocker.thread)!r} is in {what[blocker.is_alone]} of "
        f"{blocker.region}, which uses the same modules, containers, or stream of random numbers. "
        f"A region must not wait for another thread that uses what it uses: start or join threads "
        f"outside of checkpointed regions."
    )


def is_contended() -> bool:
    """Whether another thread has called a region before; notes that this one does."""
    callers = _threads.callers
    callers.add(threading.get_ident())
    return len(callers) > 1


def _undisturbed() -> "Callable[[], bool]":
    """Begin to watch; what is returned tells whether no place was exchanged elsewhere since."""
    me, before = threading.get_ident(), _threads.exchanges
    others = not _threads.is_only(me) and _threads.has_exchanged(me)
    return lambda: not others and _threads.exchanges == before


class staying:  # noqa: N801 - a context manager, named as contextlib's are
    """Be in the forward of a region.

    Args:
        region: what is run; ``str`` of it is for messages.
        draws: whether it draws random numbers from torch's streams, as far as is known.
        survey: finds its places, without a trace, however often.
        make: makes something that has the places, once, as nobody has exchanged them.
    """

    def __init__(
        self,
        region: object,
        draws: bool,
        survey: Callable[[], "HasPlaces"],
        make: Callable[[], "HasPlaces"],
    ) -> None:
        self._region, self._draws, self._survey, self._make = region, draws, survey, make
        self._stays: list[Stay] = []

    def __enter__(self) -> Any:
        """Wait for others if need be; returns what was made."""
        # Until its places are known, nobody may exchange any.
        stay = Stay(self._region, None, draws=self._draws)
        try:
            if _threads.enter_if_only(stay):
                self._stays.append(stay)
                made = self._make()
                stay.places = made.places
                return made
            self._wait()
            return self._make()
        except BaseException:
            self.__exit__()
            raise

    def _wait(self) -> None:
        while True:
            is_undisturbed = _undisturbed()
            try:
                places = self._survey().places
            except RuntimeError:  # of a container that changed while it was walked
                if is_undisturbed():
                    raise
                time.sleep(_TICK_SECONDS)
                continue
            stay = Stay(self._region, places, draws=self._draws)
            held = [one.keys()[0] for one in self._stays]
            if held and stay.keys()[0] <= frozenset().union(*held):
                return
            _threads.enter(stay)
            self._stays.append(stay)
            if is_undisturbed():
                return

    def __exit__(self, *exception: object) -> None:
        """Leave."""
        for stay in self._stays:
            _threads.leave(stay)
        self._stays.clear()


@contextmanager
def staying_alone(stay: Stay) -> Iterator[None]:
    """Be in a recomputation, with its places to itself.

    Raises:
        CheckpointError: another thread does not leave them.
    """
    _threads.enter(stay)
    try:
        yield
    finally:
        _threads.leave(stay)
