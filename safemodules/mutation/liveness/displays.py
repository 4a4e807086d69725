"""Lists, tuples, comprehensions, indices and targets of an abstract run."""

import ast
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from safemodules.mutation.finder import has_effects
from safemodules.mutation.liveness.calls import Calls
from safemodules.mutation.liveness.containers import runs_code
from safemodules.mutation.liveness.frame import Frame, Later
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    NOTHING,
    PLAIN,
    STATE,
    UNKNOWN,
    VALUE,
    Abstract,
    Items,
    Known,
    Made,
    Named,
    Storages,
    Value,
    is_text,
    names_in,
    union,
)
from safemodules.mutation.liveness.world import State, join
from safemodules.mutation.resolution import mangled


class Displays(Calls):
    """Evaluates containers, and binds targets."""

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Value:
        entries: list[Value] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                value = self.evaluate(element.value, frame)
                inner = self.entries_of(value)
                if inner is None:
                    return Abstract(self._rest(node, entries, value, frame))
                entries += inner
            else:
                entries.append(self.evaluate(element, frame))
        return Items(tuple(entries))

    def _rest(
        self, node: ast.Tuple | ast.List, entries: list[Value], value: Value, frame: Frame
    ) -> frozenset[int]:
        self.lose_sight([*entries, value])
        found = union(entries) | self.element_of(value, frame).storages | value.storages
        for element in node.elts[len(entries) + 1 :]:
            inner = element.value if isinstance(element, ast.Starred) else element
            found |= self.evaluate(inner, frame).storages
        return found

    def _list(self, node: ast.List, frame: Frame) -> Value:
        made = self._tuple(ast.Tuple(node.elts, node.ctx), frame)
        modules = self.list_of_modules(made.entries if isinstance(made, Items) else None)
        if modules is not None:
            return modules
        self.lose_sight([made])
        return self.container(made.storages, frame)

    def _dict(self, node: ast.Dict, frame: Frame) -> Value:
        held: frozenset[int] = NOTHING
        for key, value in zip(node.keys, node.values, strict=True):
            inner = self.evaluate(value, frame) if key is not None else self.direct(value, frame)
            self.lose_sight([inner])
            held |= inner.storages if key is not None else frame.world.contents(inner.storages)
            if key is not None:
                self.remember(self.evaluate(key, frame), frame)
        return self.container(held, frame)

    def _set(self, node: ast.Set, frame: Frame) -> Value:
        entries = [self.evaluate(e, frame) for e in node.elts]
        self.lose_sight(entries)
        for entry in entries:
            self.remember(entry, frame)
        return self.container(union(entries), frame)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        value = self.direct(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            part = self._part_of(value, node.slice, frame)
            if part is not None:
                return part
        key = self.evaluate(node.slice, frame)
        self.read(key, frame)
        return self.entry_of(value, key, frame)

    def _slice(self, node: ast.Slice, frame: Frame) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.read(self.evaluate(part, frame), frame)
        return VALUE

    def _comprehension(self, node: Any, frame: Frame) -> Value:
        outer = dict(frame.names)
        held: set[int] = set()
        entries: list[Value] | None = [] if isinstance(node, ast.ListComp) else None

        def run(generators: list[ast.comprehension]) -> None:
            nonlocal entries
            if not generators:
                elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                values = [self.evaluate(element, frame) for element in elements]
                held.update(union(values))
                if entries is not None:
                    entries.append(values[0])
                return
            generator = generators[0]
            iterated = self.evaluate(generator.iter, frame)
            known = self.entries_of(iterated)
            with self.unchanged(iterated, frame):
                if known is None:
                    self.rounds += 1
                    entries = None
                    for _ in self.passes(frame):
                        with self.optionally(frame):
                            run_with(self.element_of(iterated, frame), generators)
                    self.rounds -= 1
                for entry in known or ():
                    run_with(entry, generators)

        def run_with(entry: Value, generators: list[ast.comprehension]) -> None:
            nonlocal entries
            self.store(generators[0].target, entry, frame)
            tested = [self.test(condition, frame) for condition in generators[0].ifs]
            if False in tested:
                return
            with self.optionally(frame) if None in tested else nullcontext():
                run(generators[1:])
            if None in tested:  # perhaps it is left out
                entries = None

        if any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node)):
            raise UnsupportedError("a comprehension that binds a name")
        later = isinstance(node, ast.GeneratorExp) and id(node) not in self.eager
        start = (dict(frame.names), frame.world.copy()) if later else None
        run(node.generators)
        bound = {
            n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)
        }
        for name in bound:
            frame.names.pop(name, None)
            if name in outer:
                frame.names[name] = outer[name]
        if start is not None:
            return self._run_later(node, frozenset(held), start, frame)
        modules = self.list_of_modules(entries)
        return self.container(frozenset(held), frame) if modules is None else modules

    def _run_later(
        self, node: ast.GeneratorExp, held: Storages, start: State, frame: Frame
    ) -> Value:
        """A generator expression runs when it is asked, which may be later, or never."""
        frame.names, frame.world = join(start, (frame.names, frame.world), self.numbers)
        mentioned = names_in(node)
        seen = frame.seen_by(mentioned)
        if any(isinstance(inner, ast.Call) for inner in ast.walk(node)):
            self.unknown_call([Abstract(seen)], frame)
        made = self.container(held | {storage for storage in seen if storage >= 0}, frame)
        frame.closures.append(Later(mentioned, made.storages))
        return made

    # -- targets ------------------------------------------------------------------------

    def store(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind a target."""
        if isinstance(target, ast.Name):
            value = self.lasting(value, frame)
            if target.id in frame.outer:  # anyone may read it
                frame.world.put(frozenset({UNKNOWN}), value.storages)
            else:
                frame.bind(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, frame)
        elif isinstance(target, ast.Attribute):
            holder = self.evaluate(target.value, frame)
            name = mangled(target.attr, frame.reached.context.class_name)
            self.note_outside(holder, target)
            self.store_attribute(holder, name, value, frame)
        elif isinstance(target, ast.Subscript):
            self._store_item(target, value, frame)
        elif isinstance(target, ast.Starred):
            self.store(target.value, self.container(value.storages, frame), frame)
        else:
            raise UnsupportedError("a target of an assignment")

    def _unpack(self, targets: Sequence[ast.expr], value: Value, frame: Frame) -> None:
        entries = self.entries_of(value)
        if entries is None and isinstance(value, Items):
            self.lose_sight([value])
        starred = any(isinstance(target, ast.Starred) for target in targets)
        if entries is not None and len(entries) == len(targets) and not starred:
            for target, entry in zip(targets, entries, strict=True):
                self.store(target, entry, frame)
            return
        element = self.element_of(value, frame)
        for target in targets:
            self.store(target, element, frame)

    def _store_item(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        site = self.site_at(target, frame)
        holder = self.direct(target.value, frame)
        if isinstance(holder, Named):
            assert isinstance(target.value, ast.Name)
            key = self.evaluate(target.slice, frame)
            if is_text(key):
                entries = {**holder.entries, key.object: value}
                frame.bind(target.value.id, Named(entries))
                return
            holder = self.shared(target.value.id, frame)
        self.note_change(holder)
        key = self.evaluate(target.slice, frame)
        self.read(key, frame)
        if (isinstance(holder, Made) and holder.method("__setitem__")) or runs_code(holder):
            self.unknown_call([holder, key, value], frame)
            return
        storages = holder.storages
        containers = frame.world.containers(storages)
        tensors = storages - containers
        if site is not None and (not tensors or is_text(key)):
            self.plain.add(site.key)
        if is_text(key):  # no tensor takes it; a dict from elsewhere is read elsewhere
            frame.world.put(containers | ({UNKNOWN} if tensors else NOTHING), value.storages)
            return
        if containers or not tensors:
            frame.world.put(containers or frozenset({UNKNOWN}), value.storages)
        if containers or not tensors or tensors & {STATE, UNKNOWN}:  # perhaps of a dict
            self.remember(key, frame)
        if not tensors:
            return
        self.read(value, frame)
        if site is None or self.may_be_list(tensors, frame):
            frame.world.put(tensors, value.storages)  # perhaps a container
        self.note_outside(holder, target)
        new = self.write(site, tensors, frame)
        if new is not None and site is not None:
            self.rebind(site, new, containers, frame)

    def augmented(self, node: ast.AugAssign, frame: Frame) -> None:
        """``target op= value``."""
        self.share_with(node.target, frame)
        old = self.evaluate(node.target, frame)  # Python loads the target first
        self.note_change(old)
        if isinstance(node.target, ast.Subscript) and not has_effects(node.target):
            self.note_change(self.evaluate(node.target.value, frame))
        value = self.evaluate(node.value, frame)
        site = self.site_at(node, frame)
        if site is not None and not old.storages:
            self.plain.add(site.key)
        if isinstance(old, Known) and isinstance(old.object, PLAIN):
            result = self.operator([old, value], frame)
            self.store_plainly(node.target, result, frame)
            return
        self.read(value, frame)
        self.read(old, frame)
        containers = frame.world.containers(old.storages)
        frame.world.put(containers, frame.world.contents(value.storages))
        if isinstance(old, Known) or self.may_be_list(old.storages, frame):
            elsewhere = frozenset({STATE} | (old.storages - {STATE}))
            frame.world.put(elsewhere, frame.world.contents(value.storages) | value.storages)
        if isinstance(old, Items):
            self.store_plainly(node.target, Abstract(old.storages | value.storages), frame)
            return
        tensors = old.storages - containers
        if not old.storages:  # a number, perhaps plus a tensor
            self.store_plainly(node.target, self.operator([old, value], frame), frame)
        elif tensors:
            self.note_outside(old, node.target)
            new = self.write(site, tensors, frame)
            if new is not None and site is not None:
                self.rebind(site, new, containers, frame)

    def store_plainly(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind the target of an augmented assignment that overwrites no tensor."""
        if isinstance(target, ast.Name | ast.Attribute) or value.storages:
            self.store(target, value, frame)
