"""Ways out of a block in an abstract run: exceptions, contexts, ``finally``."""

import ast
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from safemodules.mutation.liveness.containers import has_own_code, runs_code
from safemodules.mutation.liveness.expressions import Expressions
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    STATE,
    UNKNOWN,
    Abstract,
    Closure,
    Known,
    Made,
    Value,
    merged,
)
from safemodules.mutation.liveness.world import State, join_all

# What a checkpoint enters again for a recomputation, and what changes no values.
_ENTERED_AGAIN: tuple[Any, ...] = (
    torch.no_grad,
    torch.enable_grad,
    torch.set_grad_enabled,
    torch.inference_mode,
    torch.autocast,
    torch.amp.autocast,
    torch.cuda.amp.autocast,
    torch.profiler.record_function,
    torch.autograd.profiler.record_function,
    warnings.catch_warnings,
    nullcontext,
)


class Exits(Expressions):
    """Runs statements that may be left in the middle."""

    def block(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        """Run statements until one leaves."""
        raise NotImplementedError

    def resume(self, ends: list[State], frame: Frame) -> None:
        """Go on where several paths meet."""
        raise NotImplementedError

    def raise_statement(self, node: ast.Raise, frame: Frame) -> None:
        """The path ends; an exception may be caught further out."""
        for part in (node.exc, node.cause):
            if part is not None:
                self.unknown_call([self.evaluate(part, frame)], frame)
        self._note_raise(frame)
        frame.alive = False

    def _note_raise(self, frame: Frame) -> None:
        if self.raised:
            self.raised[-1].append(frame.world.copy())
            return
        # whoever called the forward may go on, with what is held elsewhere
        held = frame.world.held_by(frozenset({STATE, UNKNOWN}) | self.inputs)
        self.note_readers(held, frame.world, f"{self.line} raises", exact=False)

    def claim_statement(self, node: ast.Assert, frame: Frame) -> None:
        """``assert``, which may raise."""
        self.test(node.test, frame)
        if node.msg is not None:
            self.unknown_call([self.evaluate(node.msg, frame)], frame)
        self._note_raise(frame)

    def with_statement(self, node: ast.With, frame: Frame) -> None:
        """Statements inside of contexts, some of which swallow exceptions."""
        left: list[Value] = []
        swallows, entered_again = False, True
        for item in node.items:
            value = self.evaluate(item.context_expr, frame)
            callee = self._callee_of(item.context_expr, frame)
            entered: Value = Abstract(value.storages | frozenset({UNKNOWN}))
            if isinstance(value, Made):
                entered = self.method_of_made(value, "__enter__", ([], {}), frame)
            elif runs_code(value):
                entered = self.unknown_call([value], frame)
            if has_own_code(value):
                left.append(value)
            swallows |= _may_swallow(item.context_expr, callee)
            entered_again &= _is_entered_again(callee)
            if item.optional_vars is not None:
                self.store(item.optional_vars, entered, frame)
        with nullcontext() if entered_again else self.within(self.line):
            if swallows:
                interrupted = self._guarded(node.body, frame)
                self.resume([interrupted, *frame.state], frame)
            else:
                self.block(node.body, frame)
        for value in reversed(left):
            self.unknown_call([value], frame)  # `__exit__`

    @contextmanager
    def within(self, line: str) -> Iterator[None]:
        """Statements run inside of a context that is not entered for a recomputation."""
        self.contexts.append(line)
        try:
            yield
        finally:
            self.contexts.pop()

    def _callee_of(self, node: ast.expr, frame: Frame) -> Value:
        """What makes a context, or the context itself."""
        return self.evaluate(node.func if isinstance(node, ast.Call) else node, frame)

    def _guarded(self, body: Sequence[ast.stmt], frame: Frame) -> State:
        """Run statements; what is true if an exception has left them, wherever."""
        names, world = dict(frame.names), frame.world.copy()
        outer, frame.bound = frame.bound, []
        self.raised.append([])
        self.assigned.append([])
        self.block(body, frame)
        raised, bound, assigned = self.raised.pop(), frame.bound, self.assigned.pop()
        frame.bound = outer
        if outer is not None:
            outer += bound
        if self.raised:
            self.raised[-1] += raised
        for name, value in bound:
            names[name] = merged(names[name], value) if name in names else value
        worlds = [world, frame.world.copy(), *raised]
        names, world = join_all([(dict(names), each) for each in worlds], self.numbers)
        for key, value in assigned:
            world.attributes[key] = merged(world.attributes.get(key, value), value)
        if self.assigned:
            self.assigned[-1] += assigned
        return names, world

    def try_statement(self, node: Any, frame: Frame) -> None:
        """Statements, and what runs where an exception has left them."""
        leaves = (ast.Return, ast.Break, ast.Continue)
        if any(isinstance(n, leaves) for part in node.finalbody for n in ast.walk(part)):
            raise UnsupportedError("a `finally` that leaves")
        left = frame.returns, frame.breaks, frame.continues
        before = [len(states) for states in left]
        interrupted = self._guarded(node.body, frame)
        ends: list[State] = []
        if frame.alive:
            self.block(node.orelse, frame)
            ends += frame.state
        for handler in node.handlers:
            self.begin_from(interrupted, frame)
            if handler.name:
                frame.bind(handler.name, Abstract(frozenset({UNKNOWN})))
            self.block(handler.body, frame)
            ends += frame.state
        for states, count in zip(left, before, strict=True):
            for index in range(count, len(states)):
                frame.names, frame.world = states[index]
                frame.alive = True
                self.block(node.finalbody, frame)
                states[index] = frame.names, frame.world
        self.resume(ends, frame)
        if frame.alive:
            self.block(node.finalbody, frame)


def _is_entered_again(callee: Value) -> bool:
    """Whether a context changes nothing that a recomputation would miss, or is not known."""
    if isinstance(callee, Known):
        return callee.object in _ENTERED_AGAIN
    return not isinstance(callee, Made | Closure)


def _may_swallow(node: ast.expr, callee: Value) -> bool:
    """Whether an exception may end at a ``with``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return True
    called = callee.object if isinstance(callee, Known) else None
    owner = (getattr(called, "__module__", None) or "").partition(".")[0]
    return owner not in ("torch", "warnings", "threading") and called is not nullcontext
