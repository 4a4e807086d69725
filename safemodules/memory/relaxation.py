"""The choice of what to forget as an integer programme.

NOTE [ Integer Programme ]: for each operator a variable tells whether its results are forgotten,
0 or 1, and another how often it is run again. The rows hold for every choice that fits:

- Who is asked for runs again at least once. What is passed to a reader alone is forgotten with what
  that computes, and runs as often; other results that are not saved are held for it, or forgotten.
- At each event the bytes are within the budget: a forgotten result is away from its last use in
  the forward until it is asked for, or until an earlier replay needs it; what it is computed from
  is held as long as it may be asked for; and a replay needs what it passes on.

So the least seconds of the programme are a bound for all choices. What rows do not tell makes a
solution too good: it is simulated. Who brings back what early is learned from that, one row for
each step of each such replay, because rows for all of them would be too many; only what is nearest
to each operator is told from the start. A solution that fits, and takes the seconds that the
programme knows of, is the best there is, of all choices that hold nothing of what is only passed on
(see ``Simulation.passed``).
"""

import itertools
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence

from safemodules.memory.programme import Programme
from safemodules.memory.simulation import Choice, Simulated, Simulation

__all__ = ["Relaxation"]

# Costs are in microseconds, and bytes in shares of this of what is allowed: numbers of a size
# that the tolerances of solvers are made for.
MICROSECONDS = 1e6
UNITS = 1e3


class Relaxation:
    """Programmes for one step, and what simulations have added to them.

    Args:
        simulation: simulates the step.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.base = simulation.run(()).live
        operators = simulation.tape.operators
        self.able = [p for p, one in enumerate(operators) if one.can_replay and one.results]
        self.first_asked: dict[int, int] = {}
        for event, _, maker in simulation.asks:
            self.first_asked.setdefault(maker, event)
        self.readers: dict[int, list[int]] = {}
        for place, makers in enumerate(simulation.makers):
            for maker in {maker for maker, _ in makers}:
                self.readers.setdefault(maker, []).append(place)
        # By operator and event of a replay that needs it before it is asked for: who needs it.
        self.returns: dict[tuple[int, int], set[int]] = {}
        able = frozenset(self.able)
        for place in able.intersection(self.first_asked):
            self._expect_nearest(place, able)
        self.excess = [0] * len(self.base)

    def _expect_nearest(self, asked: int, able: frozenset[int]) -> None:
        """Who is asked for brings back what it is computed from, where that is forgotten too."""
        event = self.first_asked[asked]
        stack, seen = [asked], {asked}
        while stack:
            user = stack.pop()
            for maker, source in self.simulation.makers[user]:
                if maker in able and event < self.first_asked.get(maker, len(self.base)):
                    self._return(maker, event, [user])
                    if maker not in seen and not self.simulation.tape.memories[source].saved:
                        seen.add(maker)
                        stack.append(maker)

    def _return(self, maker: int, event: int, users: Iterable[int]) -> bool:
        """Note who brings a result back at an event; whether that is new."""
        known = self.returns.setdefault((maker, event), set())
        before = len(known)
        known.update(users)
        return len(known) > before

    def programme(self, budget: int | None) -> "StepProgramme":
        """The programme of a budget.

        Args:
            budget: bytes; without, the cost is the peak.
        """
        return StepProgramme(self, budget)

    def learn(self, forgotten: Iterable[int]) -> tuple[Choice, bool]:
        """Simulate a choice, and learn who brings back what early.

        Args:
            forgotten: places of the operators.

        Returns:
            What is forgotten then, simulated, and whether there was something new.
        """
        found = False

        def watch(event: int, users: Mapping[int, Collection[int]]) -> None:
            nonlocal found
            for maker, places in users.items():
                if event < self.first_asked.get(maker, len(self.base)):
                    found = self._return(maker, event, places) or found

        return self.simulation.choice(forgotten, watch), found

    def demand(self, simulated: Simulated, told: Sequence[float], budget: int) -> None:
        """Ask for the bytes that rows do not tell of, where a simulated step is over its budget.

        What is chosen then is more likely to fit; its seconds are no bound any more.

        Args:
            simulated: the step.
            told: the bytes at each event that its programme knows of.
            budget: bytes.
        """
        for event, (live, known) in enumerate(zip(simulated.live, told, strict=True)):
            if live > budget:
                self.excess[event] = max(self.excess[event], math.ceil(live - known))


class StepProgramme:
    """One programme.

    Args:
        relaxation: what is known of the step.
        budget: bytes; without, the cost is the peak.
    """

    def __init__(self, relaxation: Relaxation, budget: int | None) -> None:
        self._relaxation = relaxation
        self._simulation = relaxation.simulation
        self._operators = self._simulation.tape.operators
        self._memories = self._simulation.tape.memories
        self._programme = Programme()
        self._budget = budget
        # Variables, and by event the changes of live bytes that they bring.
        price = MICROSECONDS if budget is not None else 0.0
        able = relaxation.able
        self._forgotten = {p: self._programme.variable(integer=True) for p in able}
        self._replays = {
            place: self._programme.variable(
                price * self._operators[place].replay_seconds, upper=float("inf")
            )
            for place in able
        }
        # Whether it runs again at all: if it is forgotten and asked for, or another needs it.
        self._needed_once = {
            place: self._forgotten[place]
            if place in relaxation.first_asked
            else self._programme.variable()
            for place in able
        }
        self._changes: dict[int, list[tuple[int, int]]] = {}
        self._returned: dict[int, dict[int, int]] = {}
        self._learned_rows()
        for place in able:
            self._replay_rows(place)
            self._absences(place)
            self._passing(place)
        self._held()
        self._event_rows()
        # By event, what a solution has alive there.
        self.told: list[float] = []
        self.is_finished = True  # see Solution

    @property
    def rows(self) -> int:
        """Its size: what solving it takes grows with it."""
        return self._programme.rows

    def solve(self, *, nodes: int, gap: float) -> tuple[frozenset[int] | None, float]:
        """What to forget, or ``None``, and a bound of the cost: seconds, or bytes of the peak.

        Args:
            nodes: see :meth:`Programme.solve`.
            gap: see :meth:`Programme.solve`.
        """
        solution = self._programme.solve(nodes=nodes, gap=gap)
        self.is_finished = solution.is_finished
        scale = self._unit if self._budget is None else 1 / MICROSECONDS
        if not solution.values:
            return None, scale * solution.bound
        changes = [0.0] * len(self._relaxation.base)
        for event, each in self._changes.items():
            if event < len(changes):
                changes[event] += sum(size * solution.values[one] for one, size in each)
        more = itertools.accumulate(changes)
        self.told = [
            live + change for live, change in zip(self._relaxation.base, more, strict=True)
        ]
        on = {place for place, one in self._forgotten.items() if solution.values[one] > 0.5}
        return frozenset(self._needed(on)), scale * solution.bound

    def _needed(self, forgotten: set[int]) -> set[int]:
        """Without what nobody asks for, and no replay needs."""
        found = {place for place in forgotten if self._saved(place)}
        stack = list(found)
        while stack:
            for maker, _ in self._simulation.makers[stack.pop()]:
                if maker in forgotten and maker not in found:
                    found.add(maker)
                    stack.append(maker)
        return found

    def _saved(self, place: int) -> list[int]:
        results = self._operators[place].results
        return [result for result in results if self._memories[result].saved]

    def _change(self, start: int, stop: int, variable: int, size: int) -> None:
        """A variable brings some bytes from one event until before another."""
        if stop > start:
            self._changes.setdefault(start, []).append((variable, size))
            self._changes.setdefault(stop, []).append((variable, -size))

    def _replay_rows(self, place: int) -> None:
        """Who is needed runs, and needs those whose results are not there any more."""
        at_least, forgotten = self._programme.at_least, self._forgotten
        needed, replays = self._needed_once, self._replays
        at_least([(replays[place], 1), (needed[place], -1)], 0)
        for maker, source in self._simulation.makers[place]:
            if maker not in forgotten or self._memories[source].saved:
                continue
            if source in self._simulation.passed:
                at_least([(forgotten[maker], 1), (forgotten[place], -1)], 0)
                at_least([(replays[maker], 1), (replays[place], -1)], 0)
                at_least([(needed[maker], 1), (needed[place], -1)], 0)
            else:
                terms = [(needed[maker], 1), (needed[place], -1), (forgotten[maker], -1)]
                at_least(terms, -1)

    def _learned_rows(self) -> None:
        """Whether results are back by the event of a replay, before they are asked for."""
        for maker, event in sorted(self._relaxation.returns):
            self._returned.setdefault(maker, {})[event] = self._programme.variable()
        for (maker, event), users in sorted(self._relaxation.returns.items()):
            back = self._returned[maker][event]
            for user in sorted(users):
                asked = self._relaxation.first_asked.get(user, event + 1) <= event
                needed = self._forgotten[user] if asked else self._returned[user][event]
                terms = [(back, 1), (needed, -1), (self._forgotten[maker], -1)]
                self._programme.at_least(terms, -1)
        for maker, events in self._returned.items():
            if self._saved(maker):  # once back, they stay until they are asked for
                for earlier, later in zip(list(events), list(events)[1:], strict=False):
                    terms = [(events[later], 1), (events[earlier], -1)]
                    self._programme.at_least(terms, 0)

    def _absences(self, place: int) -> None:
        """A forgotten result is away, until it is asked for or returns early."""
        asked = self._relaxation.first_asked.get(place)
        for result in self._operators[place].results:
            memory = self._memories[result]
            until = memory.let_go
            if until <= memory.freed:
                continue
            if asked is not None and self._simulation.held_until(result, asked) > asked:
                until = min(until, max(asked, memory.freed))
            self._change(memory.freed, until, self._forgotten[place], -memory.size)
            if memory.saved and place in self._returned:
                events = list(self._returned[place].items())
                ends = [event for event, _ in events[1:]]
                for (event, back), end in zip(events, [*ends, until], strict=True):
                    start = max(event, memory.freed)
                    self._change(start, min(end, until), back, memory.size)

    def _held(self) -> None:
        """What forgotten results are computed from is held as long as these are noted."""
        readers: dict[int, list[tuple[int, int]]] = {}
        for place in self._forgotten:
            reader = self._operators[place]
            until = max(self._simulation.noted[result] for result in reader.results)
            for source in (*reader.sources, *reader.kept):
                if until > self._memories[source].let_go:
                    readers.setdefault(source, []).append((until, place))
        for source, found in readers.items():
            memory = self._memories[source]
            maker = memory.operator
            without: list[tuple[int, float]] = []
            if maker in self._forgotten and source not in self._operators[maker].kept:
                without.append((self._forgotten[maker], 1))  # computed again, not held
            start, before = memory.let_go, None
            for stop, alike in itertools.groupby(sorted(found), key=operator.itemgetter(0)):
                held = self._programme.variable()
                for _, place in alike:
                    terms = [(held, 1), (self._forgotten[place], -1), *without]
                    self._programme.at_least(terms, 0)
                if before is not None:  # who needs it for longer needs it until then too
                    self._programme.at_least([(before, 1), (held, -1)], 0)
                self._change(start, stop, held, memory.size)
                start, before = stop, held

    def _passing(self, place: int) -> None:
        """Who runs again when it is asked for needs what is passed to it for a moment.

        It does if nobody can have needed it before.
        """
        asked = self._relaxation.first_asked.get(place)
        if asked is None:
            return
        makers = self._simulation.makers[place]
        passed = {
            s for maker, s in makers if maker in self._forgotten and s in self._simulation.passed
        }
        size = sum(self._memories[source].size for source in passed)
        if size:
            runs, forgotten = self._programme.variable(), self._forgotten
            readers = self._relaxation.readers.get(place, ())
            earlier = [(forgotten[one], 1) for one in readers if one in forgotten]
            self._programme.at_least([(runs, 1), (forgotten[place], -1), *earlier], 0)
            self._change(asked, asked + 1, runs, size)

    @property
    def _unit(self) -> float:
        """Bytes that count as one."""
        return (self._budget or max(self._relaxation.base, default=0) or 1) / UNITS

    def _event_rows(self) -> None:
        """At no event the bytes are over the budget, or over the peak that is looked for."""
        programme, unit, base = self._programme, self._unit, self._relaxation.base
        peak = None
        if self._budget is None:
            peak = programme.variable(1.0, upper=float("inf"))
        starts = sorted(event for event in {0, *self._changes} if event < len(base))
        less: int | None = None  # how many bytes less are alive
        for start, stop in zip(starts, [*starts[1:], len(base)], strict=True):
            now = programme.variable(lower=-float("inf"), upper=float("inf"))
            before: list[tuple[int, float]] = [] if less is None else [(less, 1.0)]
            changes = [(one, -size / unit) for one, size in self._changes.get(start, ())]
            programme.at_least([(now, -1), *before, *changes], 0)
            excess = self._relaxation.excess[start:stop]
            need = max(live + more for live, more in zip(base[start:stop], excess, strict=True))
            spared = [] if peak is None else [(peak, 1.0)]
            programme.at_least([(now, 1), *spared], (need - (self._budget or 0)) / unit)
            less = now
