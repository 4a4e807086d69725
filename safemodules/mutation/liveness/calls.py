"""Calls of an abstract run: sites, modules, functions of torch, functions of the user."""

import ast
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from safemodules.mutation.found import FoundSite
from safemodules.mutation.fresh_modules import is_sequential
from safemodules.mutation.internals import has_hooks, user_class_of
from safemodules.mutation.liveness import kinds
from safemodules.mutation.liveness.frame import Frame
from safemodules.mutation.liveness.run import Run
from safemodules.mutation.liveness.unsupported import UnsupportedError
from safemodules.mutation.liveness.values import (
    NOTHING,
    STATE,
    UNKNOWN,
    VALUE,
    Abstract,
    Closure,
    Items,
    Known,
    Method,
    Named,
    Storages,
    Value,
    union,
)
from safemodules.mutation.operators import INPLACE_MODULES, method_kind
from safemodules.mutation.resolution import is_foreign, is_torch_class, next_in_mro
from safemodules.mutation.sites import SiteKind

Arguments = tuple[list[Value], dict[str, Value]]
_BUILTIN_OBJECTS = (BuiltinFunctionType, type(len), type(torch.Tensor.add), type(str.join))
_ANSWERS: dict[Any, bool] = {
    torch.jit.is_scripting: False,
    torch.jit.is_tracing: False,
    torch.compiler.is_compiling: False,
}


class Calls(Run):
    """Runs calls over abstract values."""

    def call(self, node: ast.Call, frame: Frame) -> Value:
        """The value of a call."""
        site = self.site_at(node, frame)
        if isinstance(node.func, ast.Attribute):
            if _is_super(node.func.value):
                return self._super(node, frame)
            holder = self.evaluate(node.func.value, frame)
            arguments = self._arguments(node, frame)
            if site is not None:
                return self._site_call(site, node, holder, arguments, frame)
            if not isinstance(holder, Known) or isinstance(holder.object, Tensor):
                return self._method(holder, node.func.attr, arguments, frame)
            if not isinstance(holder.object, ModuleType | nn.Module | type):
                known = self._method_of_object(holder, node.func.attr, arguments, frame)
                if known is not None:
                    return known
            if isinstance(holder.object, nn.Module):
                known = self._method_of_module(holder.object, node.func.attr)
                if known is not None:
                    return known
            callee = self.attribute_of(holder, node.func.attr, frame)
        else:
            callee = self.evaluate(node.func, frame)
            arguments = self._arguments(node, frame)
            if site is not None:
                return self._site_call(site, node, VALUE, arguments, frame)
        return self.call_value(callee, arguments, frame)

    def _arguments(self, node: ast.Call, frame: Frame) -> Arguments:
        args: list[Value] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                value = self.evaluate(argument.value, frame)
                entries = self.entries_of(value)
                if entries is None:
                    if not value.storages:
                        entries = [value]  # a shape
                    else:
                        raise UnsupportedError("arguments of unknown number")
                args += entries
            else:
                args.append(self.evaluate(argument, frame))
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, frame)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, Named):
                kwargs.update(value.entries)
            elif not (isinstance(value, Known) and value.object == {}):
                raise UnsupportedError("keyword arguments of unknown names")
        return args, kwargs

    def call_value(self, callee: Value, arguments: Arguments, frame: Frame) -> Value:
        """Call a value."""
        args, kwargs = arguments
        if isinstance(callee, Closure):
            try:
                value, frame.world = self.run_closure(callee, args, kwargs, frame.world)
            except UnsupportedError as reason:
                self.opaque(callee.reached.function, None, str(reason))
                return self.unknown_call([*args, *kwargs.values()], frame)
            return value
        if isinstance(callee, Method):
            holder = callee.holder
            given = [Known(holder), *args]
            return self.call_function(callee.function, given, kwargs, frame, holder)
        if not isinstance(callee, Known):
            return self.unknown_call([callee, *args, *kwargs.values()], frame)
        called = callee.object
        if isinstance(called, nn.Module):
            return self.call_module(called, args, kwargs, frame)
        if isinstance(called, MethodType) and isinstance(called.__func__, FunctionType):
            given = [Known(called.__self__), *args]
            return self.call_function(called.__func__, given, kwargs, frame, called.__self__)
        if isinstance(called, type):
            return self._construct(called, args, kwargs, frame)
        if called is checkpoint and args:
            return self.call_value(args[0], (args[1:], {}), frame)
        if isinstance(called, FunctionType) and not is_foreign(called.__code__.co_filename):
            return self.call_function(called, args, kwargs, frame)
        return self._foreign(called, args, kwargs, frame)

    # -- sites --------------------------------------------------------------------------

    def _site_call(
        self, site: FoundSite, node: ast.Call, holder: Value, arguments: Arguments, frame: Frame
    ) -> Value:
        args, kwargs = arguments
        if site.kind is SiteKind.METHOD:
            target = holder
        elif site.kind is SiteKind.OUT:
            target = kwargs["out"]
        else:
            target = args[0] if args else kwargs.get("input", VALUE)
        for argument in [*args, *kwargs.values()]:
            if argument is not target or site.kind is SiteKind.METHOD:
                self.read(argument, frame)
        containers = frozenset(s for s in target.storages if frame.world.is_container(s))
        tensors = target.storages - containers
        if site.kind is SiteKind.METHOD and method_kind(site.op) != "overwrite":
            self.read(Abstract(tensors), frame)
        elif site.kind is not SiteKind.OUT:
            self.read(Abstract(tensors), frame)
        new = self.write(site, tensors, frame)
        if new is None:
            return Abstract(target.storages)
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
            frame.names[place.root] = Abstract(new | containers)
            return
        holders = frozenset(s for s in root.storages if frame.world.is_container(s))
        frame.world.put(holders, new)
        if isinstance(root, Items | Named):
            frame.names[place.root] = Abstract(root.storages | new)
        elif root.storages - holders:
            frame.names[place.root] = Abstract(holders | new)

    # -- modules ------------------------------------------------------------------------

    def call_module(
        self, module: nn.Module, args: list[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """Call a module of the model."""
        self.called.add(id(module))
        cls = user_class_of(type(module))
        given = [*args, *kwargs.values()]
        standard = getattr(cls, "__call__", None) is nn.Module.__call__
        if has_hooks(module) or "forward" in module.__dict__ or not standard:
            self.opaque_module(module, "it has hooks, or a call of its own")
            return self.unknown_call(given, frame)
        if is_sequential(module) and len(args) == 1:
            value = args[0]
            for child in module.children():
                value = self.call_module(child, [value], {}, frame)
            return value
        if cls in INPLACE_MODULES and args:
            return self._activation(module, cls.__name__, args[0], frame)
        if is_torch_class(cls):
            return self._torch_module(module, cls.__name__, given, frame)
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
            tensors = frozenset(s for s in held if not frame.world.is_container(s))
            self.write_flag(module, tensors - value.storages, frame)
        return value

    def _activation(self, module: nn.Module, name: str, given: Value, frame: Frame) -> Value:
        self.read(given, frame)
        new = frozenset({self.new(frame)})
        tensors = frozenset(s for s in given.storages if not frame.world.is_container(s))
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
            new = Abstract(frozenset({self.new(frame)}))
            return Items((new, new)) if name == "MultiheadAttention" else new
        if name == "Identity" and given:
            return given[0]
        if name in kinds.ALIASING_MODULES:
            for value in given:
                self.read(value, frame)
            return Abstract(union(given) | {self.new(frame)})
        self.opaque_module(module, f"nn.{name} is not in the table of modules")
        return self.unknown_call(given, frame)

    @staticmethod
    def _method_of_module(module: nn.Module, name: str) -> Value | None:
        """Children of a container."""
        found: Any = None
        if name == "children":
            found = list(module.children())
        elif name == "named_children":
            found = list(module.named_children())
        elif isinstance(module, nn.ModuleDict) and name in ("items", "values", "keys"):
            found = list(getattr(module, name)())
        return None if found is None else Known(found)

    # -- functions ----------------------------------------------------------------------

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
            return self._foreign(function, args, kwargs, frame)
        place = self.line
        try:
            value, frame.world = self.run_function(function, args, kwargs, frame.world, holder)
        except UnsupportedError as reason:
            self.opaque(function, holder, str(reason))
            return self.unknown_call([*args, *kwargs.values()], frame)
        finally:
            self.line = place
        return value

    def _super(self, node: ast.Call, frame: Frame) -> Value:
        assert isinstance(node.func, ast.Attribute)
        arguments = self._arguments(node, frame)
        first = next(iter(frame.names.values()), VALUE)
        holder = first.object if isinstance(first, Known) else None
        function, owner = frame.reached.function, type(holder)
        names = function.__code__.co_freevars
        call = node.func.value
        if "__class__" not in names or not isinstance(call, ast.Call) or call.args:
            raise UnsupportedError("super() with arguments")
        after = function.__closure__[names.index("__class__")].cell_contents
        target = next_in_mro(user_class_of(owner), after, node.func.attr)
        if not isinstance(target, FunctionType):
            raise UnsupportedError("super() that finds no plain function")
        if isinstance(holder, nn.Module) and is_foreign(target.__code__.co_filename):
            defined_by = next(b for b in user_class_of(owner).__mro__ if target in vars(b).values())
            name = defined_by.__name__
            if node.func.attr == "forward" and defined_by in INPLACE_MODULES:
                return self._activation(holder, name, arguments[0][0], frame)
            if node.func.attr == "forward" and is_torch_class(defined_by):
                return self._torch_module(holder, name, arguments[0], frame)
        return self.call_function(
            target, [Known(holder), *arguments[0]], arguments[1], frame, holder
        )

    def _foreign(
        self, called: Any, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """A function of torch, of Python or of another library."""
        given = [*args, *kwargs.values()]
        name = getattr(called, "__name__", "")
        module = getattr(called, "__module__", None)
        try:
            answer = _ANSWERS.get(called)
        except TypeError:
            answer = None
        if answer is not None:
            return Known(answer)
        if module == "builtins" and not isinstance(called, type):
            return self._builtin(name, args, frame)
        if name == "annotate" and module == "torch.jit":
            return args[1]
        owner = (module or "torch").partition(".")[0]
        if owner == "torch":
            return self.torch_call(name, args, kwargs, frame)
        if not frame.world.held_by(union(given)) and not _holds_module(given):
            return VALUE if owner in ("math", "operator", "numpy", "functools", "itertools") else (
                Abstract(frozenset({UNKNOWN}))
            )  # fmt: skip
        return self.unknown_call(given, frame)

    def _builtin(self, name: str, args: Sequence[Value], frame: Frame) -> Value:
        if name in ("isinstance", "hasattr", "callable") and isinstance(args[0], Known):
            if isinstance(args[0].object, nn.Module) and isinstance(args[-1], Known):
                check = {"isinstance": isinstance, "hasattr": hasattr}.get(name)
                return Known(check(args[0].object, args[1].object)) if check else Known(True)
            return VALUE
        if name == "getattr" and isinstance(args[1], Known):
            return self.attribute_of(args[0], str(args[1].object), frame)
        if name == "len":
            entries = self.entries_of(args[0])
            if (
                entries is None
                and isinstance(args[0], Known)
                and hasattr(args[0].object, "__len__")
            ):
                return Known(len(args[0].object))
            return VALUE if entries is None else Known(len(entries))
        if name in kinds.BUILTINS_OF_VALUES:
            if name not in ("len", "isinstance", "id", "type"):
                for value in args:
                    self.read(value, frame)
            return VALUE
        if name in ("iter", "next", "reversed", "sorted"):
            entries = self.entries_of(args[0])
            if entries is not None and name == "reversed":
                return Items(tuple(reversed(entries)))
            return Abstract(args[0].storages | frame.world.contents(args[0].storages))
        if name in kinds.BUILTINS_OF_NUMBERS:
            for value in args:
                self.read(value, frame)
            found = union(args)
            return (
                Abstract(frame.world.contents(found) | found | {self.new(frame)})
                if found
                else VALUE
            )
        return self.unknown_call(args, frame)

    def _construct(
        self, cls: type, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """Make an object: a container of what it is given."""
        given = [*args, *kwargs.values()]
        if cls in (list, tuple, set, frozenset, dict, enumerate, zip, reversed, range):
            return self._container(cls, args, kwargs, frame)
        if cls.__name__ in kinds.BUILTINS_OF_VALUES and cls.__module__ == "builtins":
            return self._builtin(cls.__name__, args, frame)
        if issubclass(cls, BaseException) or cls is torch.Size:
            return VALUE
        if issubclass(cls, Tensor):
            return self.torch_call("clone_perhaps", args, kwargs, frame)
        plain = (
            is_foreign(_file_of(cls))
            or issubclass(cls, tuple)
            or hasattr(cls, "__dataclass_fields__")
        )
        if not plain or _holds_module(given):
            init = getattr(cls, "__init__", None)
            if isinstance(init, FunctionType) and not _holds_module(given):
                made = self.container(union(given), frame)
                self.call_function(init, [made, *args], kwargs, frame)
                return made
            return self.unknown_call(given, frame)
        return self.container(union(given), frame)

    def _container(
        self, cls: type, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        given = [*args, *kwargs.values()]
        lists = [self.entries_of(value) for value in given]
        if cls is range:
            return self._range(args)
        if given and all(entries is not None for entries in lists):
            known = [entries or [] for entries in lists]
            if cls is zip:
                return Items(tuple(Items(tuple(row)) for row in zip(*known, strict=False)))
            if cls is enumerate:
                return Items(tuple(Items((Known(i), e)) for i, e in enumerate(known[0])))
            if cls is reversed:
                return Items(tuple(reversed(known[0])))
            if cls in (tuple, list) and all(isinstance(e, Known) for e in known[0]):
                return Items(tuple(known[0]))
        held = frame.world.contents(union(given)) | (NOTHING if cls is not dict else union(given))
        if cls in (zip, enumerate) and len(given) and any(entries is not None for entries in lists):
            rows = next(entries for entries in lists if entries is not None)
            if cls is zip:  # of modules and tensors: the modules tell how many rows there are
                return Items(
                    tuple(
                        Items(
                            tuple(
                                lists[j][i] if lists[j] is not None and i < len(lists[j])
                                else Abstract(frame.world.contents(given[j].storages))
                                for j in range(len(given))
                            )
                        )
                        for i in range(len(rows))
                    )
                )  # fmt: skip
        return self.container(held, frame)

    @staticmethod
    def _range(args: Sequence[Value]) -> Value:
        numbers = [a.object for a in args if isinstance(a, Known) and isinstance(a.object, int)]
        return Known(range(*numbers)) if len(numbers) == len(args) and args else VALUE

    def _method_of_object(
        self, holder: Known, name: str, arguments: Arguments, frame: Frame
    ) -> Value | None:
        """A method of a number, a string or a container that exists already."""
        known, given = holder.object, [*arguments[0], *arguments[1].values()]
        if isinstance(known, dict) and name in ("items", "keys", "values"):
            return Known(list(getattr(known, name)()))
        if isinstance(known, dict) and name == "get" and given and isinstance(given[0], Known):
            return Known(known.get(given[0].object))
        if isinstance(known, str | int | float | bool | list | tuple | dict | range | torch.Size):
            if isinstance(known, list | dict) and name in kinds.CONTAINER_WRITERS:
                frame.world.put(frozenset({STATE}), union(given))
                return VALUE
            return Abstract(holder.storages | union(given))
        return None

    # -- torch --------------------------------------------------------------------------

    def _method(self, holder: Value, name: str, arguments: Arguments, frame: Frame) -> Value:
        """A method of a tensor, or of a container."""
        args, kwargs = arguments
        given = [*args, *kwargs.values()]
        containers = frozenset(s for s in holder.storages if frame.world.is_container(s))
        if name in kinds.CONTAINER_WRITERS:
            held = holder.storages or frozenset({UNKNOWN})
            inner = union(given)
            if name in ("extend", "update"):
                inner |= frame.world.contents(inner)
            frame.world.put(held, inner)
            return (
                Abstract(inner | frame.world.contents(holder.storages))
                if name == "setdefault"
                else VALUE
            )
        if isinstance(holder, Named) and name in ("get", "pop") and given:
            key = given[0].object if isinstance(given[0], Known) else None
            return holder.entries.get(key, given[1] if len(given) > 1 else Known(None))
        if name in kinds.CONTAINER_READERS and (containers or isinstance(holder, Items | Named)):
            return Abstract(frame.world.contents(holder.storages) | holder.storages | union(given))
        if containers and containers == holder.storages and name not in kinds.VIEWS:
            if name in ("add", "discard", "clear", "remove", "sort", "reverse"):
                frame.world.put(containers, union(given))
                return VALUE
        if not holder.storages and not union(given):
            return VALUE if not isinstance(holder, Items | Named) else holder
        return self.torch_call(name, [holder, *args], kwargs, frame)

    def torch_call(
        self, name: str, args: Sequence[Value], kwargs: dict[str, Value], frame: Frame
    ) -> Value:
        """An operator of torch, by its name."""
        given = [*args, *kwargs.values()]
        if name in kinds.SILENT or name == "_assert":
            return VALUE
        if name in kinds.NUMBERS:
            for value in given:
                self.read(value, frame)
            return VALUE
        if name in kinds.FACTORIES:
            new = self.new(frame)
            frame.world.filled.add(new)
            return Abstract(frozenset({new}))
        if name in kinds.VIEWS and args:
            return Abstract(frame.world.contents(args[0].storages))
        for value in given:
            self.read(value, frame)
        new = self.new(frame)
        if name in kinds.DROPOUT_FUNCTIONS and args:
            return Abstract(self.perhaps(frozenset({new}), args[0].storages, None, frame))
        if kinds.is_fresh(name):
            return Abstract(frozenset({new}))
        if name in kinds.PERHAPS_COPIES or name == "clone_perhaps":
            return Abstract(frame.world.held_by(union(given)) | {new})
        if not union(given) and not _holds_module(given):
            return Abstract(frozenset({new}))  # a switch, a generator, a dtype
        return self.unknown_call(given, frame)


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def _holds_module(values: Sequence[Value]) -> bool:
    return any(
        isinstance(value, Closure | Method)
        or (
            isinstance(value, Known)
            and isinstance(value.object, nn.Module | FunctionType | list | dict)
        )
        for value in values
    )


def _file_of(cls: type) -> str:
    import sys

    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
