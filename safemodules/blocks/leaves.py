"""Tensors that a loop differentiates: parameters of its body, and stand-ins of what it is given."""

import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from safemodules.trees import flatten_tensors, map_tensors

__all__ = ["Bridges", "Leaves", "detached", "modules_reached", "named_parameters_of"]


def _needs_grad(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return any(tensor.requires_grad for _, tensor in flatten_tensors(value))


@dataclass
class Bridges:
    """Stand-ins for tensors that need a gradient, at which an iteration's graph ends.

    NOTE [ Bridges ]: a gradient taken with respect to a stand-in holds what reaches the tensor
    by this way alone: tensors that depend on each other are not counted twice, hooks of the
    tensor do not run, and the graph behind it is neither run nor freed. A stand-in is a leaf
    that shares the tensor's memory. Only in the first iteration, before which nobody knows
    whether the body returns losses, it is a view of the tensor, a node of its own, so that
    tensors that the body returns are part of the graph. If a parameter that this iteration uses
    lies behind the tensor as well (tied weights), its losses stay in the graph as they are.

    Attributes:
        cuts: The stand-ins are leaves.
        originals: The tensors that need a gradient.
        ends: The leaf, or the edge of the graph, where the gradient of each arrives.
    """

    cuts: bool
    originals: list[Tensor] = field(default_factory=list)
    ends: list[Tensor | GradientEdge] = field(default_factory=list)
    _known: dict[int, Tensor] = field(default_factory=dict)
    _versions: list[int] = field(default_factory=list)

    def __call__(self, value: Any) -> Any:
        """Give the value back with stand-ins for its tensors that need a gradient.

        A value without such tensors is given back itself; of others the lists, tuples and
        dicts are new.
        """
        return _replaced(value, self._bridge)

    def _bridge(self, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        if id(tensor) not in self._known:
            if self.cuts:
                bridge = tensor.detach().requires_grad_()
                self.ends.append(bridge)
            else:
                bridge = tensor.view_as(tensor)
                self.ends.append(get_gradient_edge(bridge))
            self._known[id(tensor)] = bridge
            self.originals.append(tensor)
            self._versions.append(tensor._version)
        return self._known[id(tensor)]

    def overwritten(self) -> Tensor | None:
        """Find an original that was written since."""
        for tensor, version in zip(self.originals, self._versions, strict=True):
            if tensor._version != version:
                return tensor
        return None


@dataclass
class Leaves:
    """Leaves in place of tensors that come from a graph; their gradients go there at the end."""

    _pairs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, value: Any) -> Any:
        """Give the value back with leaves for its tensors that come from a graph."""
        return _replaced(value, self._leaf)

    def _leaf(self, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad or tensor.is_leaf:
            return tensor
        if id(tensor) not in self._pairs:
            self._pairs[id(tensor)] = tensor, tensor.detach().requires_grad_()
        return self._pairs[id(tensor)][1]

    def gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Give the tensors that got a gradient, and the gradients."""
        got = [(t, leaf.grad) for t, leaf in self._pairs.values() if leaf.grad is not None]
        return [tensor for tensor, _ in got], [gradient for _, gradient in got]


def detached(value: Any) -> Any:
    """Give a value back with every tensor that needs a gradient detached."""
    return _replaced(value, Tensor.detach)


def _replaced(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    if not _needs_grad(value):
        return value
    if isinstance(value, Tensor):
        return fn(value)
    if type(value) in (list, tuple):
        return type(value)(_replaced(child, fn) for child in value)
    if type(value) is dict:
        return {key: _replaced(child, fn) for key, child in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(child, fn) for child in value))
    return map_tensors(lambda tensor: fn(tensor) if tensor.requires_grad else tensor, value)


def _reached(body: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Modules and tensors that a callable reaches by its names, with a path for messages."""
    if id(body) in seen:
        return
    seen.add(id(body))
    if isinstance(body, nn.Module | Tensor):
        yield "", body
    elif isinstance(body, functools.partial):
        for child in (body.func, *body.args, *body.keywords.values()):
            yield from _reached(child, seen)
    elif isinstance(body, types.MethodType):
        yield from _reached(body.__self__, seen)
        yield from _reached(body.__func__, seen)
    elif isinstance(body, types.FunctionType):
        for name, child in _names_read(body):
            for path, found in _reached(child, seen):
                yield f"{name}.{path}" if path else name, found
    elif isinstance(body, list | tuple):
        for child in body:
            yield from _reached(child, seen)
    elif isinstance(body, dict):
        for child in body.values():
            yield from _reached(child, seen)
    elif not isinstance(body, type | types.ModuleType):
        for name, child in getattr(body, "__dict__", {}).items():  # `self` of a trainer
            if isinstance(child, nn.Module | Tensor):
                yield name, child


def _names_read(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function's free, global and default names stand for now."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, nn.Module | Tensor | types.FunctionType | functools.partial):
                yield name, value
    defaults = (function.__defaults__ or ()) + tuple((function.__kwdefaults__ or {}).values())
    for value in defaults:
        yield "a default", value


def named_parameters_of(*bodies: Any) -> dict[str, Tensor]:
    """Parameters that need a gradient, each once: of modules, and of what functions read.

    Args:
        *bodies: Modules, functions, bound methods, partial functions.

    Returns:
        The parameters by a path for messages.
    """
    found: dict[str, Tensor] = {}
    ids: set[int] = set()
    seen: set[int] = set()
    for body in bodies:
        for path, reached in _reached(body, seen):
            if isinstance(reached, nn.Module):
                named = reached.named_parameters(prefix=path)
            else:
                named = iter([(path, reached)])
            for name, parameter in named:
                is_leaf = parameter.requires_grad and parameter.is_leaf
                if is_leaf and id(parameter) not in ids:
                    ids.add(id(parameter))
                    found[f"{name} ({len(found)})" if name in found else name] = parameter
    return found


def modules_reached(*bodies: Any) -> Iterator[nn.Module]:
    """Every module that a body is or reads, with its children."""
    seen: set[int] = set()
    for body in bodies:
        for _, reached in _reached(body, seen):
            if isinstance(reached, nn.Module):
                yield from reached.modules()
