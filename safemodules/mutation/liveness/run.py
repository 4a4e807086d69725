"""What an abstract run finds: stale reads, sites that ran, regions that may differ later."""

import ast
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from safemodules.mutation.found import FoundSite
from safemodules.mutation.liveness.changing import Changing
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    FIRST_NEW,
    NOTHING,
    STATE,
    UNKNOWN,
    Abstract,
    Closure,
    Known,
    Storages,
    Value,
    names_in,
)
from safemodules.mutation.liveness.world import Numbers, World
from safemodules.mutation.reach import Reach, Reached
from safemodules.mutation.regions import FoundRegion
from safemodules.mutation.sites import SiteKind

_STEPS = 300_000
_SHARE = 3 / 4  # of the steps that are left, for a call; the caller keeps the rest
Key = int  # of a site in source, or the identity of a module with a flag


class Run:
    """The record of one abstract run.

    Attributes:
        reach: the functions that the forward reaches.
        changing: what the forward itself changes.
        flags: identities of modules whose flag is set.
        inputs: what the caller passes to the model.
        kept: sites that stay in place.
        regions: what may be recomputed in backward, by the identities of its nodes.
        overwritten: those of them of which something that they read is overwritten later, and
            where.
        followed: those of them that were run to their end.
        readers: load-bearing sites: who reads, and whether that is sure.
        read_by_name: sites that are read, other than by code that is not looked into.
        unknown: sites that cannot be decided, and why.
        filled: for sites that copy: whether only unread values of a factory are overwritten.
        ran: sites that have overwritten a tensor.
        plain: sites that have changed a number, or a list of numbers.
        unknown_callee: a line that calls something of which nothing is known, if any does.
    """

    def __init__(
        self,
        reach: Reach,
        changing: Changing,
        flags: Collection[int],
        kept: Collection[Key],
        regions: Mapping[int, FoundRegion],
    ) -> None:
        self.reach, self.changing = reach, changing
        self.flags, self.kept, self.regions = flags, kept, regions
        self.inputs: Storages = NOTHING
        self.overwritten: dict[Key, str] = {}
        self.followed: set[Key] = set()
        self._read_in: dict[FoundRegion, Storages] = {}
        self.readers: dict[Key, tuple[str, bool]] = {}
        self.read_by_name: set[Key] = set()
        self.unknown: dict[Key, str] = {}
        self.filled: dict[Key, bool] = {}
        self.ran: set[Key] = set()
        self.plain: set[Key] = set()
        self.opaque_functions: dict[FunctionType, str] = {}
        self.opaque_modules: dict[int, str] = {}
        self.numbers = Numbers()
        self.unknown_callee = ""  # the line that calls something of which nothing is known
        self.none_ness: bool | None = None
        self.running: list[nn.Module] = []
        self.raised: list[list[World]] = []  # for each `try` that runs
        self.assigned: list[list[tuple[tuple[int, str], Value]]] = []  # attributes, for each
        self.depth = self.rounds = self.steps = 0
        self.limit = _STEPS
        self.line = ""
        self.shallow = False  # functions on the forward path are not followed
        self.sources: dict[int, Storages] = {}  # lists that `zip` and the like go through
        self.eager: set[int] = set()  # generator expressions that are run where they stand
        self.spelled = False  # the call that is run names `setattr`
        self._sites: dict[FunctionType, Mapping[int, FoundSite]] = {}
        self._lost: set[int] = set()  # callables that unknown code may call already
        self.swapped: dict[int, Key] = {}  # what a site has made in place of what it overwrites
        self.around: list[Key] = []  # regions that run
        self.contexts: list[str] = []  # lines of `with` that nobody enters for a recomputation

    # -- what the classes built on this one do -------------------------------------------

    def evaluate(self, node: ast.expr, frame: Frame) -> Value:
        """The value of an expression; sites in it are noted."""
        raise NotImplementedError

    def test(self, node: ast.expr, frame: Frame) -> bool | None:
        """Whether a condition holds, where that is known."""
        raise NotImplementedError

    def attribute_of(self, holder: Value, attr: str, frame: Frame) -> Value:
        """An attribute of a value."""
        raise NotImplementedError

    def store_attribute(self, holder: Value, name: str, value: Value, frame: Frame) -> None:
        """Set an attribute."""
        raise NotImplementedError

    def operator(self, operands: Sequence[Value], frame: Frame) -> Value:
        """The result of an operator."""
        raise NotImplementedError

    def call_value(
        self, callee: Value, arguments: tuple[list[Value], dict[str, Value]], frame: Frame
    ) -> Value:
        """Call a value."""
        raise NotImplementedError

    def call_function(
        self,
        function: FunctionType,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        frame: Frame,
        holder: Any = None,
    ) -> Value:
        """Call a function."""
        raise NotImplementedError

    def run_function(
        self,
        function: FunctionType,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        world: World,
        holder: Any = None,
    ) -> tuple[Value, World]:
        """Run a function's text."""
        raise NotImplementedError

    def run_closure(
        self, closure: Closure, args: Sequence[Value], kwargs: dict[str, Value], world: World
    ) -> tuple[Value, World]:
        """Run a nested function's text."""
        raise NotImplementedError

    # -- time and place -----------------------------------------------------------------

    def tick(self) -> None:
        """Count a step; a run that takes too long is given up."""
        self.steps += 1
        if self.steps > self.limit:
            raise UnsupportedError("it is too long")

    @contextmanager
    def limited(self) -> Iterator[None]:
        """A call that takes too long is given up, and what follows it is not."""
        before = self.limit
        self.limit = self.steps + int((before - self.steps) * _SHARE)
        try:
            yield
        finally:
            self.limit = before

    def new(self) -> int:
        """New memory."""
        return self.numbers.new()

    def reached_of(self, function: FunctionType, holder: Any) -> Reached | None:
        """A function on the forward path, as the class of an object runs it."""
        runs = self.reach.functions.get(function, [])
        cls = type(holder)
        for run in runs:
            if run.context.owner is not None and issubclass(cls, run.context.owner):
                return run
        return runs[0] if runs else self._elsewhere(function)

    def _elsewhere(self, function: FunctionType) -> Reached | None:
        """A function that is not edited, since nobody has seen that the forward reaches it."""
        reached = self.reach.elsewhere(function)
        if reached is not None:
            self.changing.look_at(reached)
        return reached

    def site_at(self, node: ast.AST, frame: Frame) -> FoundSite | None:
        """The site that a node is."""
        function = frame.reached.function
        known = self._sites.get(function)
        if known is None:
            known = self._sites[function] = {s.key: s for s in frame.reached.findings.sites}
        return known.get(id(node))

    def move_to(self, node: ast.stmt, frame: Frame) -> None:
        """Remember the line that runs, for messages."""
        assert frame.reached.source is not None
        self.line = f"{frame.reached.source.file.filename}:{node.lineno}"

    # -- reads and writes ---------------------------------------------------------------

    def read(self, value: Value, frame: Frame) -> None:
        """Somebody reads all that a value holds."""
        world, storages = frame.world, value.storages
        if not storages:
            return
        held = world.held_by(storages)
        world.filled -= held
        if world.stale:
            exact = len(storages) == 1 and UNKNOWN not in held
            self.note_readers(held, world, f"{self.line} reads it", exact=exact)

    def identify(self, value: Value, frame: Frame) -> None:
        """Somebody asks which tensor it is, and may ask again: another one would be told apart."""
        self.read(value, frame)
        held = frame.world.held_by(value.storages)
        for storage in held & self.swapped.keys():
            reason = f"{self.line} asks which tensor it is"
            self.unknown.setdefault(self.swapped[storage], reason)
        frame.world.put(frozenset({UNKNOWN}), held - {UNKNOWN})

    def remember(self, value: Value, frame: Frame) -> None:
        """A set or the keys of a dict hold a value, and tell it from others for good."""
        if UNKNOWN not in value.storages:
            self.identify(value, frame)

    def note_readers(self, storages: Storages, world: World, reader: str, *, exact: bool) -> None:
        """Note which sites have made some memory stale that is read."""
        by_name = UNKNOWN not in storages
        stale, links = world.stale, world.links
        for storage in world.perhaps_stale(storages):
            for key in world.marks(storage) if storage in links else stale[storage]:
                if by_name:
                    self.read_by_name.add(key)
                sure = exact and not self.rounds and storage not in links
                sure = sure and storage != UNKNOWN
                known = self.readers.get(key)
                if known is None or (sure and not known[1]):
                    self.readers[key] = reader, sure

    def write(self, site: FoundSite | None, tensors: Storages, frame: Frame) -> Storages | None:
        """A site overwrites tensors; the new tensor's storage, or ``None`` if it stays in place."""
        if site is None or site.obstacle is not None:
            self.read(Abstract(tensors), frame)
            self.stays_in_place(tensors, frame)
            return None
        if not tensors:
            self.unknown.setdefault(site.key, f"what it overwrites at {self.line} is not known")
        keys = [site.key]
        if site.kind is SiteKind.FUNCTION_FLAG and not isinstance(site.target, ast.Constant):
            keys += [id(m) for m in self.running[-1:] if id(m) in self.flags]
        self.note_readers(
            tensors, frame.world, f"{self.line} overwrites it again", exact=len(tensors) == 1
        )
        filled = bool(tensors) and tensors <= frame.world.filled
        self.filled[site.key] = filled and self.filled.get(site.key, True)
        swapped = [self._overwrite(key, tensors, frame) for key in keys]  # each is noted
        if not all(swapped):
            self.read(Abstract(tensors), frame)
            return None
        new = self.new()
        self.swapped[new] = site.key
        held = [frame.world.heap[t] for t in tensors if t >= FIRST_NEW and t in frame.world.heap]
        if held:  # a list that was taken for a tensor
            frame.world.heap[new] = NOTHING.union(*held)
        if filled:
            frame.world.filled.add(new)
        return frozenset({new})

    def write_flag(self, module: nn.Module, tensors: Storages, frame: Frame) -> bool:
        """A module with a flag overwrites its input; whether it is out of place."""
        # what a site in its own forward has overwritten is not overwritten again
        others = frozenset(t for t in tensors if id(module) not in frame.world.marks(t))
        self.note_readers(others, frame.world, f"{self.line} overwrites it again", exact=False)
        return self._overwrite(id(module), tensors, frame)

    def _overwrite(self, key: Key, tensors: Storages, frame: Frame) -> bool:
        self.ran.add(key)
        if key in self.kept:
            self.stays_in_place(tensors, frame)
            return False
        if STATE in tensors:
            self.readers.setdefault(key, ("it is state of the model", False))
        if frame.world.has_escaped(tensors):
            self.unknown.setdefault(key, f"what it overwrites at {self.line} may be held elsewhere")
        if frame.world.is_strided(tensors):
            self.unknown.setdefault(
                key,
                f"it writes through a view at {self.line}, so that out of place its gradient may "
                "be summed in another order: last bits differ",
            )
        frame.world.mark(tensors, key)
        return True

    def stays_in_place(self, tensors: Storages, frame: Frame) -> None:
        """Something is overwritten in the converted model too."""
        for region in frame.world.regions_reading(tensors):
            self.overwritten.setdefault(region, self.line)

    @contextmanager
    def region_at(self, node: ast.AST, frame: Frame) -> Iterator[None]:
        """What a region names it reads, and behind it, in backward, will again."""
        region = self.regions[id(node)]
        if self.contexts:  # which are left when it is recomputed
            self.changing.differing.setdefault(region.key, self.contexts[-1])
        read = frame.world.held_by(frame.seen_by(names_in(node)))
        held = self._read_in.pop(region, NOTHING) | read
        self.around.append(region.key)
        try:
            yield
        finally:
            self.around.pop()
        if region.is_end(node):
            self.followed.add(region.key)
            frame.world.read_again(held, region.key)
        else:
            self._read_in[region] = held

    def perhaps(self, new: Storages, old: Storages, key: Any, frame: Frame) -> Storages:
        """A result that may be the old tensor itself, see NOTE [ Perhaps the same ]."""
        own = getattr(key, "key", key)
        apart = frozenset() if own is None else frozenset({own})
        for storage in new:
            for other in old:
                frame.world.link(storage, other, apart)
        return new

    def note_outside(self, value: Value, node: ast.AST) -> None:
        """A tensor that no checkpoint puts back is overwritten: a parameter, or a global one."""
        known = value.object if isinstance(value, Known) else None
        data = any(isinstance(n, ast.Attribute) and n.attr == "data" for n in ast.walk(node))
        apart = isinstance(known, Tensor) and id(known) not in self.buffers
        if apart or (data and STATE in value.storages):
            self.changing.note_outside(self.line)

    @functools.cached_property
    def buffers(self) -> frozenset[int]:
        """Identities of buffers of the model, which a checkpoint puts back."""
        found = (m for c in self.reach.classes.values() for _, m in c.instances)
        return frozenset(id(b) for m in set(found) for b in m.buffers())

    def answers_once(self) -> None:
        """What runs may answer otherwise when a region around it is recomputed."""
        for region in self.around:
            self.changing.differing.setdefault(region, self.line)
