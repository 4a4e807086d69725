"""Run the spans of a sequence, each plain or as a checkpointed region."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from safemodules.blocks.segments import Segmentation, Span
from safemodules.checkpointing import checkpoint

__all__ = ["Segment", "run_children", "run_spans", "unused_keywords"]


def _takes(function: Any, name: str) -> bool:
    """Whether a function may be given an argument by that name."""
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        parameters = inspect.signature(function).parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    count = code.co_argcount + code.co_kwonlyargcount
    named = code.co_varnames[code.co_posonlyargcount : count]
    return bool(code.co_flags & inspect.CO_VARKEYWORDS) or name in named


def _taken(child: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some keyword arguments that a child takes."""
    if isinstance(child, nn.Sequential):
        inner = [_taken(grandchild, kwargs) for grandchild in child]
        return {name: value for name, value in kwargs.items() if any(name in i for i in inner)}
    return {name: value for name, value in kwargs.items() if _takes(child.forward, name)}


def unused_keywords(children: Sequence[nn.Module], kwargs: Mapping[str, Any]) -> list[str]:
    """Keywords that no child takes."""
    taken = {name for child in children for name in _taken(child, kwargs)}
    return [name for name in kwargs if name not in taken]


def run_children(
    children: Sequence[nn.Module], spread: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run children one after the other.

    Args:
        children: at least one child.
        spread: whether a tuple that a child returns is the next one's positional arguments.
        args: positional arguments of the first.
        kwargs: keyword arguments, of which each child gets those that it takes.
    """
    out: Any = None
    for child in children:
        out = child(*args, **_taken(child, kwargs)) if kwargs else child(*args)
        args = out if spread and type(out) is tuple else (out,)
    return out


class Segment:
    """Consecutive children as a function, to be checkpointed.

    Args:
        children: all children of the sequence.
        span: which of them.
        segmentation: how the sequence is checkpointed.
    """

    def __init__(
        self, children: Sequence[nn.Module], span: Span, segmentation: Segmentation
    ) -> None:
        self.children = children[span.start : span.stop]
        self.first = span.start
        self.inner = span.inner
        self.segmentation = segmentation
        self.__qualname__ = f"CheckpointedSeq[{span.start}:{span.stop}]"

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the children."""
        if not self.inner:
            return run_children(self.children, self.segmentation.spread, args, kwargs)
        inner = [_moved(span, -self.first) for span in self.inner]
        return run_spans(self.children, inner, self.segmentation, args, kwargs)


def _moved(span: Span, by: int) -> Span:
    inner = tuple(_moved(part, by) for part in span.inner)
    return Span(span.start + by, span.stop + by, span.is_checkpointed, inner)


def run_spans(
    children: Sequence[nn.Module],
    spans: Sequence[Span],
    segmentation: Segmentation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run children by spans.

    Args:
        children: the children.
        spans: consecutive spans that hold all of them.
        segmentation: how the sequence is checkpointed.
        args: positional arguments of the first child.
        kwargs: keyword arguments, of which each child gets those that it takes.
    """
    out: Any = None
    for span in spans:
        if not span.is_checkpointed:
            own = children[span.start : span.stop]
            out = run_children(own, segmentation.spread, args, kwargs)
        elif span.stop - span.start == 1 and len(args) == 1 and not kwargs:
            out = checkpoint(children[span.start], args[0], policy=segmentation.policy)
        else:
            segment = Segment(children, span, segmentation)
            out = checkpoint(segment, args, kwargs, policy=segmentation.policy)
        args = out if segmentation.spread and type(out) is tuple else (out,)
    return out
