"""One call of a function during an abstract run."""

from dataclasses import dataclass, field

from safemodules.mutation.liveness.values import Closure, Storages, Value, union
from safemodules.mutation.liveness.world import State, World
from safemodules.mutation.reach import Reached


@dataclass(frozen=True)
class Later:
    """A generator expression that runs when it is asked.

    Attributes:
        mentioned: names in its text, which it sees as they are then.
        storages: what holds all that they may stand for.
    """

    mentioned: frozenset[str]
    storages: Storages


@dataclass(eq=False)
class Frame:
    """Names and memory on the path that is being run.

    Attributes:
        reached: the function.
        names: what each local name stands for.
        world: memory.
        alive: the path goes on; otherwise it has returned, raised or left a loop.
        returns: states in which other paths have returned, the value named ``return``.
        breaks: states in which the innermost loop was left.
        continues: states in which its next pass began.
        outer: names that are assigned outside of the function.
        closures: nested functions, which see what the names stand for when they run.
        bound: what names were bound to since an exception may have been raised.
    """

    reached: Reached
    names: dict[str, Value]
    world: World
    alive: bool = True
    returns: list[State] = field(default_factory=list)
    breaks: list[State] = field(default_factory=list)
    continues: list[State] = field(default_factory=list)
    outer: frozenset[str] = frozenset()
    closures: list[Closure | Later] = field(default_factory=list)
    bound: list[tuple[str, Value]] | None = None

    def bind(self, name: str, value: Value) -> None:
        """Let a local name stand for a value."""
        self.names[name] = value
        if self.bound is not None:
            self.bound.append((name, value))
        for closure in self.closures:
            if name in closure.mentioned:
                self.world.put(closure.storages, value.storages)

    def enclose(self, closure: Closure) -> Closure:
        """Let a nested function see the names."""
        seen = self.seen_by(closure.mentioned) | union(closure.defaults.values())
        self.world.put(closure.storages, seen)
        self.closures.append(closure)
        return closure

    def seen_by(self, names: frozenset[str]) -> Storages:
        """Memory that a text with these names sees."""
        return union(value for name, value in self.names.items() if name in names)

    @property
    def state(self) -> list[State]:
        """The state of the path that is being run, if it goes on."""
        return [(self.names, self.world)] if self.alive else []
