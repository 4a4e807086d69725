"""Find which of many changes make a difference."""

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["find_guilty"]

T = TypeVar("T")


def find_guilty(things: Sequence[T], differs: Callable[[Sequence[T]], bool]) -> list[T]:
    """The things that make a difference, by bisection.

    Args:
        things: things (sites, regions) that together make a difference.
        differs: whether only some of them make one.

    Returns:
        At least one thing; without those returned, nothing differs.

    Example:
        >>> find_guilty(list(range(9)), lambda some: 3 in some or {5, 7} <= set(some))
        [3, 5, 7]
    """
    guilty: list[T] = []
    rest = list(things)
    while rest and differs(rest):
        found = _one_group(rest, differs)
        guilty += found
        rest = [thing for thing in rest if thing not in found]
    return sorted(guilty, key=list(things).index)


def _one_group(things: list[T], differs: Callable[[Sequence[T]], bool]) -> list[T]:
    """A smallest group of things that makes a difference together."""
    group: list[T] = []
    rest = things
    while not (group and differs(group)):
        # the shortest prefix that differs, with the group so far, ends in a guilty thing
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            if differs([*group, *rest[:middle]]):
                high = middle
            else:
                low = middle
        group.append(rest[high - 1])
        rest = rest[: high - 1]
    return group
