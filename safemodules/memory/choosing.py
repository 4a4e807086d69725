"""Which results to forget, so that a step fits a budget and computes as little as possible again.

Where scipy is installed, an integer programme tells, and proves how near to the best its choice
is; without, or where that is not near enough, a search goes on.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from safemodules.memory.programme import is_solvable
from safemodules.memory.relaxation import Relaxation
from safemodules.memory.search import FEW, Choice, Search, least_seconds
from safemodules.memory.simulation import Simulation

__all__ = ["Chosen", "Lowest", "choose"]

# A programme is solved again with more rows while they are few in all: what bounds the time,
# alike on any machine.
ROWS = 14_000
LEARNED = 6
# And where nothing was learned or there are too many, with less of the budget.
DEMANDS = 8
NODES = 50
GAP = 1e-2
ROUGH = 5e-2
# How exact a solver is at least.
EXACT = 1e-6
# A choice this near to the best, as a share of the step's seconds, is good enough.
NEAR = 1e-3


@dataclass(frozen=True)
class Lowest:
    """The smallest peak that a step can be brought to.

    Attributes:
        choice: the choice with the smallest that was found.
        bound: no choice has a smaller one.
    """

    choice: Choice
    bound: int


@dataclass(frozen=True)
class Chosen:
    """What to forget under a budget.

    Attributes:
        choice: the choice; ``None`` if none was found that fits.
        bound: seconds that no choice can do without; infinity if it is proven that none fits.
        lowest: where none fits, how low one comes.
    """

    choice: Choice | None
    bound: float
    lowest: Lowest | None = None


def choose(simulation: Simulation, budget: int) -> Chosen:
    """Choose what to forget.

    Args:
        simulation: simulates steps.
        budget: bytes.
    """
    bound, start = least_seconds(simulation, budget), None
    if is_solvable():
        start, proven = _programmed(simulation, budget)
        bound = max(bound, proven)
    if math.isinf(bound):
        return Chosen(None, bound, _lowest(simulation))
    starts = [None, start]
    if start is not None and start.simulated.peak <= budget:
        if start.simulated.seconds <= bound + NEAR * simulation.tape.seconds:
            return Chosen(start, bound)
        starts = [start]
    lowest = None
    found = _cheapest(simulation, budget, starts)
    if found is None:
        lowest = _lowest(simulation)
        if lowest.choice.simulated.peak <= budget:
            found = _cheapest(simulation, budget, [lowest.choice])
    return Chosen(found, bound, lowest)


def _cheapest(
    simulation: Simulation, budget: int, starts: Iterable[Choice | None]
) -> Choice | None:
    found = [_searched(simulation, budget, start) for start in dict.fromkeys(starts)]
    fitting = [choice for choice in found if choice is not None]
    return min(fitting, key=lambda choice: choice.simulated.seconds, default=None)


def _searched(simulation: Simulation, budget: int, start: Choice | None) -> Choice | None:
    """Search on from a choice, or from nothing; ``None`` if nothing is found that fits."""
    search = Search(simulation, budget, start=() if start is None else start.forgotten)
    if start is not None and start.simulated.peak <= budget:
        search.accept(start)
    elif len(simulation.candidates) <= FEW:
        search.try_all()
    else:
        search.forget()
    if not search.fits:
        return None
    search.keep()
    search.exchange()
    return search.best


def _programmed(simulation: Simulation, budget: int) -> tuple[Choice | None, float]:
    """The programme's choice that fits, or comes nearest to it, and the bound."""
    relaxation = Relaxation(simulation)
    nearest: Choice | None = None
    bound, rows, learned, demanded = 0.0, 0, 0, 0
    while demanded <= DEMANDS:
        programme = relaxation.programme(budget)
        rows += programme.rows
        forgotten, least = programme.solve(nodes=NODES, gap=ROUGH if demanded else GAP)
        if not demanded:
            bound = max(bound, least)
        if forgotten is None:
            break
        completed = simulation.completed(forgotten)
        simulated, is_new = relaxation.learn(completed)
        choice = Choice(completed, simulated)
        if simulated.peak <= budget:
            return choice, bound
        if nearest is None or simulated.excess(budget) < nearest.simulated.excess(budget):
            nearest = choice
        learned += 1
        if not is_new or learned >= LEARNED or rows >= ROWS:
            relaxation.demand(simulated, programme.told, budget)
            demanded += 1
    return nearest, bound


def _lowest(simulation: Simulation) -> Lowest:
    search = Search(simulation, 0)
    if len(simulation.candidates) <= FEW:
        search.try_all()
    else:
        search.forget()
    best, bound = search.lowest, 0.0
    if not is_solvable():
        return Lowest(best, 0)
    relaxation, rows = Relaxation(simulation), 0
    while rows < ROWS / 3 and best.simulated.peak > bound * (1 + GAP):
        programme = relaxation.programme(None)
        rows += programme.rows
        forgotten, least = programme.solve(nodes=NODES, gap=GAP)
        bound = max(bound, least)
        if forgotten is None:
            break
        completed = simulation.completed(forgotten)
        simulated, is_new = relaxation.learn(completed)
        if simulated.peak < best.simulated.peak:
            best = Choice(completed, simulated)
        if not is_new:
            break
    return Lowest(best, int(bound * (1 - EXACT)))
