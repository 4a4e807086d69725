"""What a step needs if some results of its forward are forgotten, without running it.

See NOTE [ Forgotten Results ] in ``checkpointing/replaying.py`` for what is simulated.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from safemodules.checkpointing.replaying import replay_order
from safemodules.memory.tape import Operator, Tape

__all__ = ["Simulated", "Simulation"]

# Results up to this size are kept for a replay that needs them, rather than computed again.
SMALL = 1 << 16
# The least share of all saved bytes that is worth forgetting.
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
        return sum(live - budget for live in self.live if live > budget)


class Simulation:
    """Simulates steps of one tape.

    Args:
        tape: the tape.
        gradients: count the gradients of parameters too.
    """

    def __init__(self, tape: Tape, *, gradients: bool = True) -> None:
        self.tape = tape
        self._memories = tape.memories
        self._operators = tape.operators
        self._changes = [0] * (tape.events + 1)
        for memory in tape.memories:
            if gradients or not memory.is_gradient:
                self._changes[memory.made] += memory.size
                self._changes[memory.let_go] -= memory.size
        self._asks = sorted(
            (asked, index)
            for index, memory in enumerate(tape.memories)
            if memory.operator is not None
            for saved in memory.saved
            for asked in saved.asked[:1]
        )

    @cached_property
    def candidates(self) -> tuple[int, ...]:
        """Operators whose results are worth forgetting."""
        least = sum(memory.size for memory in self._memories if memory.saved) * WORTH
        return tuple(
            place
            for place, operator in enumerate(self._operators)
            if operator.can_replay
            and sum(
                self._memories[one].size for one in operator.results if self._memories[one].saved
            )
            > least
        )

    def completed(self, forgotten: Iterable[int]) -> frozenset[int]:
        """Some operators, and those that have to be run again before them.

        What is not saved for backward is gone by then; if it is large, it is not held either.
        """
        found = set(forgotten)
        stack = list(found)
        while stack:
            for source in self._operators[stack.pop()].sources:
                memory = self._memories[source]
                maker = memory.operator
                if maker is None or maker in found or memory.saved or memory.size <= SMALL:
                    continue
                if self._operators[maker].can_replay:
                    found.add(maker)
                    stack.append(maker)
        return frozenset(found)

    def run(self, forgotten: Collection[int]) -> Simulated:
        """Simulate a step that forgets the results of some operators.

        Args:
            forgotten: places of the operators; see :meth:`completed`.
        """
        step = _Step(self._changes.copy())
        operators = [self._operators[place] for place in sorted(forgotten)]
        kept_until = self._forget(step, operators, forgotten)
        for source, until in kept_until.items():
            memory = self._memories[source]
            if until > memory.let_go:
                step.changes[memory.let_go] += memory.size
                step.changes[until] -= memory.size
        self._replay(step, forgotten)
        live = list(accumulate(step.changes[:-1]))
        for event, size in step.beyond.items():
            live[event] += size
        return Simulated(tuple(live), step.seconds, step.replays)

    def _forget(
        self, step: "_Step", operators: list[Operator], forgotten: Collection[int]
    ) -> dict[int, int]:
        """Free what is forgotten, and tell until when replays hold what they read."""
        needed_until: dict[int, int] = defaultdict(int)  # by memory that is forgotten
        kept_until: dict[int, int] = defaultdict(int)
        for operator in reversed(operators):
            until = 0
            for result in operator.results:
                memory = self._memories[result]
                if memory.let_go > memory.freed:
                    step.changes[memory.freed] -= memory.size
                    step.changes[memory.let_go] += memory.size
                noted = min(memory.freed, self.tape.forward_events)
                saved = max((saved.freed for saved in memory.saved), default=0)
                until = max(until, noted, saved, needed_until[result])
            for source in (*operator.sources, *operator.kept):
                is_forgotten = self._memories[source].operator in forgotten
                ends = needed_until if is_forgotten else kept_until
                ends[source] = max(ends[source], until)
        return kept_until

    def _replay(self, step: "_Step", forgotten: Collection[int]) -> None:
        """Compute again what backward asks for."""
        valid_until: dict[int, int] = {}

        def missing(place: int) -> list[int]:
            makers = []
            for source in self._operators[place].sources:
                maker = self._memories[source].operator
                if maker in forgotten and valid_until.get(source, -1) <= event:
                    assert maker is not None
                    makers.append(maker)
            return makers

        for event, asked in self._asks:
            maker = self._memories[asked].operator
            if maker not in forgotten or valid_until.get(asked, -1) > event:
                continue
            places = replay_order(maker, missing, int)
            dying = defaultdict(list)
            last_use = {source: place for place in places for source in missing(place)}
            for source, place in last_use.items():
                dying[place].append(source)
            self._replay_one(step, event, places, dying, valid_until)

    def _replay_one(
        self,
        step: "_Step",
        event: int,
        places: list[int],
        dying: dict[int, list[int]],
        valid_until: dict[int, int],
    ) -> None:
        held = most = 0
        passing: dict[int, int] = defaultdict(int)
        for place in places:
            operator = self._operators[place]
            step.seconds += operator.replay_seconds
            step.replays += 1
            for result in operator.results:
                memory = self._memories[result]
                if valid_until.get(result, -1) > event:
                    continue
                until = self._asked_until(result, event)
                if until > event:
                    valid_until[result] = until
                    step.changes[event] += memory.size
                    step.changes[until] -= memory.size
                    held += memory.size
                else:
                    passing[place] += memory.size
            most = max(most, held + sum(passing.values()))
            for gone in dying[place]:
                passing.pop(gone, None)
        step.beyond[event] = max(step.beyond.get(event, 0), most - held)

    def _asked_until(self, result: int, event: int) -> int:
        """Until when readers of a result, from an event on, hold it."""
        readers = self._memories[result].saved
        ends = [one.freed for one in readers if not one.asked or one.asked[0] >= event]
        return max(ends, default=-1)


class _Step:
    """A step that is being simulated."""

    def __init__(self, changes: list[int]) -> None:
        self.changes = changes
        self.beyond: dict[int, int] = {}  # by event: what replays need for a moment
        self.seconds = 0.0
        self.replays = 0
