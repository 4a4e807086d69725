"""Memory during an abstract run: what containers hold, and which old tensors are stale.

NOTE [ Swapped, then read ]: the run is that of the converted model. A swapped site makes a
new tensor and leaves the old one *stale*; whoever reads a stale tensor afterwards would have
read the new values in the original, so the site is load-bearing. A site that is kept writes
in place, and its result is the tensor itself.

NOTE [ Perhaps the same ]: dropout returns its input in eval mode; a branch may have left a
tensor as it was. Such a result gets a storage of its own with a *link* to the other one. A
read of it is a read of the other one, unless that is stale by the very sites of the path
that was not taken.

NOTE [ Tensors without identity ]: what code that is not looked into may hold needs no
identity: a site that overwrites it is unknown, and one that has overwritten it before counts
as read. So where a name may stand for many tensors, all of these are one, `UNKNOWN`; and where
it still stands for too many, they are given away, as if such code were handed them.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from safemodules.mutation.liveness.values import (
    FIRST_NEW,
    NOTHING,
    STATE,
    UNKNOWN,
    VALUE,
    Abstract,
    Items,
    Known,
    Named,
    Storages,
    Value,
    is_plain,
    merged,
    union,
    with_memory,
)

Marks = frozenset[Any]  # keys of sites
_NONE: Marks = frozenset()
_MOST = 24  # tensors that one name may stand for
_DEEPEST = 6  # lists in lists by whose entries two passes through a loop are compared


@dataclass
class World:
    """What is true on one path.

    Attributes:
        heap: container -> what it holds; also what code that is not looked into was given.
        stale: storage -> sites that would have overwritten it.
        links: storage -> (storage it may be, sites by which that one is stale elsewhere).
        attributes: (identity of a module, attribute) -> what the forward has assigned.
        filled: storages made by a factory, whose values nobody has read yet.
        strided: storages of which a view has other strides than new memory would have.
        recomputed: storage -> regions that read it, and will again in backward.
    """

    heap: dict[int, Storages] = field(default_factory=dict)
    stale: dict[int, Marks] = field(default_factory=dict)
    links: dict[int, tuple[tuple[int, Marks], ...]] = field(default_factory=dict)
    attributes: dict[tuple[int, str], Value] = field(default_factory=dict)
    filled: set[int] = field(default_factory=set)
    strided: set[int] = field(default_factory=set)
    recomputed: dict[int, Marks] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How much a copy has to copy."""
        return len(self.heap) + len(self.stale) + len(self.links)

    def copy(self) -> "World":
        """The same, for another path."""
        return World(
            dict(self.heap),
            dict(self.stale),
            dict(self.links),
            dict(self.attributes),
            set(self.filled),
            set(self.strided),
            dict(self.recomputed),
        )

    def is_strided(self, storages: Storages) -> bool:
        """Whether a write may go through a view with strides of its own."""
        return any(
            each in self.strided
            for storage in storages
            for each in (storage, *(other for other, _ in self.links.get(storage, ())))
        )

    def held_by(self, storages: Storages) -> Storages:
        """Everything that can be reached from some memory, itself included."""
        found, rest = NOTHING, storages
        while rest:
            found |= rest
            if UNKNOWN in rest:  # what it holds is closed already
                found |= self.heap.get(UNKNOWN, NOTHING)
            inner = (self.heap[each] for each in rest - {UNKNOWN} if each in self.heap)
            rest = NOTHING.union(*inner) - found
        return found

    def contents(self, storages: Storages) -> Storages:
        """What an element of some value may be: of a tensor a view, of a container an entry."""
        held = (self.heap[each] for each in storages if each in self.heap and each != UNKNOWN)
        found = storages - self.containers(storages)  # or perhaps one that the caller has made
        callables = frozenset(each for each in storages if each < 0)
        if callables:  # whatever a module holds, say
            found |= callables | {UNKNOWN}
        return found.union(*held)

    def is_container(self, storage: int) -> bool:
        """Whether a storage is a list, a dict or the like, and no tensor."""
        return storage < 0 or (storage >= FIRST_NEW and storage % 2 == 1)

    def containers(self, storages: Storages) -> Storages:
        """Those of some storages that are containers."""
        return frozenset(filter(self.is_container, storages))

    def put(self, containers: Storages, values: Storages) -> None:
        """Let containers hold something more.

        What code that is not looked into may hold is kept closed: all that it can reach.
        """
        elsewhere = self.heap.get(UNKNOWN, NOTHING)
        for container in containers - {UNKNOWN}:
            self.heap[container] = self.heap.get(container, NOTHING) | values
        if UNKNOWN in containers or not containers.isdisjoint(elsewhere):
            self.heap[UNKNOWN] = elsewhere | (self.held_by(values) - {UNKNOWN})

    def link(self, storage: int, other: int, apart: Marks) -> None:
        """Let a storage be perhaps another one, and whatever that one may be."""
        found = [(other, apart), *((o, apart | more) for o, more in self.links.get(other, ()))]
        self.links[storage] = tuple(dict.fromkeys((*self.links.get(storage, ()), *found)))

    def perhaps_stale(self, storages: Storages) -> set[int]:
        """Those of some storages that may be stale.

        What unknown code may hold may be what was overwritten as `UNKNOWN`.
        """
        found = (self.stale.keys() & storages) | (self.links.keys() & storages)
        if UNKNOWN in self.stale and not storages.isdisjoint(self.heap.get(UNKNOWN, NOTHING)):
            found.add(UNKNOWN)
        return found

    def marks(self, storage: int) -> Marks:
        """Sites by which a storage, or one that it may be, is stale."""
        found = self.stale.get(storage, _NONE)
        for other, apart in self.links.get(storage, ()):
            marks = self.stale.get(other)
            if marks is not None and not marks <= apart:
                found |= marks - apart
        return found

    def read_again(self, storages: Iterable[int], region: Any) -> None:
        """A region that is recomputed in backward reads some memory."""
        for storage in storages:
            self.recomputed[storage] = self.recomputed.get(storage, _NONE) | {region}

    def regions_reading(self, storages: Storages) -> Marks:
        """Regions that read some memory, or what it may be."""
        each = [*storages, *(o for s in storages for o, _ in self.links.get(s, ()))]
        return _NONE.union(*(self.recomputed[s] for s in each if s in self.recomputed))

    def mark(self, storages: Iterable[int], site: Any) -> None:
        """Make old tensors stale, and those that they may be."""
        for storage in storages:
            for each in (storage, *(other for other, _ in self.links.get(storage, ()))):
                marks = self.stale.get(each, _NONE)
                if site not in marks:
                    self.stale[each] = marks | {site}

    def has_escaped(self, storages: Storages) -> bool:
        """Whether code that is not looked into may hold some memory, or what it may be."""
        elsewhere = self.heap.get(UNKNOWN, NOTHING)
        return any(
            each == UNKNOWN or each in elsewhere
            for storage in storages
            for each in (storage, *(other for other, _ in self.links.get(storage, ())))
        )


State = tuple[dict[str, Value], World]  # names and memory


class Numbers:
    """Gives out new storages."""

    def __init__(self) -> None:
        self.next = FIRST_NEW

    def new(self) -> int:
        """A storage that nothing refers to yet: of a tensor, an even number."""
        self.next += 2
        return self.next

    def like(self, storage: int) -> int:
        """A storage of the same kind as another one."""
        return self.new() + storage % 2


def join_all(states: Iterable[State], numbers: Numbers) -> State:
    """What is true after any of several paths, at least one."""
    return functools.reduce(lambda one, other: join(one, other, numbers), states)


def join(first: State, second: State, numbers: Numbers) -> State:
    """What is true after either of two paths, see NOTE [ Perhaps the same ]."""
    (names, world), (other_names, other) = (
        _apart(first, second, numbers),
        _apart(second, first, numbers),
    )
    env = {**other_names, **names}
    for name in names.keys() & other_names.keys():
        env[name] = merged(names[name], other_names[name])
    result = World(
        _merge(world.heap, other.heap),
        _merge(world.stale, other.stale),
        {**other.links, **world.links},
        dict(world.attributes),
        world.filled & other.filled,
        world.strided | other.strided,
        _merge(world.recomputed, other.recomputed),
    )
    for key, value in other.attributes.items():
        known = result.attributes.get(key)
        # where only one path assigns, the other one leaves what the module had: state
        base = Abstract(frozenset({STATE})) if known is None else known
        result.attributes[key] = merged(base, value)
    for key in world.attributes.keys() - other.attributes.keys():
        result.attributes[key] = merged(world.attributes[key], Abstract(frozenset({STATE})))
    for name, value in env.items():
        if sum(storage >= 0 for storage in value.storages) > _MOST:
            env[name] = _crowded(value, result)
    return env, result


def _crowded(value: Value, world: World) -> Value:
    """A value that may be too many tensors, see NOTE [ Tensors without identity ]."""
    elsewhere = world.held_by(frozenset({UNKNOWN}))
    tensors = frozenset(storage for storage in value.storages if storage >= 0)
    if len(tensors - elsewhere) >= _MOST:
        world.put(frozenset({UNKNOWN}), tensors - {UNKNOWN})
        elsewhere |= tensors
    return _without(value, elsewhere)


def _without(value: Value, elsewhere: Storages) -> Value:
    """A value with one name for all that code which is not looked into may hold."""
    if value.storages.isdisjoint(elsewhere):
        return value
    if isinstance(value, Known):
        return Abstract((value.storages - elsewhere) | {UNKNOWN})

    def renamed(memory: Storages) -> Storages:
        return memory if memory.isdisjoint(elsewhere) else (memory - elsewhere) | {UNKNOWN}

    return with_memory(value, renamed)


def shape_of(names: dict[str, Value], world: World, first: int, numbers: dict[Any, str]) -> Any:
    """What a pass through a loop leaves, up to the identity of memory that the loop has made.

    What it has made is told by the names and lists from before the loop through which it can be
    reached, what it holds and by which sites it is stale: so many tensors of one kind are one,
    and a list may grow.

    Args:
        names: the local names.
        world: memory.
        first: storages above this one were made by the loop.
        numbers: a name for each kind of memory, the same for all passes; grows.
    """
    values = [*sorted(names.items()), *world.attributes.items()]
    reached = world.held_by(union(value for _, value in values) | {STATE, UNKNOWN})
    lists = sorted(storage for storage in reached if storage <= first and storage in world.heap)
    roots = [*(value.storages for _, value in values), *(world.heap[each] for each in lists)]
    places = _places(roots, world, reached, first)

    @functools.cache
    def kind(storage: int, depth: int) -> Any:
        if storage <= first or not depth:
            return storage
        made = world.is_container(storage), storage in world.filled, world.marks(storage)
        held = told(world.heap.get(storage, NOTHING), depth - 1)
        found = (*made, frozenset(places.get(storage, ())), held)
        return numbers.setdefault(found, f"made {len(numbers)}")

    def told(storages: Storages, depth: int = _DEEPEST) -> frozenset[Any]:
        return frozenset(map(kind, storages, itertools.repeat(depth)))

    return (
        [(key, _kind_of(value), told(value.storages)) for key, value in values],
        {storage: told(world.heap[storage]) for storage in lists},
        {storage: marks for storage, marks in world.stale.items() if storage <= first},
    )


def _places(
    roots: Sequence[Storages], world: World, reached: Storages, first: int
) -> dict[int, set[Any]]:
    """Where memory is that a loop has made: in which roots, and in which of its own lists."""
    places: dict[int, set[Any]] = {}
    for place, root in enumerate(roots):
        for storage in root:
            if storage > first:
                places.setdefault(storage, set()).add(place)
    made = [each for each in reached if each > first and each in world.heap]
    around = {each: frozenset(places.get(each, ())) for each in made}
    for each in made:
        for storage in world.heap[each]:
            if storage > first:
                places.setdefault(storage, set()).add(around[each])
    return places


def _kind_of(value: Value) -> Any:
    return (Known, id(value.object)) if isinstance(value, Known) else type(value)


def forget_counts(values: dict[Any, Value], before: dict[Any, Value]) -> None:
    """Numbers, flags and texts that a loop changes may be any after some passes.

    Args:
        values: what names stand for after a pass; changed.
        before: what they stood for when the loop was entered.
    """
    for key, value in values.items():
        if key in before:
            values[key] = _any_number(value, before[key])


def _any_number(value: Value, before: Value) -> Value:
    if value is before or merged(before, value) is before:
        return value
    if is_plain(value):
        return VALUE
    if isinstance(value, Known):  # a table of what comes next, say
        return Abstract(value.storages | before.storages | {UNKNOWN})
    if isinstance(value, Items):
        others: Iterable[Value] = before.entries if isinstance(before, Items) else ()
        known = [*others, *[VALUE] * len(value.entries)]
        pairs = zip(value.entries, known, strict=False)
        return type(value)(tuple(_any_number(entry, other) for entry, other in pairs))
    if isinstance(value, Named):
        earlier = before.entries if isinstance(before, Named) else {}
        entries = value.entries.items()
        return Named({name: _any_number(v, earlier.get(name, VALUE)) for name, v in entries})
    return value


def _merge(first: dict[int, Any], second: dict[int, Any]) -> dict[int, Any]:
    merged = {**second, **first}
    for key in first.keys() & second.keys():
        if first[key] is not second[key]:
            merged[key] = first[key] | second[key]
    return merged


def _apart(mine: State, theirs: State, numbers: Numbers) -> State:
    """Give storages that only the other path has made stale another identity on this path."""
    names, world = mine
    stale = theirs[1].stale
    differing: dict[int, Marks] = {}
    for storage, marks in stale.items():
        known = world.stale.get(storage, _NONE)
        if known is not marks and not marks <= known:
            differing[storage] = marks - known
    if not differing:
        return mine
    used = NOTHING.union(*(value.storages for value in names.values()))
    renamed: dict[int, int] = {}
    for storage in differing.keys() & used:
        renamed[storage] = numbers.like(storage)
    if not renamed:
        return mine
    world = world.copy()
    for storage, name in renamed.items():
        world.link(name, storage, differing[storage])
        if storage in world.stale:
            world.stale[name] = world.stale[storage]
        if storage in world.heap:
            world.heap[name] = world.heap[storage]
        if storage in world.filled:
            world.filled.add(name)
        if storage in world.strided:
            world.strided.add(name)

    def change(memory: Storages) -> Storages:
        return frozenset(renamed.get(storage, storage) for storage in memory)

    return {key: with_memory(value, change) for key, value in names.items()}, world
