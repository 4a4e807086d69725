"""An abstract run of a model's forward: statements and functions.

NOTE [ Abstract run ]: the modules of a living model are objects, so their tree is walked as it
is, each call with its own arguments; only tensors and what depends on them are abstract. The
attributes of modules are taken as they are, as a run on example inputs would take them, other
than `training` and what the forward itself assigns; where a condition is not known, both
branches run. A loop over modules runs once per module. Any other loop runs a few times, until
no name could still pass anything on. What is not understood makes everything unknown that it
could touch.
"""

import ast
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import FunctionType
from typing import Any

from safemodules.mutation.liveness.changing import outer_names
from safemodules.mutation.liveness.exits import Exits
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.unsupported import ImpossibleCallError, UnsupportedError
from safemodules.mutation.liveness.values import (
    REST,
    UNKNOWN,
    Abstract,
    Closure,
    Items,
    Known,
    Named,
    Once,
    Value,
    has_rest,
    merged,
    union,
)
from safemodules.mutation.liveness.world import (
    State,
    World,
    join_all,
)

_INERT = (ast.Pass, ast.Global)


# Calls in one another that are followed; each takes some twenty frames of Python's own stack.
_DEPTH = 25


class Interpreter(Exits):
    """Runs functions over abstract values."""

    # -- functions ----------------------------------------------------------------------

    def run_function(
        self,
        function: FunctionType,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        world: World,
        holder: Any = None,
    ) -> tuple[Value, World]:
        """Run a function; the world is changed, or replaced by the one that is returned."""
        reached = self.reached_of(function, holder)
        if reached is None or reached.source is None:
            raise UnsupportedError(f"{function.__qualname__} has no source that is known")
        frame = Frame(reached, {}, world)
        defaults = _defaults(reached.source.node, function)
        names = self._bound(reached.source.node, defaults, args, kwargs)
        return self._run_body(reached.source.node, frame, names)

    def run_closure(
        self, closure: Closure, args: Sequence[Value], kwargs: dict[str, Value], world: World
    ) -> tuple[Value, World]:
        """Run a nested function with the names around it."""
        inner = (node for node in ast.walk(closure.node) if node is not closure.node)
        if any(isinstance(node, ast.FunctionDef | ast.Lambda) for node in inner):
            # it would see the names around both as they are now, not as they are later
            raise UnsupportedError("functions are nested twice")
        frame = Frame(closure.reached, {}, world)
        names = self._bound(closure.node, closure.defaults, args, kwargs)
        return self._run_body(closure.node, frame, {**closure.names, **names})

    def _run_body(
        self, node: ast.AST, frame: Frame, names: dict[str, Value]
    ) -> tuple[Value, World]:
        frame.names = names
        assert frame.reached.source is not None
        frame.outer = outer_names(frame.reached.source.node)
        if self.depth > _DEPTH:
            raise UnsupportedError("calls are nested too deeply")
        self.depth += 1
        try:
            body = node.body  # type: ignore[attr-defined]
            if not isinstance(body, list):
                value = self.evaluate(body, frame)
                return value, frame.world
            self.block(body, frame)
        finally:
            self.depth -= 1
        if frame.alive:
            self._leave_with(Known(None), frame)
        if not frame.returns:  # more likely something is not understood than that it always raises
            raise UnsupportedError("it does not return")
        frame.names, world = join_all(frame.returns, self.numbers)  # nested functions see them
        return frame.names["return"], world

    def _bound(
        self,
        node: Any,
        defaults: Mapping[str, Value],
        args: Sequence[Value],
        kwargs: dict[str, Value],
    ) -> dict[str, Value]:
        """Parameters bound to arguments."""
        arguments: ast.arguments = node.args
        positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        given, named = list(args), dict(kwargs)
        rest = [given.pop()] if has_rest(given) else []
        others = [named.pop(REST)] if REST in named else []
        names = dict(zip(positional, given, strict=False))
        if arguments.vararg is not None:
            names[arguments.vararg.arg] = Items((*given[len(positional) :], *rest))
        elif len(given) > len(positional):
            raise ImpossibleCallError("too many arguments")
        parameters = [*positional, *(a.arg for a in arguments.kwonlyargs)]
        for name in parameters:
            if name in named:
                names[name] = named.pop(name)
        if arguments.kwarg is not None:
            names[arguments.kwarg.arg] = Named({**named, **({REST: others[0]} if others else {})})
        elif named:
            raise ImpossibleCallError("unexpected keyword arguments")
        for name in parameters:
            if name not in names:
                perhaps = [*(rest if name in positional else []), *others]
                names[name] = _unless_given(perhaps, defaults.get(name))
        return names

    # -- statements ---------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt], frame: Frame) -> None:
        """Run statements until one leaves."""
        for statement in statements:
            if not frame.alive:
                return
            self.tick()
            self.move_to(statement, frame)
            self.statement(statement, frame)

    def statement(self, node: ast.stmt, frame: Frame) -> None:
        """Run one statement."""
        handler = _STATEMENTS.get(type(node))
        if handler is not None:
            with self.region_at(node, frame) if id(node) in self.regions else nullcontext():
                handler(self, node, frame)
        elif not isinstance(node, _INERT):
            raise UnsupportedError(f"a statement {type(node).__name__}")

    def _expression(self, node: ast.Expr, frame: Frame) -> None:
        self.evaluate(node.value, frame)

    def _assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self.store(target, value, frame)

    def _annotated(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self.store(node.target, self.evaluate(node.value, frame), frame)

    def _return(self, node: ast.Return, frame: Frame) -> None:
        value: Value = Known(None) if node.value is None else self.evaluate(node.value, frame)
        self._leave_with(value, frame)

    @staticmethod
    def _leave_with(value: Value, frame: Frame) -> None:
        frame.returns.append(({**frame.names, "return": value}, frame.world))
        frame.alive = False

    def _delete(self, node: ast.Delete, frame: Frame) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                frame.names.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                self.note_change(self.evaluate(target.value, frame))

    def _if(self, node: ast.If, frame: Frame) -> None:
        known = self.test(node.test, frame)
        if known is not None:
            self.block(node.body if known else node.orelse, frame)
            return
        self.either([node.body, node.orelse], frame)

    def either(self, blocks: Sequence[Sequence[ast.stmt]], frame: Frame) -> None:
        """Run one of several blocks: all of them, each on its own."""
        before = frame.names, frame.world
        ends: list[State] = []
        for block in blocks:
            self.begin_from(before, frame)
            self.block(block, frame)
            ends += frame.state
        self.resume(ends, frame)

    def _for(self, node: ast.For, frame: Frame) -> None:
        iterated = self.evaluate(node.iter, frame)
        entries = self.entries_of(iterated)
        with self.unchanged(iterated, frame):
            self._pass_through(node, iterated, entries, frame)

    def _pass_through(
        self, node: ast.For, iterated: Value, entries: list[Value] | None, frame: Frame
    ) -> None:
        if entries is None:
            self._repeat(node, iterated, frame)
        else:
            outer, frame.breaks = frame.breaks, []
            ends: list[State] = []
            for entry in entries:
                if not frame.alive:
                    break
                if isinstance(iterated, Once) and iterated.partial:
                    ends.append((dict(frame.names), frame.world.copy()))
                self.store(node.target, entry, frame)
                self._iteration(node.body, frame)
            self.resume([*ends, *frame.state], frame)
            self.after_loop(node, outer, frame)

    def _while(self, node: ast.While, frame: Frame) -> None:
        self.test(node.test, frame)
        self._repeat(node, None, frame)

    def _iteration(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        """One pass through a loop's body; ``continue`` ends it."""
        outer, frame.continues = frame.continues, []
        self.block(body, frame)
        ends = [*frame.continues, *frame.state]
        frame.continues = outer
        self.resume(ends, frame)

    def resume(self, ends: list[State], frame: Frame) -> None:
        """Go on where several paths meet."""
        frame.alive = bool(ends)
        if ends:
            frame.names, frame.world = join_all(ends, self.numbers)

    def _repeat(self, node: Any, iterated: Value | None, frame: Frame) -> None:
        """A loop of any number of passes: each may be the last one."""
        outer, frame.breaks = frame.breaks, []
        self.rounds += 1
        ends = [(dict(frame.names), frame.world.copy())]
        for _ in self.passes(frame):
            if iterated is not None:
                self.store(node.target, self.element_of(iterated, frame), frame)
            self._iteration(node.body, frame)
            if frame.alive and isinstance(node, ast.While):
                self.test(node.test, frame)
            ends += [(dict(names), world.copy()) for names, world in frame.state]
        self.rounds -= 1
        self.resume(ends, frame)
        self.after_loop(node, outer, frame)

    def after_loop(self, node: Any, outer: list[Any], frame: Frame) -> None:
        """``else`` runs unless the loop was left by ``break``."""
        breaks, frame.breaks = frame.breaks, outer
        if frame.alive:
            self.block(node.orelse, frame)
        self.resume([*breaks, *frame.state], frame)

    def _break(self, node: ast.Break, frame: Frame) -> None:
        frame.breaks.append((frame.names, frame.world))
        frame.alive = False

    def _continue(self, node: ast.Continue, frame: Frame) -> None:
        frame.continues.append((frame.names, frame.world))
        frame.alive = False

    def _import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            found: Any = None
            if isinstance(node, ast.Import):
                found = sys.modules.get(alias.name if alias.asname else name)
            elif not node.level and node.module in sys.modules:
                found = vars(sys.modules[node.module]).get(alias.name)
            unknown = Abstract(frozenset({UNKNOWN}))
            frame.bind(name, unknown if found is None else Known(found))

    def _define(self, node: ast.FunctionDef, frame: Frame) -> None:
        if node.decorator_list or any(isinstance(n, ast.Nonlocal) for n in ast.walk(node)):
            raise UnsupportedError("a decorated nested function, or one that assigns outer names")
        self.share_with(node, frame)
        closure = Closure(node, frame, self.defaults_of(node.args, frame))
        frame.bind(node.name, closure)
        frame.enclose(closure)


def _unless_given(perhaps: Sequence[Value], default: Value | None) -> Value:
    """A parameter that further arguments may name, or fill by their number."""
    if default is None:
        return Abstract(union(perhaps) if perhaps else frozenset({UNKNOWN}))
    return merged(default, Abstract(union(perhaps))) if perhaps else default


def _defaults(node: Any, function: FunctionType) -> dict[str, Value]:
    """Parameters that have defaults."""
    arguments: ast.arguments = node.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    defaults = function.__defaults__ or ()
    given = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    return {name: Known(v) for name, v in {**given, **(function.__kwdefaults__ or {})}.items()}


_STATEMENTS: dict[type, Any] = {
    ast.Expr: Interpreter._expression,
    ast.Assign: Interpreter._assign,
    ast.AnnAssign: Interpreter._annotated,
    ast.AugAssign: Interpreter.augmented,
    ast.Return: Interpreter._return,
    ast.Raise: Interpreter.raise_statement,
    ast.Assert: Interpreter.claim_statement,
    ast.Delete: Interpreter._delete,
    ast.If: Interpreter._if,
    ast.For: Interpreter._for,
    ast.While: Interpreter._while,
    ast.Break: Interpreter._break,
    ast.Continue: Interpreter._continue,
    ast.With: Interpreter.with_statement,
    ast.Try: Interpreter.try_statement,
    ast.FunctionDef: Interpreter._define,
    ast.Import: Interpreter._import,
    ast.ImportFrom: Interpreter._import,
}
