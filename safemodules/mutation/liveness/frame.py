"""One call of a function during an abstract run."""

from dataclasses import dataclass, field

from safemodules.mutation.liveness.values import Value
from safemodules.mutation.liveness.world import World
from safemodules.mutation.reach import Reached

State = tuple[dict[str, Value], World]


@dataclass(eq=False)
class Frame:
    """Names and memory on the path that is being run.

    Attributes:
        reached: the function.
        names: what each local name stands for.
        world: memory.
        depth: how deeply the call is nested.
        alive: the path goes on; otherwise it has returned, raised or left a loop.
        returns: what was returned on other paths, with names and memory there.
        breaks: states in which the innermost loop was left.
        continues: states in which its next pass began.
    """

    reached: Reached
    names: dict[str, Value]
    world: World
    depth: int
    alive: bool = True
    returns: list[tuple[Value, dict[str, Value], World]] = field(default_factory=list)
    breaks: list[State] = field(default_factory=list)
    continues: list[State] = field(default_factory=list)
