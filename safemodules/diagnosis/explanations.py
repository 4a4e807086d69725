"""Errors of a training step that are not about a version, and what causes them, as a table."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from safemodules.mutation.frames import Where, line_at
from safemodules.mutation.graph import find_freed, walk_graph
from safemodules.mutation.operations import Operation
from safemodules.mutation.recorder import Recorder

__all__ = ["EXPLANATIONS", "Explanation", "explain_message"]

_PARAMETER = re.compile(r"Parameter at index \d+ with name (\S+) has been marked as ready twice")


@dataclass(frozen=True)
class Explanation:
    """An error of torch, by a part of its text.

    Attributes:
        text: part of what torch says.
        meaning: what that means, and what to do.
        evidence: what the run, and the rest of the text, tell about it, as sentences.
    """

    text: str
    meaning: str
    evidence: Callable[[Recorder, str], Iterable[str]]


def _freed_graph(recorder: Recorder, message: str) -> Iterable[str]:
    roots = [root for backward in recorder.raised for root in backward.outputs]
    freed = find_freed(roots, recorder)
    if freed is None:
        return
    yield f"The part that was freed was made at {freed.where.line}."
    earlier = [b for b in recorder.backwards if b.time > freed.time]
    if earlier:
        yield f"A backward ran through it before at {earlier[0].where.line}."


def _regions(recorder: Recorder) -> list[Where]:
    """One of each checkpointed region that ran, by the line that called checkpoint."""
    return list({where.region: where for where in recorder.regions}.values())


def _ready_twice(recorder: Recorder, message: str) -> Iterable[str]:
    """Which of the causes of a parameter that is ready twice the run has shown."""
    regions = [where for where in recorder.regions if where.reentrant]
    if not regions:
        yield "No reentrant checkpoint was seen, so look for two forwards before one backward."
        return
    roots = list({id(where.root): where.root for where in regions}.values())
    wrapped = [root for root in roots if isinstance(root, DistributedDataParallel)]
    searching = any(root.find_unused_parameters for root in wrapped)
    if searching:
        yield "Seen: find_unused_parameters=True on the DistributedDataParallel module."
    outside, name = None, _named_parameter(message)
    for root in wrapped:
        parameter = dict(root.module.named_parameters()).get(name)
        outside = outside or _use_outside(recorder, parameter)
    if outside is not None:
        line = outside.where.line
        yield f"Seen: {name} is used outside of the checkpointed region too, at {line}."
    calls = Counter(where.region for where in regions)
    for region, times in calls.items():
        assert region is not None
        yield f"Seen: a reentrant checkpoint called at {line_at(region)}."
        if times > 1:
            yield (
                f"It ran {times} times before this error: a block that runs twice, or two "
                "forwards before one backward, reports its parameters twice."
            )
    if wrapped and name and len(calls) == len(regions) > 1 and not searching and outside is None:
        yield f"Nothing else uses {name}, so at least two of these regions share it."


def _named_parameter(message: str) -> str:
    """The parameter that DistributedDataParallel names, empty if it names none."""
    found = _PARAMETER.search(message)
    return "" if found is None else found[1].lstrip(".")


def _use_outside(recorder: Recorder, parameter: Any) -> Operation | None:
    """What uses a parameter in the graph that the outermost backward ran.

    What a reentrant region uses is no part of it.
    """
    if parameter is None or not recorder.raised:
        return None
    for noted in walk_graph(recorder.raised[-1].outputs, recorder):
        if getattr(noted.node, "variable", None) is parameter:
            return noted.operation
    return None


def _changed_region(recorder: Recorder, message: str) -> Iterable[str]:
    for where in _regions(recorder)[-3:]:
        assert where.region is not None
        yield f"A checkpointed region that ran: {line_at(where.region)}."


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "Trying to backward through the graph a second time",
        "A graph is freed by its first backward. Either two losses share a part of it: add them "
        "and call backward once, or pass retain_graph=True to all but the last. Or a tensor is "
        "carried from one step into the next: detach it between the steps, h = h.detach().",
        _freed_graph,
    ),
    Explanation(
        "Expected to mark a variable ready only once",
        "Under DistributedDataParallel a parameter reported its gradient twice. Causes: a "
        "reentrant checkpoint (use_reentrant=True) together with find_unused_parameters=True, or "
        "of a block that runs twice, or whose parameters are used outside it too; or two "
        "forwards before one backward. Pass use_reentrant=False to every checkpoint.",
        _ready_twice,
    ),
    Explanation(
        "Recomputed values for the following tensors have different metadata",
        "The checkpointed function did not repeat itself in backward: it depends on something "
        "that changed since the forward, such as a counter, a cache, a rebound variable or a "
        "random choice. Make everything that it reads an argument.",
        _changed_region,
    ),
    Explanation(
        "A different number of tensors was saved during the original forward and recomputation",
        "The checkpointed function did not repeat itself in backward: another branch ran, or "
        "autocast, a cache or a batch norm without running statistics made it save other "
        "tensors. Make everything that it reads an argument.",
        _changed_region,
    ),
)


def explain_message(message: str, recorder: Recorder) -> list[str]:
    """Explanations of an error, by its text.

    Example:
        >>> [text] = explain_message(
        ...     "Trying to backward through the graph a second time", Recorder()
        ... )
        >>> text[:41]
        'A graph is freed by its first backward. E'
    """
    return [
        "\n".join([row.meaning, *row.evidence(recorder, message)])
        for row in EXPLANATIONS
        if row.text in message
    ]
