"""Which children of a sequence are run together as one checkpointed region.

NOTE [ Overwriting children ]: a region that overwrites its own input keeps a copy of it. So a
child that overwrites what it is given (``nn.ReLU(inplace=True)``) belongs to the region of the
child that made it, and what merely hands a tensor on (``nn.Flatten``) does not part the two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from safemodules.errors import OptionError

__all__ = ["LOG", "SQRT", "Segmentation", "Span", "regroup", "spans_of", "starts_of"]

SQRT: Final = "sqrt"
LOG: Final = "log"

# What they return may be what they were given, or a view of it.
_HANDING_ON: Final = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@dataclass(frozen=True)
class Span:
    """Consecutive children.

    Attributes:
        start: index of the first.
        stop: index after the last.
        is_checkpointed: whether they are run as a checkpointed region.
        inner: the spans that they are run by inside of it; none, if all are run plain.
    """

    start: int
    stop: int
    is_checkpointed: bool
    inner: "tuple[Span, ...]" = ()


@dataclass(frozen=True)
class Segmentation:
    """How a sequence is checkpointed; see the arguments of ``CheckpointedSeq``."""

    segments: int | str | tuple[int, ...] | None = None
    policy: Any = None
    spread: bool = False
    checkpoint_last: bool = False

    @classmethod
    def checked(cls, segments: Any, policy: Any, spread: bool, last: bool, length: int) -> Any:
        """Make one of what a user gave.

        Raises:
            OptionError: ``segments`` is nothing that is known, or does not fit the length.
        """
        if isinstance(segments, Sequence) and not isinstance(segments, str):
            segments = tuple(segments)
        if not _is_known(segments, length):
            raise OptionError(
                f"segments={segments!r} for {length} children. Expected None (each child is a "
                f"segment), a number of segments, {SQRT!r}, {LOG!r}, or the indices at which "
                f"later segments begin, in ascending order and between 1 and "
                f"{max(length - 1, 1)}."
            )
        return cls(segments, policy, spread, last)


def _is_known(segments: Any, length: int) -> bool:
    if segments is None or isinstance(segments, str):
        return segments in (None, SQRT, LOG)
    if isinstance(segments, tuple):
        whole = all(isinstance(index, int) and index > 0 for index in segments)
        return (
            whole
            and list(segments) == sorted(set(segments))
            and not (length and segments and segments[-1] >= length)
        )
    return isinstance(segments, int) and not isinstance(segments, bool) and segments > 0


def _overwrites(module: nn.Module) -> bool:
    """Whether a module is known to overwrite what it is given."""
    if isinstance(module, nn.Sequential):
        for child in module:
            if _overwrites(child):
                return True
            if not _hands_on(child):
                return False
        return False
    return getattr(module, "inplace", False) is True and next(module.children(), None) is None


def _hands_on(module: nn.Module) -> bool:
    if isinstance(module, nn.Sequential):
        return all(map(_hands_on, module))
    return isinstance(module, _HANDING_ON) or _overwrites(module)


def starts_of(children: Sequence[nn.Module]) -> list[int]:
    """Indices at which a region may begin, see NOTE [ Overwriting children ].

    The first of them is not 0 where the first children overwrite the sequence's own input.

    Args:
        children: the children.

    Example:
        >>> starts_of([nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2), nn.ReLU()])
        [0, 2, 3]
    """
    found: list[int] = []
    for index, child in enumerate(children):
        if _overwrites(child):
            while found and _hands_on(children[found[-1]]):
                found.pop()
        else:
            found.append(index)
    return found


def _chosen(segments: int | str | tuple[int, ...] | None, starts: list[int]) -> list[int]:
    """Where segments begin."""
    if isinstance(segments, tuple):
        moved = [next((s for s in starts if s >= index), None) for index in segments]
        return sorted({*starts[:1], *(index for index in moved if index is not None)})
    count = len(starts)
    if segments == SQRT:
        count = round(math.sqrt(count))
    elif isinstance(segments, int):
        count = min(segments, count)
    return [starts[index * len(starts) // count] for index in range(count)]


def _spine(bounds: list[int], last: bool) -> tuple[Span, ...]:
    """Halves of halves: the first half is one region, the other is halved again."""
    if len(bounds) == 2:
        return (Span(bounds[0], bounds[1], last),)
    middle = (len(bounds) - 1) // 2
    first = _spine(bounds[: middle + 1], False)
    half = Span(bounds[0], bounds[middle], True, first if len(first) > 1 else ())
    return (half, *_spine(bounds[middle:], last))


def spans_of(children: Sequence[nn.Module], segmentation: Segmentation) -> tuple[Span, ...]:
    """The spans that a sequence is run by.

    Args:
        children: its children.
        segmentation: how it is checkpointed.

    Example:
        >>> layers = [nn.Linear(2, 2) for _ in range(5)]
        >>> [(s.start, s.stop) for s in spans_of(layers, Segmentation(2)) if s.is_checkpointed]
        [(0, 2)]
    """
    last = segmentation.checkpoint_last
    starts = starts_of(children)
    if not starts:
        return (Span(0, len(children), False),) if children else ()
    head = (Span(0, starts[0], False),) if starts[0] else ()
    if segmentation.segments == LOG:
        return head + _spine([*starts, len(children)], last)
    bounds = [*_chosen(segmentation.segments, starts), len(children)]
    final = len(bounds) - 2
    return head + tuple(
        Span(bounds[i], bounds[i + 1], last or i < final) for i in range(len(bounds) - 1)
    )


def regroup(
    segments: int | str | tuple[int, ...] | None, kept: Sequence[int]
) -> int | str | tuple[int, ...] | None:
    """Boundaries of what is left of a sequence; anything else stays as it is.

    Args:
        segments: how the sequence was divided.
        kept: indices of the children that are left, in their new order.

    Example:
        >>> regroup((2, 4), range(1, 5))
        (1, 3)
    """
    if not isinstance(segments, tuple):
        return segments
    group = [sum(index >= bound for bound in segments) for index in kept]
    return tuple(i for i in range(1, len(group)) if group[i] != group[i - 1])
