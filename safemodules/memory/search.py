"""Search for what to forget, so that a step fits a budget and computes little again.

NOTE [ Search ]: a choice is judged by simulating the step. Where there are few results, all choices
are tried. Else three passes, all deterministic:

1. Forget. The results that are cheapest for their bytes are forgotten, as many as bring the step
   nearest to the budget; or those that it is started with, if they bring it nearer. While it is
   over the budget, the change is made that takes most of the excess away for each second that it
   adds: forgetting a result, or keeping one again, which cuts a long replay in two. The excess is
   summed over the events, so that a change counts that lowers one of two equal peaks. Where no
   single change lowers it, two or three neighbours are changed at once; and the way to a smaller
   budget may still lead below this one.
2. Keep. What is forgotten needlessly by now is kept again, the dearest first.
3. Exchange. A dear result is kept, and cheaper ones are forgotten in its place, or neighbours are
   changed at once, as long as that saves time.

How far from the best a choice can be is told by :func:`least_seconds`.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator

from safemodules.memory.simulation import Choice, Simulation

__all__ = ["FEW", "Search", "least_seconds"]

# How much may be simulated, in operators that are run again and eighths of events: what bounds the
# time of the search, alike on any machine.
WORK = 1_100_000
# The same for what improves a choice that fits.
POLISH = 300_000
# Of so many results every choice is tried.
FEW = 8
# Shares of the budget that are aimed at, one after the other, until it is met.
TARGETS = (1.0, 0.9, 0.75, 0.5)
# How many numbers of cheapest results are tried at first.
STARTS = 24
# So many neighbours are changed at once.
NEIGHBOURS = (2, 3)


class Search:
    """Looks for the best choice under a budget.

    Args:
        simulation: simulates choices.
        budget: bytes.
        work: how much may be simulated.
        start: places of operators to begin with, where they come nearer to the budget.
    """

    def __init__(
        self, simulation: Simulation, budget: int, work: int = WORK, start: Iterable[int] = ()
    ) -> None:
        self._given = frozenset(start)
        self._simulation = simulation
        self._budget = budget
        self._work = work
        self.chosen: frozenset[int] = frozenset()
        self.lowest = simulation.choice(())  # with the smallest peak
        self.best = self._judge(self.chosen)

    def _judge(self, chosen: Iterable[int]) -> Choice:
        choice = self._simulation.choice(chosen)
        simulated = choice.simulated
        self._work -= simulated.replays + len(simulated.live) // 8
        if simulated.peak < self.lowest.simulated.peak:
            self.lowest = choice
        return choice

    def _accept(self, chosen: frozenset[int], choice: Choice) -> None:
        self.chosen, self.best = chosen, choice

    def accept(self, choice: Choice) -> None:
        """Go on from a choice that fits.

        Args:
            choice: the choice.
        """
        self._accept(choice.forgotten, choice)

    @property
    def fits(self) -> bool:
        """Whether the best choice so far is within the budget."""
        return self.best.simulated.peak <= self._budget

    def try_all(self) -> None:
        """Judge every choice; where none fits, the one with the smallest peak is the best."""
        for count in range(1, len(self._simulation.candidates) + 1):
            for some in itertools.combinations(self._simulation.candidates, count):
                choice = self._judge(some)
                if self._is_cheaper(choice, self.best) or not self.fits:
                    if choice.simulated.peak <= max(self._budget, self.best.simulated.peak - 1):
                        self._accept(frozenset(some), choice)

    def forget(self) -> None:
        """The first pass."""
        budget = self._budget
        found: list[tuple[bool, float, frozenset[int], Choice]] = []
        for share in TARGETS:
            self._budget = int(share * budget)
            self._start()
            self._descend(budget)
            choice = self.best
            over = choice.simulated.peak > budget
            price = choice.simulated.peak if over else choice.simulated.seconds
            found.append((over, price, self.chosen, choice))
            if not over:
                break
        self._budget = budget
        _, _, chosen, choice = min(found, key=lambda each: each[:2])
        self._accept(chosen, choice)

    def _start(self) -> None:
        """Forget the cheapest results, as many as bring the step nearest to the budget."""
        ranked = sorted(self._simulation.candidates, key=self._price)
        tried = {round(len(ranked) * part / STARTS) for part in range(STARTS + 1)}
        starts = [self._given, *(frozenset(ranked[:count]) for count in sorted(tried))]
        judged = [(self._judge(start), start) for start in starts]
        best = min(judged, key=lambda each: (each[0].simulated.excess(self._budget), len(each[1])))
        self._accept(best[1], best[0])

    def _price(self, place: int) -> float:
        """Seconds for each byte that forgetting one result alone saves."""
        operators, memories = self._simulation.tape.operators, self._simulation.tape.memories
        seconds = sum(operators[p].replay_seconds for p in self._simulation.completed((place,)))
        results = (memories[one] for one in operators[place].results)
        return seconds / sum(memory.size for memory in results if memory.saved)

    def _descend(self, budget: int) -> None:
        """Make the best changes on the way to the target, until a budget is met."""
        gains: dict[int, float] = dict.fromkeys(self._simulation.candidates, float("inf"))
        while self.best.simulated.peak > budget and self._work > 0:
            found = self._most_worth(gains) or self._most_worth_together()
            if found is None:
                return
            self._accept(*found)

    def _most_worth_together(self) -> tuple[frozenset[int], Choice] | None:
        """The change of neighbours that takes most away for its price."""
        before = self.best.simulated
        found, most = None, 0.0
        for changed in self._neighbours_changed():
            choice = self._judge(changed)
            less = before.excess(self._budget) - choice.simulated.excess(self._budget)
            gain = less / max(choice.simulated.seconds - before.seconds, 1e-9)
            if gain > most:
                found, most = (changed, choice), gain
        return found

    def _neighbours_changed(self) -> Iterator[frozenset[int]]:
        """Some neighbours forgotten, or kept, or the other way round each, while there is work."""
        candidates, seen = self._simulation.candidates, {self.chosen}
        for count in NEIGHBOURS:
            for start in range(len(candidates) - count + 1):
                chosen, some = self.chosen, frozenset(candidates[start : start + count])
                for changed in (chosen | some, chosen - some, chosen ^ some):
                    if self._work <= 0:
                        return
                    if changed not in seen:
                        seen.add(changed)
                        yield changed

    def _most_worth(self, gains: dict[int, float]) -> tuple[frozenset[int], Choice] | None:
        """The change that takes most away for its price; looked up lazily.

        What a change was worth before is a good guess of what it is worth now: it is judged
        again until the best guess is a judgement.
        """
        excess = self.best.simulated.excess(self._budget)
        seconds = self.best.simulated.seconds
        heap = [(-gain, place) for place, gain in gains.items()]
        heapq.heapify(heap)
        judged: dict[int, tuple[frozenset[int], Choice]] = {}
        while heap and self._work > 0:
            negative, place = heapq.heappop(heap)
            if place in judged:
                return judged[place] if negative < 0 else None
            changed = self.chosen ^ {place}
            choice = self._judge(changed)
            less = excess - choice.simulated.excess(self._budget)
            dearer = choice.simulated.seconds - seconds
            gains[place] = less / max(dearer, 1e-9)
            judged[place] = changed, choice
            heapq.heappush(heap, (-gains[place], place))
        return None

    def improve(self) -> None:
        """The second and the third pass, from a choice that fits."""
        self._work = POLISH
        self._keep()
        self._exchange()

    def _keep(self) -> None:
        """The second pass."""
        operators = self._simulation.tape.operators
        dearest = sorted(self.chosen, key=lambda place: -operators[place].replay_seconds)
        for place in dearest:
            if self._work <= 0:
                return
            fewer = self.chosen - {place}
            choice = self._judge(fewer)
            if self._is_cheaper(choice, self.best):
                self._accept(fewer, choice)

    def _exchange(self) -> None:
        """The third pass."""
        operators = self._simulation.tape.operators
        improved = True
        while improved and self._work > 0:
            improved = False
            for place in sorted(self.chosen, key=lambda p: -operators[p].replay_seconds):
                if self._work <= 0:
                    break
                if place in self.chosen and self._exchanged(place):
                    improved = True
            for changed in self._neighbours_changed():
                choice = self._judge(changed)
                if self._is_cheaper(choice, self.best):
                    self._accept(changed, choice)
                    improved = True

    def _exchanged(self, place: int) -> bool:
        """Keep one result, and forget others until the step fits again."""
        chosen, best = self.chosen, self.best
        trial = chosen - {place}
        self._accept(trial, self._judge(trial))
        others = [p for p in self._simulation.candidates if p not in chosen]
        gains = dict.fromkeys(others, float("inf"))
        for _ in range(4):
            if self.fits or self._work <= 0 or not gains:
                break
            found = self._most_worth(gains)
            if found is None or found[1].simulated.seconds >= best.simulated.seconds:
                break
            self._accept(*found)
        if self._is_cheaper(self.best, best):
            return True
        self._accept(chosen, best)
        return self._swapped(place, others)

    def _swapped(self, place: int, others: list[int]) -> bool:
        """Forget one other result instead of a dear one."""
        operators = self._simulation.tape.operators
        least = operators[place].replay_seconds
        for other in sorted(others, key=self._price):
            if self._work <= 0:
                break
            if operators[other].replay_seconds < least:
                changed = (self.chosen - {place}) | {other}
                choice = self._judge(changed)
                if self._is_cheaper(choice, self.best):
                    self._accept(changed, choice)
                    return True
        return False

    def _is_cheaper(self, choice: Choice, than: Choice) -> bool:
        fits = choice.simulated.peak <= self._budget
        return fits and choice.simulated.seconds < than.simulated.seconds * (1 - 1e-6)


def least_seconds(simulation: Simulation, budget: int) -> float:
    """Seconds that no choice can do without.

    At the peak of a step that forgets nothing, whatever is over the budget has to be computed
    again at least once. The cheapest results by seconds and byte, the last of them in part, are
    a bound on any choice of results.

    Args:
        simulation: simulates steps.
        budget: bytes.
    """
    live = simulation.run(()).live
    peak = max(range(len(live)), key=live.__getitem__, default=0)
    tape = simulation.tape
    asked = {maker for _, _, maker in simulation.asks}
    offers = []
    for place in simulation.candidates:
        operator = tape.operators[place]
        memories = (tape.memories[one] for one in operator.results)
        gained = sum(m.size for m in memories if m.freed <= peak < m.let_go)
        if gained:
            seconds = operator.replay_seconds if place in asked else 0.0
            offers.append((seconds / gained, gained))
    seconds, over = 0.0, (live[peak] if live else 0) - budget
    for price, gained in sorted(offers):
        if over <= 0:
            break
        seconds += price * min(gained, over)
        over -= gained
    return seconds
