"""Calls of an abstract run: sites, modules, functions of torch, functions of the user."""

import ast
import inspect
from collections.abc import Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from safemodules.mutation.forwards import has_own_forward
from safemodules.mutation.found import FoundSite
from safemodules.mutation.fresh_modules import is_sequential
from safemodules.mutation.internals import hooks_of, user_class_of
from safemodules.mutation.liveness import kinds
from safemodules.mutation.liveness.arguments import Binding
from safemodules.mutation.liveness.callables import callables_in, numbered
from safemodules.mutation.liveness.changing import CHANGING_METHODS, SETTERS
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.library import Arguments
from safemodules.mutation.liveness.unsupported import ImpossibleCallError, UnsupportedError
from safemodules.mutation.liveness.values import (
    STATE,
    UNKNOWN,
    VALUE,
    Abstract,
    Closure,
    Items,
    Known,
    Made,
    Method,
    Named,
    Storages,
    Value,
    has_rest,
    union,
)
from safemodules.mutation.liveness.world import State, join_all
from safemodules.mutation.operators import INPLACE_MODULES
from safemodules.mutation.regions import CHECKPOINT_OPTIONS
from safemodules.mutation.resolution import is_foreign, is_torch_class, next_in_mro
from safemodules.mutation.sites import SiteKind

# Methods of modules and parameters that change them other than in their values.
_SETTERS_OF_STATE = frozenset(
    """apply bfloat16 cpu cuda double eval float half load_state_dict requires_grad_ share_memory
    to to_empty train type""".split()
)
# What runs a generator to its end at once.
_ENDERS = frozenset("extend join fromkeys update".split())
_ENDERS_BUILT_IN = (list, tuple, set, frozenset, dict, sum, min, max, sorted)
_MOST_CALLEES = 8  # that a value may call, for each to be run


class Calls(Binding):
    """Runs calls over abstract values."""

    def call(self, node: ast.Call, frame: Frame) -> Value:
        """The value of a call."""
        site = self.site_at(node, frame)
        if isinstance(node.func, ast.Attribute):
            if _is_super(node.func.value):
                return self._super(node, frame)
            holder = self.direct(node.func.value, frame)
            arguments = self.arguments(node, frame, runs_at_once=node.func.attr in _ENDERS)
            if isinstance(holder, Named) and isinstance(node.func.value, ast.Name):
                return self.method_of_named(node.func.value.id, node.func.attr, arguments, frame)
            if site is not None:
                return self._site_call(site, holder, arguments, frame)
            if _registers_hook(node.func.attr):
                if not isinstance(holder, Known) or not isinstance(holder.object, nn.Module):
                    raise UnsupportedError("a hook of something that is not known")
                self.changing.hooked.add(id(holder.object))
            if node.func.attr in CHANGING_METHODS:
                self.note_change(holder)
            if node.func.attr == "__setstate__":
                self.changing.assign(None, None, self.line)
            if node.func.attr in _SETTERS_OF_STATE and isinstance(holder, Known):
                if isinstance(holder.object, nn.Module | Tensor):  # no checkpoint puts it back
                    self.changing.note_outside(self.line)
            if isinstance(holder, Made):
                return self.method_of_made(holder, node.func.attr, arguments, frame)
            if not isinstance(holder, Known) or isinstance(holder.object, Tensor):
                return self.method(holder, node.func.attr, arguments, frame)
            if not isinstance(holder.object, ModuleType | nn.Module | type):
                known = self.method_of_object(holder, node.func.attr, arguments, frame)
                if known is not None:
                    return known
            if isinstance(holder.object, nn.Module):
                known = self.method_of_module(holder.object, node.func.attr, frame)
                if known is not None:
                    return known
            callee = self.attribute_of(holder, node.func.attr, frame)
        else:
            callee = self.evaluate(node.func, frame)
            ends = isinstance(callee, Known) and callee.object in _ENDERS_BUILT_IN
            arguments = self.arguments(node, frame, runs_at_once=ends)
            if site is not None:
                return self._site_call(site, VALUE, arguments, frame)
        self.spelled = getattr(node.func, "id", "") in SETTERS
        return self.call_value(callee, arguments, frame)

    def call_value(self, callee: Value, arguments: Arguments, frame: Frame) -> Value:
        """Call a value."""
        args, kwargs = arguments
        if isinstance(callee, Closure):
            try:
                value, frame.world = self.run_closure(callee, args, kwargs, frame.world)
            except UnsupportedError as reason:
                self.opaque(callee.reached.function, None, str(reason))
                return self.unknown_call([callee, *args, *kwargs.values()], frame)
            return value
        if isinstance(callee, Method):
            return self._method(callee.function, callee.holder, arguments, frame)
        if isinstance(callee, Made):
            return self.method_of_made(callee, "__call__", arguments, frame)
        if not isinstance(callee, Known) or not callable(callee.object):
            callees = self._callees(callee, frame)
            if callees:
                return self._one_of(callees, arguments, frame)
            return self._unknown_callee(callee, arguments, frame)
        called = callee.object
        if isinstance(called, nn.Module):
            return self.call_module(called, args, kwargs, frame)
        if isinstance(called, MethodType) and isinstance(called.__func__, FunctionType):
            given = [Known(called.__self__), *args]
            return self.call_function(called.__func__, given, kwargs, frame, called.__self__)
        if isinstance(called, type):
            return self.construct(called, args, kwargs, frame)
        if called is checkpoint and args:
            handed = {name: kwargs[name] for name in kwargs if name not in CHECKPOINT_OPTIONS}
            return self.call_value(args[0], (args[1:], handed), frame)
        if isinstance(called, FunctionType) and not is_foreign(called.__code__.co_filename):
            return self.call_function(called, args, kwargs, frame)
        call = inspect.getattr_static(type(called), "__call__", None)
        if isinstance(call, FunctionType) and not is_foreign(call.__code__.co_filename):
            return self._method(call, called, arguments, frame)
        return self.foreign(called, args, kwargs, frame)

    @staticmethod
    def _callees(value: Value, frame: Frame) -> list[Value]:
        """All that a value may call, if nothing else is possible."""
        storages = value.storages
        numbers = sorted((s for s in storages if s < 0), reverse=True)
        elsewhere = {s for s in storages if s in (STATE, UNKNOWN) or frame.world.is_container(s)}
        if len(numbers) > _MOST_CALLEES or elsewhere - set(numbers):
            return []
        found = map(numbered, numbers)
        return [each if isinstance(each, Value) else Known(each) for each in found]

    def _one_of(self, callees: Sequence[Value], arguments: Arguments, frame: Frame) -> Value:
        """Call one of several things: each on a path of its own."""
        before = frame.names, frame.world
        ends: list[State] = []
        for callee in callees:
            self.begin_from(before, frame)
            value = self.call_value(callee, arguments, frame)
            if frame.alive:
                ends.append(({**frame.names, "call": value}, frame.world))
        frame.alive = bool(ends)
        if not ends:
            return VALUE
        frame.names, frame.world = join_all(ends, self.numbers)
        return frame.names.pop("call")

    def begin_from(self, state: State, frame: Frame) -> None:
        """Begin a path of its own where several part."""
        frame.names, frame.world, frame.alive = dict(state[0]), state[1].copy(), True
        self.steps += state[1].size // 32

    # -- sites --------------------------------------------------------------------------

    def _site_call(
        self, site: FoundSite, holder: Value, arguments: Arguments, frame: Frame
    ) -> Value:
        args, kwargs = arguments
        if has_rest([*args, *kwargs.values()]):
            raise UnsupportedError("arguments of unknown number")
        if site.kind is SiteKind.METHOD:
            target = holder
        elif site.kind is SiteKind.OUT:
            target = kwargs["out"]
        else:
            target = args[0] if args else kwargs.get("input", VALUE)
        for argument in [*args, *kwargs.values()]:
            if argument is not target or site.kind is SiteKind.METHOD:
                self.read(argument, frame)
        containers = frame.world.containers(target.storages)
        tensors = target.storages - containers
        self.note_outside(target, site.node)
        if site.kind is not SiteKind.OUT:
            self.read(Abstract(tensors), frame)
        new = self.write(site, tensors, frame)
        if new is None:
            return target if isinstance(target, Known) else Abstract(target.storages)
        if site.op.rstrip("_") in kinds.DROPOUT_FUNCTIONS:
            new = self.perhaps(new, tensors, site, frame)
        self.rebind(site, new, containers, frame)
        return Abstract(new | containers)

    def rebind(self, site: FoundSite, new: Storages, containers: Storages, frame: Frame) -> None:
        """Let the name that a site writes stand for the new tensor."""
        place = site.place
        if place is None or place.root is None or place.root not in frame.names:
            return
        root = frame.names[place.root]
        if not place.accessors:
            frame.bind(place.root, Abstract(new | containers))
            return
        holders = frame.world.containers(root.storages)
        frame.world.put(holders, new)
        if isinstance(root, Items | Named):
            frame.bind(place.root, Abstract(root.storages | new))
        elif root.storages - holders:
            frame.bind(place.root, Abstract(holders | new))

    # -- modules ------------------------------------------------------------------------

    def call_module(
        self, module: nn.Module, args: list[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """Call a module of the model."""
        cls = user_class_of(type(module))
        given = [*args, *kwargs.values()]
        standard = inspect.getattr_static(cls, "__call__") is vars(nn.Module)["__call__"]
        hooks = hooks_of(module)
        hooked = bool(hooks) or id(module) in self.changing.hooked
        if hooked or has_own_forward(module) or not standard:
            for hook in hooks:
                self.lose_callables(callables_in(hook))
            self.opaque_module(module, "it has hooks, or a call of its own")
            return self.unknown_call(given, frame)
        base = nn.Sequential if is_sequential(module) else cls
        if is_torch_class(base) or base in INPLACE_MODULES:
            return self._forward_of_torch(module, base, (args, kwargs), frame)
        forward = next_in_mro(cls, object, "forward") or getattr(cls, "forward", None)
        if not isinstance(forward, FunctionType):
            self.opaque_module(module, "its forward is no plain function")
            return self.unknown_call(given, frame)
        before = union(given)
        self.running.append(module)
        value = self.call_function(forward, [Known(module), *args], kwargs, frame, module)
        self.running.pop()
        if id(module) in self.flags:
            held = frame.world.held_by(before)
            tensors = held - frame.world.containers(held) - value.storages
            self.write_flag(module, tensors, frame)
        return value

    def _forward_of_torch(
        self, module: nn.Module, cls: type, arguments: Arguments, frame: Frame
    ) -> Value:
        """What a class of torch's own computes, whose forward a module runs."""
        args, kwargs = arguments
        given = [*args, *kwargs.values()]
        if has_rest(given):
            self.opaque_module(module, "arguments of unknown number")
            return self.unknown_call(given, frame)
        if cls is nn.Sequential and self.changing.has_regrown(module):
            return self._unknown_callee(Known(module), arguments, frame)
        if cls is nn.Sequential and len(args) == 1 and not kwargs:
            value = args[0]
            for child in module.children():
                value = self.call_module(child, [value], {}, frame)
            return value
        if cls in INPLACE_MODULES and args:
            return self._activation(module, cls.__name__, args[0], frame)
        return self._torch_module(module, cls.__name__, given, frame)

    def _activation(self, module: nn.Module, name: str, given: Value, frame: Frame) -> Value:
        self.read(given, frame)
        new = frozenset({self.new()})
        tensors = given.storages - frame.world.containers(given.storages)
        if id(module) in self.flags and not self.write_flag(module, tensors, frame):
            return given  # it stays in place
        if name in kinds.DROPOUTS:
            new = self.perhaps(new, tensors, id(module), frame)
        return Abstract(new)

    def _torch_module(
        self, module: nn.Module, name: str, given: Sequence[Value], frame: Frame
    ) -> Value:
        if name in kinds.FRESH_MODULES:
            for value in given:
                self.read(value, frame)
            new = Abstract(frozenset({self.new()}))
            return Items((new, new)) if name == "MultiheadAttention" else new
        if name == "Identity" and given:
            return given[0]
        if name in kinds.ALIASING_MODULES:
            for value in given:
                self.read(value, frame)
            return Abstract(union(given) | {self.new()})
        self.opaque_module(module, f"nn.{name} is not in the table of modules")
        return self.unknown_call(given, frame, writes=False)

    # -- functions ----------------------------------------------------------------------

    def method_of_made(self, holder: Made, name: str, arguments: Arguments, frame: Frame) -> Value:
        """Call a method of an object that the forward has made."""
        args, kwargs = arguments
        method = holder.method(name)
        if method is not None:
            return self.call_function(method, [holder, *args], kwargs, frame)
        return self._unknown_callee(holder, arguments, frame)

    def _unknown_callee(self, callee: Value, arguments: Arguments, frame: Frame) -> Value:
        """Call something of which nothing is known."""
        args, kwargs = arguments
        self.unknown_callee = self.unknown_callee or self.line
        return self.unknown_call([callee, *args, *kwargs.values()], frame)

    def call_function(
        self,
        function: FunctionType,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        frame: Frame,
        holder: Any = None,
    ) -> Value:
        """Call a function of the user, or what cannot be looked into."""
        if is_foreign(function.__code__.co_filename):
            return self.foreign(function, args, kwargs, frame)
        if self.shallow and function in self.reach.functions:
            return self.unknown_call([*args, *kwargs.values()], frame)
        place = self.line
        args = [self.lasting(value, frame) for value in args]
        kwargs = {name: self.lasting(value, frame) for name, value in kwargs.items()}
        try:
            with self.limited():
                value, frame.world = self.run_function(function, args, kwargs, frame.world, holder)
        except ImpossibleCallError:
            frame.alive = False  # it raises
            return VALUE
        except (UnsupportedError, RecursionError) as reason:
            self.opaque(function, holder, str(reason))
            return self.unknown_call([*args, *kwargs.values()], frame)
        finally:
            self.line = place
        return value

    def _super(self, node: ast.Call, frame: Frame) -> Value:
        assert isinstance(node.func, ast.Attribute)
        arguments = self.arguments(node, frame)
        call = node.func.value
        assert isinstance(call, ast.Call)
        after, holder = self._past(call, frame)
        owner = type(holder)
        target = next_in_mro(user_class_of(owner), after, node.func.attr)
        if not isinstance(target, FunctionType):
            raise UnsupportedError("super() that finds no plain function")
        return self._method(target, holder, arguments, frame)

    def _past(self, call: ast.Call, frame: Frame) -> tuple[type, Any]:
        """The class past which ``super`` looks, and the object it looks for."""
        if call.args:
            cls, *objects = (self.evaluate(argument, frame) for argument in call.args)
            if isinstance(cls, Known) and isinstance(cls.object, type):
                if len(objects) == 1 and isinstance(objects[0], Known):
                    return cls.object, objects[0].object
            raise UnsupportedError("super() of what is not known")
        function = frame.reached.function
        first = next(iter(frame.names.values()), VALUE)
        names = function.__code__.co_freevars
        if "__class__" not in names:
            raise UnsupportedError("super() outside of a class")
        after = function.__closure__[names.index("__class__")].cell_contents
        return after, first.object if isinstance(first, Known) else None

    def _method(
        self, function: FunctionType, holder: Any, arguments: Arguments, frame: Frame
    ) -> Value:
        """Call a method of an object that is known."""
        args, kwargs = arguments
        if isinstance(holder, nn.Module) and function.__name__ == "forward":
            mro = user_class_of(type(holder)).__mro__
            base = next((b for b in mro if vars(b).get("forward") is function), None)
            if base is not None and (is_torch_class(base) or base in INPLACE_MODULES):
                return self._forward_of_torch(holder, base, arguments, frame)
        return self.call_function(function, [Known(holder), *args], kwargs, frame, holder)


def _registers_hook(name: str) -> bool:
    return name.startswith("register_") and name.endswith("hook")


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )
