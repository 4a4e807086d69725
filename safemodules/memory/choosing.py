"""Which results to forget, so that a step fits a budget and computes as little as possible again.

Where scipy is installed, an integer programme tells, and proves how near to the best its choice
is; without, or where that is not near enough, a search goes on.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from safemodules.memory.programme import is_solvable
from safemodules.memory.relaxation import Relaxation
from safemodules.memory.search import FEW, Search, least_seconds
from safemodules.memory.simulation import Choice, Simulation

__all__ = ["Chosen", "Lowest", "choose"]

# A programme is solved again with more rows while they are few in all: what bounds the time,
# alike on any machine.
ROWS = 12_000
LEARNED = 6
# After so many that the solver did not finish, no more is learned.
HARD = 2
# And where nothing was learned or there are too many, with less of the budget.
DEMANDS = 8
NODES = 50
# How near to the best solutions are to be; the first may be good enough as it is, and of those with
# less of the budget it is enough that they fit.
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
    bound *= 1 - EXACT
    if math.isinf(bound):
        return Chosen(None, bound, _lowest(simulation))
    starts = [None, start]
    if start is not None and start.simulated.peak <= budget:
        if _is_near(start, bound, simulation):
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
    """Search on from some choices, ``None`` is nothing; ``None`` if none is found that fits."""
    searches = [_fitted(simulation, budget, start) for start in dict.fromkeys(starts)]
    fitting = [search for search in searches if search.fits]
    if not fitting:
        return None
    search = min(fitting, key=lambda search: search.best.simulated.seconds)
    search.improve()
    return search.best


def _fitted(simulation: Simulation, budget: int, start: Choice | None) -> Search:
    search = Search(simulation, budget, start=() if start is None else start.forgotten)
    if start is not None and start.simulated.peak <= budget:
        search.accept(start)
    elif len(simulation.candidates) <= FEW:
        search.try_all()
    else:
        search.forget()
    return search


def _programmed(simulation: Simulation, budget: int) -> tuple[Choice | None, float]:
    """The programme's choice that fits, or comes nearest to it, and the bound."""
    relaxation = Relaxation(simulation)
    best: Choice | None = None
    bound, rows, learned, demanded, hard = 0.0, 0, 0, 0, 0
    while demanded <= DEMANDS:
        programme = relaxation.programme(budget)
        rows += programme.rows
        is_rough = demanded > 0 or not learned
        forgotten, least = programme.solve(nodes=NODES, gap=ROUGH if is_rough else GAP)
        if not demanded:
            bound = max(bound, least)
        if forgotten is None:
            break
        choice, is_new = relaxation.learn(forgotten)
        best = min(
            (best or choice, choice),
            key=lambda one: (one.simulated.excess(budget), one.simulated.seconds),
        )
        fits = choice.simulated.peak <= budget
        if fits and (demanded or not is_rough or _is_near(choice, bound, simulation)):
            break
        learned += 1
        hard += not programme.is_finished
        if not fits and (not is_new or learned >= LEARNED or rows >= ROWS or hard >= HARD):
            relaxation.demand(choice.simulated, programme.told, budget)
            demanded += 1
    return best, bound


def _is_near(choice: Choice, bound: float, simulation: Simulation) -> bool:
    return choice.simulated.seconds <= bound + NEAR * simulation.tape.seconds


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
        choice, is_new = relaxation.learn(forgotten)
        if choice.simulated.peak < best.simulated.peak:
            best = choice
        if not is_new:
            break
    return Lowest(best, int(bound * (1 - EXACT)))
