"""A mixed integer programme, written row by row; HiGHS solves it where scipy is installed."""

import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Programme", "Solution", "is_solvable"]

_OPTIMAL, _INFEASIBLE = 0, 2  # statuses of scipy.optimize.milp


def is_solvable() -> bool:
    """Whether there is a solver: scipy, of the extra ``plan``."""
    return importlib.util.find_spec("scipy") is not None


@dataclass(frozen=True)
class Solution:
    """What a solver has found.

    Attributes:
        values: of the variables; empty if no solution was found.
        bound: no solution costs less; infinity if there is none.
        is_finished: whether it is as near to the best as was asked for.
    """

    values: tuple[float, ...]
    bound: float
    is_finished: bool = True


class Programme:
    """Costs of variables, and sums of them that must not be too small.

    Example:
        >>> programme = Programme()
        >>> x, y = programme.variable(cost=3, integer=True), programme.variable(cost=2)
        >>> programme.at_least([(x, 4), (y, 1)], 2)
        >>> if is_solvable():
        ...     assert programme.solve(nodes=10, gap=0.0) == Solution((1.0, 0.0), 3.0)
    """

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._integer: list[bool] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._least: list[float] = []
        self._entries: tuple[list[float], list[int], list[int]] = ([], [], [])

    def variable(
        self,
        cost: float = 0.0,
        *,
        integer: bool = False,
        lower: float = 0.0,
        upper: float = 1.0,
    ) -> int:
        """Add a variable; returns its number.

        Args:
            cost: of each unit of it.
            integer: whether it is a whole number.
            lower: its least value.
            upper: its largest.
        """
        self._costs.append(cost)
        self._integer.append(integer)
        self._lower.append(lower)
        self._upper.append(upper)
        return len(self._costs) - 1

    def at_least(self, terms: Iterable[tuple[int, float]], least: float) -> None:
        """Add a row.

        Args:
            terms: variables and their factors.
            least: the smallest sum that is allowed.
        """
        values, rows, columns = self._entries
        for variable, factor in terms:
            values.append(factor)
            rows.append(len(self._least))
            columns.append(variable)
        self._least.append(least)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._least)

    def solve(self, *, nodes: int, gap: float) -> Solution:
        """Minimise the cost; the same programme has the same solution.

        Args:
            nodes: how many nodes of the search tree are looked at. There is no limit of time,
                which would let chance decide.
            gap: how far from the best a solution may be, as a share of its cost.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # only who plans needs it
        from scipy.sparse import coo_array

        values, rows, columns = self._entries
        shape = len(self._least), len(self._costs)
        matrix = coo_array((values, (rows, columns)), shape=shape).tocsr()
        found = milp(
            self._costs,
            constraints=LinearConstraint(matrix, self._least, math.inf),
            integrality=self._integer,
            bounds=Bounds(self._lower, self._upper),
            options={"node_limit": nodes, "mip_rel_gap": gap},
        )
        if found.status == _INFEASIBLE:
            return Solution((), math.inf)
        bound = found.get("mip_dual_bound")
        return Solution(
            () if found.x is None else tuple(map(float, found.x)),
            -math.inf if bound is None else float(bound),
            found.status == _OPTIMAL,
        )
