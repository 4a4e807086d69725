"""What a step needs if some results of its forward are forgotten, without running it.

See NOTE [ Forgotten Results ] in ``checkpointing/replaying.py`` for what is simulated. A search
simulates thousands of steps, so what a step looks up stands in lists by index.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from safemodules.memory.tape import Memory, Operator, Tape

__all__ = ["Choice", "Simulated", "Simulation", "Watch"]

Watch = Callable[[int, Mapping[int, Collection[int]]], None]

# Shares of all saved bytes: results up to this one are kept for a replay that needs them, rather
# than computed again,
SMALL = 1e-3
# and those of which so many times their size is computed;
MANY = 4
# larger ones than this are worth forgetting.
WORTH = 1e-4


@dataclass(frozen=True)
class Simulated:
    """A simulated step.

    Attributes:
        live: bytes alive at each event, see NOTE [ Clock ].
        seconds: what replays take.
        replays: how many operators are run again.
    """

    live: tuple[int, ...]
    seconds: float
    replays: int

    @cached_property
    def peak(self) -> int:
        """The most bytes alive at any event."""
        return max(self.live, default=0)

    def excess(self, budget: int) -> int:
        """How far the step is over a budget, summed over its events."""
        over = [live for live in self.live if live > budget]
        return sum(over) - budget * len(over)


@dataclass(frozen=True)
class Choice:
    """Results to forget.

    Attributes:
        forgotten: places of the operators that make them.
        simulated: the step.
    """

    forgotten: frozenset[int]
    simulated: Simulated


class Simulation:
    """Simulates steps of one tape.

    Args:
        tape: the tape.
        gradients: count the gradients of parameters too.

    Attributes:
        tape: the tape.
        saved_bytes: size of all memories that are saved for backward.
        makers: by operator, the makers of what it reads, with what it reads of each.
        asks: when backward asks for what, and who makes that.
        passed: memories that are computed again for those who need them, and never held.
        noted: by memory, until when notes of the operator that made it are held.
    """

    def __init__(self, tape: Tape, *, gradients: bool = True) -> None:
        self.tape = tape
        self._changes = [0] * (tape.events + 1)
        for memory in tape.memories:
            if gradients or not memory.is_gradient:
                self._changes[memory.made] += memory.size
                self._changes[memory.let_go] -= memory.size
        self.saved_bytes = sum(memory.size for memory in tape.memories if memory.saved)
        self.makers = [
            [
                (maker, source)
                for source in one.sources
                if (maker := self._maker(source)) is not None
            ]
            for one in tape.operators
        ]
        self.asks = sorted(
            (saved.asked[0], index, memory.operator)
            for index, memory in enumerate(tape.memories)
            if memory.operator is not None and index not in tape.operators[memory.operator].kept
            for saved in memory.saved
            if saved.asked
        )
        # Until when a memory's readers of each event and later hold it.
        self._readers = [_readers(memory) for memory in tape.memories]
        self.noted = [
            max(
                min(memory.freed, tape.forward_events),
                max((saved.freed for saved in memory.saved), default=0),
            )
            for memory in tape.memories
        ]
        self.passed = self._passed()
        self._tables()

    def _tables(self) -> None:
        """What every simulation looks up."""
        memories, operators = self.tape.memories, self.tape.operators
        self._let_go = [memory.let_go for memory in memories]
        self._sizes = [memory.size for memory in memories]
        self._seconds = [operator.replay_seconds for operator in operators]
        self._results = [operator.results for operator in operators]
        self._read = [(*operator.sources, *operator.kept) for operator in operators]
        # By operator: from when until when its results are away if they are forgotten,
        self._absences = [
            [
                (memories[result].freed, self._let_go[result], memories[result].size)
                for result in results
                if self._let_go[result] > memories[result].freed
            ]
            for results in self._results
        ]
        # and until when they may be asked for.
        self._noted = [
            max((self.noted[one] for one in found), default=0) for found in self._results
        ]
        # By memory: the operator which, if it is forgotten, makes it again.
        self._remade_by = [
            None if one.operator is None or place in operators[one.operator].kept else one.operator
            for place, one in enumerate(memories)
        ]

    def _passed(self) -> frozenset[int]:
        """Memories that are not saved, and of which not many times their size is computed.

        To hold them would take as much memory as to keep what is computed of them, or a share of
        it that is worth little: who forgets the latter forgets these.
        """
        memories, computed = self.tape.memories, [0] * len(self.tape.memories)
        for operator in self.tape.operators:
            if operator.can_replay:
                size = sum(memories[result].size for result in operator.results)
                for source in operator.sources:
                    computed[source] += size
        return frozenset(
            index
            for index, memory in enumerate(memories)
            if not memory.saved
            and memory.size > SMALL * self.saved_bytes
            and computed[index] < MANY * memory.size
        )

    def _maker(self, memory: int) -> int | None:
        return self.tape.memories[memory].operator

    @cached_property
    def candidates(self) -> tuple[int, ...]:
        """Operators whose results are worth forgetting."""
        memories = self.tape.memories

        def saved(operator: Operator) -> int:
            results = (memories[one] for one in operator.results)
            return sum(memory.size for memory in results if memory.saved)

        return tuple(
            place
            for place, operator in enumerate(self.tape.operators)
            if operator.can_replay and saved(operator) > WORTH * self.saved_bytes
        )

    def completed(self, forgotten: Iterable[int]) -> frozenset[int]:
        """Some operators, and those that pass results to them, see :attr:`passed`.

        Args:
            forgotten: their places.
        """
        operators = self.tape.operators
        found = set(forgotten)
        stack = list(found)
        while stack:
            for maker, source in self.makers[stack.pop()]:
                if source in self.passed and maker not in found and operators[maker].can_replay:
                    found.add(maker)
                    stack.append(maker)
        return frozenset(found)

    def choice(self, chosen: Iterable[int], watch: Watch | None = None) -> Choice:
        """Complete a choice, and simulate its step.

        Args:
            chosen: places of operators.
            watch: see :meth:`run`.
        """
        forgotten = self.completed(chosen)
        return Choice(forgotten, self.run(forgotten, watch))

    def run(self, forgotten: Collection[int], watch: Watch | None = None) -> Simulated:
        """Simulate a step that forgets the results of some operators.

        Args:
            forgotten: places of the operators; see :meth:`completed`.
            watch: is told of each replay: the event, and by operator that runs before others,
                those that need its results.
        """
        step = _Step(self._changes.copy(), set(forgotten), [-1] * len(self._let_go), watch)
        self._forget(step)
        for event, asked, maker in self.asks:
            if maker in step.forgotten and step.valid_until[asked] <= event:
                self._replay(step, event, maker)
        live = list(accumulate(step.changes))
        for event, size in step.beyond.items():
            live[event] += size
        return Simulated(tuple(live[:-1]), step.seconds, step.replays)

    def _forget(self, step: "_Step") -> None:
        """Free what is forgotten, and hold what replays read as long as they are noted."""
        changes, forgotten = step.changes, step.forgotten
        noted_until: dict[int, int] = {}  # by memory that notes of operators read
        for place in sorted(forgotten, reverse=True):
            for freed, gone, size in self._absences[place]:
                changes[freed] -= size
                changes[gone] += size
            until = self._noted[place]
            for result in self._results[place]:
                until = max(until, noted_until.get(result, 0))
            for source in self._read[place]:
                if noted_until.get(source, 0) < until:
                    noted_until[source] = until
        for source, until in noted_until.items():
            gone = self._let_go[source]
            if until > gone and self._remade_by[source] not in forgotten:
                changes[gone] += self._sizes[source]
                changes[until] -= self._sizes[source]

    def _replay(self, step: "_Step", event: int, asked: int) -> None:
        """Run again what leads to an operator, in the order of the forward."""
        forgotten, valid_until = step.forgotten, step.valid_until
        needed, users = [asked], dict[int, list[int]]()
        for place in needed:  # which grows
            for maker, source in self.makers[place]:
                if maker in forgotten and valid_until[source] <= event:
                    if maker in users:
                        users[maker].append(place)
                    else:
                        users[maker] = [place]
                        needed.append(maker)
        if step.watch is not None:
            step.watch(event, users)
        dying: dict[int, list[int]] = {}
        for maker, places in users.items():
            dying.setdefault(max(places), []).append(maker)
        held = most = passing = 0
        passed: dict[int, int] = {}
        for place in sorted(needed):
            step.seconds += self._seconds[place]
            for result in self._results[place]:
                if valid_until[result] > event:
                    continue
                size, until = self._sizes[result], self.held_until(result, event)
                if until > event:
                    valid_until[result] = until
                    step.changes[event] += size
                    step.changes[until] -= size
                    held += size
                else:
                    passed[place] = passed.get(place, 0) + size
                    passing += size
            most = max(most, held + passing)
            for maker in dying.get(place, ()):
                passing -= passed.pop(maker, 0)
        step.replays += len(needed)
        if most > held:
            step.beyond[event] = max(step.beyond.get(event, 0), most - held)

    def held_until(self, result: int, event: int) -> int:
        """Until when those who ask for a result from an event on hold it.

        Args:
            result: a memory.
            event: the event.
        """
        for first, until in self._readers[result]:
            if first >= event:
                return until
        return -1


def _readers(memory: Memory) -> list[tuple[int, int]]:
    """When a memory is asked for, and until when those who ask then or later hold it."""
    never = 1 << 62  # a reader that never asks holds it as long as it may
    asks = sorted((saved.asked[0] if saved.asked else never, saved.freed) for saved in memory.saved)
    found: list[tuple[int, int]] = []
    until = -1
    for first, freed in reversed(asks):
        until = max(until, freed)
        found.append((first, until))
    return found[::-1]


@dataclass
class _Step:
    """A step that is being simulated.

    Attributes:
        changes: how many bytes more are alive from each event on.
        forgotten: places of the operators whose results are forgotten.
        valid_until: by memory, until when it is there again.
        watch: is told of replays.
        beyond: by event, what replays need for a moment.
        seconds: what replays take.
        replays: how many operators are run again.
    """

    changes: list[int]
    forgotten: set[int]
    valid_until: list[int]
    watch: Watch | None
    beyond: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    replays: int = 0
