"""What one step of training has allocated, as plain data.

NOTE [ Clock ]: time is counted in events: one for each operator, forward and backward, and one
each time that backward asks for a saved tensor. A memory that was made by event 3 and freed
before event 7 is alive at the events 3, 4, 5 and 6.

NOTE [ Natural Life ]: a step is recorded with saved-tensor hooks that keep nothing. So the tape
tells of every memory how long it lives without being saved for backward, and apart from that when
backward asks for it and lets it go. From both follows what the step needs, whichever of them are
kept and whichever are forgotten and computed again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from safemodules.checkpointing.forgetting import Forgetting
from safemodules.memory.overhead import Overhead

__all__ = ["Memory", "Operator", "Saved", "Tape"]


@dataclass(frozen=True)
class Saved:
    """A tensor that was saved for backward.

    Attributes:
        asked: the events at which backward has asked for it.
        freed: the event before which it was let go.
    """

    asked: tuple[int, ...]
    freed: int


@dataclass(frozen=True)
class Memory:
    """One memory: what several tensors, views of each other, may share.

    Attributes:
        size: bytes.
        made: the event that has made it.
        freed: the event before which it was freed, had it not been saved.
        operator: place in the forward of the operator that made it; ``None`` in the backward.
        saved: the tensors in it that were saved.
        is_gradient: whether it is the gradient of a parameter.
    """

    size: int
    made: int
    freed: int
    operator: int | None
    saved: tuple[Saved, ...] = ()
    is_gradient: bool = False

    @property
    def let_go(self) -> int:
        """The event before which it is freed if it is kept."""
        return max((self.freed, *(saved.freed for saved in self.saved)))


@dataclass(frozen=True)
class Operator:
    """An operator of the forward.

    Attributes:
        name: such as ``"aten.relu.default"``.
        module: dotted path of the module that ran it.
        event: when it ran.
        sources: memories that it read, of those that the step has made.
        results: memories that it made, and that are forgotten if it is.
        kept: memories that it made, and that are kept to make running it again cheaper.
        seconds: what it took.
        replay_seconds: what it takes to run it again.
        can_replay: whether it can be run again, see NOTE [ Replays ].
        flops: floating-point operations of matrix products, convolutions and attention.
        call: the place of the call of a torch function that has led to it.
        place: its place in that call, see NOTE [ Places in a Forward ].
    """

    name: str
    module: str
    event: int
    sources: tuple[int, ...]
    results: tuple[int, ...]
    seconds: float
    replay_seconds: float
    can_replay: bool
    kept: tuple[int, ...] = ()
    flops: int = 0
    call: int = -1
    place: int = 0


@dataclass(frozen=True)
class Tape:
    """One step.

    Attributes:
        operators: the operators of the forward, in their order.
        memories: every memory that the step has made.
        events: number of events.
        forward_events: number of events of the forward.
        seconds: what all operators took, forward and backward.
        calls: number of calls of torch functions in the forward.
        saves: number of tensors that it saves for backward, those that the step has not made
            included.
        is_estimated: whether seconds were estimated from sizes, rather than measured.
        modules: the modules that were called, with the spans of operators of each call.
        forgetting_seconds: what the step takes longer if it forgets anything at all.
    """

    operators: tuple[Operator, ...]
    memories: tuple[Memory, ...]
    events: int
    forward_events: int
    seconds: float
    calls: int = 0
    saves: int = 0
    is_estimated: bool = False
    modules: "tuple[ModuleCall, ...]" = field(default=())
    forgetting_seconds: float = 0.0

    def costing(self, overhead: Overhead) -> "Tape":
        """The same, where forgetting costs more than computing again.

        Args:
            overhead: what it costs besides.
        """

        def dearer(operator: Operator) -> Operator:
            more = overhead.norm if operator.kept else overhead.operator
            return replace(operator, replay_seconds=operator.replay_seconds + more)

        return replace(
            self,
            operators=tuple(map(dearer, self.operators)),
            forgetting_seconds=overhead.forgetting(self.calls, self.saves),
        )

    def forgetting(self, places: Iterable[int]) -> Forgetting:
        """How a forward is told to forget the results of some operators.

        Args:
            places: their places in the forward.
        """
        found: dict[int, dict[int, str]] = {}
        for place in sorted(places):
            operator = self.operators[place]
            found.setdefault(operator.call, {})[operator.place] = operator.name
        return Forgetting(self.calls, found)


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module.

    Attributes:
        path: dotted path; empty for the model itself.
        kind: name of its class.
        start: place of the first operator that it ran.
        stop: place after the last.
        depth: number of calls around it.
        input_bytes: bytes of the tensors that it was given.
        output_bytes: bytes of those that it returned.
    """

    path: str
    kind: str
    start: int
    stop: int
    depth: int
    input_bytes: int
    output_bytes: int
