"""Calls of operators that are noted in place of their results, and made again when asked for.

NOTE [ Forgotten Results ]: of the operators of a forward that a plan names, the call is noted in
place of the results: the operator, and arguments that are either kept tensors or results of other
noted calls. A saved-tensor hook hands autograd a note where the saved tensor lies in a forgotten
result. When backward asks for it, the calls that lead to it are run again in the order of the
forward (see NOTE [ Replays ]), and what others have yet to ask for is kept until they have. So a
result lives from its computation to its last use in the forward, and again from its first to its
last use in the backward.

Nothing depends on the plan being right: a note tells what was truly called.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.checkpointing.replays import Rule
from safemodules.errors import CheckpointError
from safemodules.mutation.graph_internals import is_fake

__all__ = [
    "Call",
    "Kept",
    "Replay",
    "Result",
    "SavedView",
    "View",
    "is_plain_tensor",
    "map_leaves",
    "own_results",
    "replay_order",
    "without_graph",
]


def is_plain_tensor(tensor: Tensor) -> bool:
    """Whether a tensor has one memory of its own, and no class that computes otherwise."""
    plain = type(tensor) in (Tensor, nn.Parameter) or is_fake(tensor)
    return plain and tensor.layout is torch.strided and not tensor.is_inference()


def without_graph(tensor: Tensor) -> Tensor:
    """The tensor as it may be held by what its own graph holds: no cycle keeps both alive."""
    return tensor if tensor.grad_fn is None else tensor.detach()


def own_results(outputs: Any, inputs: Sequence[Any]) -> list[tuple[int, Tensor]]:
    """Results of an operator in memory of their own, with their positions.

    Args:
        outputs: what it has returned.
        inputs: the memories of what it was given.
    """
    found = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    given = set(map(id, inputs))
    return [
        (position, output)
        for position, output in enumerate(found)
        if isinstance(output, Tensor)
        and is_plain_tensor(output)
        and id(output.untyped_storage()) not in given
    ]


class Kept:
    """A tensor that is kept, with the version that it must have.

    The hooks displace autograd's own check, so this makes it.
    """

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._version = None if tensor.is_inference() else tensor._version

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._tensor.device

    def get(self) -> Tensor:
        """The tensor.

        Raises:
            CheckpointError: it was overwritten.
        """
        tensor = self._tensor
        if self._version is None:
            return tensor
        if tensor._version != self._version:
            raise CheckpointError(
                f"one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a {str(tensor.dtype).removeprefix('torch.')} tensor of sizes "
                f"{list(tensor.shape)} is at version {tensor._version}; expected version "
                f"{self._version} instead. Backward needs it, or computes from it a result that "
                f"the memory budget has not kept. safemodules.diagnose(model, inputs) names the "
                f"line that overwrote it."
            )
        if tensor.numel() and is_plain_tensor(tensor) and not tensor.untyped_storage().nbytes():
            raise CheckpointError(
                f"a tensor of sizes {list(tensor.shape)} has no memory any more, and backward "
                f"computes from it a result that the memory budget has not kept. What shards "
                f"parameters takes it away after a module's forward: shard a model without a "
                f"memory budget."
            )
        return tensor


class Result:
    """A forgotten result.

    Attributes:
        call: what computes it.
        position: which of the call's results it is.
        version: the version that the result had.
        dtype: its dtype.
        readers: how many saved tensors stand for it and were not asked for yet.
        value: the result, once it was computed again and as long as there are readers.
    """

    __slots__ = ("__weakref__", "call", "dtype", "position", "readers", "value", "version")

    def __init__(self, call: "Call", position: int, tensor: Tensor) -> None:
        self.call, self.position = call, position
        self.version, self.dtype = tensor._version, tensor.dtype
        self.readers = 0
        self.value: Tensor | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in the memory of a forgotten result."""

    result: Result
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, result: Result) -> "View":
        """Describe a tensor."""
        return cls(result, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def on(self, value: Tensor) -> Tensor:
        """The same view of a result that was computed again."""
        same = value.size() == self.size and value.stride() == self.stride
        if same and value.storage_offset() == self.offset:
            return value
        return value.as_strided(self.size, self.stride, self.offset)


class Call:
    """A call of an operator, to be made again.

    Args:
        order: its place among the noted calls of the forward.
        func: the operator.
        rule: how it is run again.
        args: its positional arguments, kept tensors and views of results in place of tensors.
        kwargs: its keyword arguments, likewise.
        kept: those of its results that are kept.
    """

    __slots__ = ("_args", "_kept", "_kwargs", "_results", "_rule", "func", "order", "sources")

    def __init__(
        self,
        order: int,
        func: Any,
        rule: Rule,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kept: tuple[Any, ...],
    ) -> None:
        self.order, self.func, self._rule = order, func, rule
        self._args, self._kwargs, self._kept = args, kwargs, kept
        # Weakly, for they hold the call: what nobody asks for any more shall be gone at once.
        self._results: list[weakref.ref[Result]] = []
        self.sources = tuple(leaf.result for leaf in _leaves((args, kwargs)) if type(leaf) is View)

    @property
    def device_types(self) -> set[str]:
        """Types of the devices that it computes on."""
        leaves = _leaves((self._args, self._kwargs))
        return {leaf.device.type for leaf in leaves if type(leaf) is Kept}

    @property
    def results(self) -> list[Result]:
        """Those of its results that are forgotten, and may be asked for."""
        return [result for found in self._results if (result := found()) is not None]

    def forget(self, position: int, tensor: Tensor) -> Result:
        """A forgotten result."""
        result = Result(self, position, tensor)
        self._results.append(weakref.ref(result))
        return result

    def run(self, values: Mapping[Result, Tensor]) -> list[tuple[Result, Tensor]]:
        """Compute its results.

        Args:
            values: results of other calls.
        """

        def fill(leaf: Any) -> Any:
            if type(leaf) is View:
                value = leaf.result.value
                return leaf.on(values[leaf.result] if value is None else value)
            return leaf.get() if type(leaf) is Kept else leaf

        args, kwargs = map_leaves(fill, self._args), map_leaves(fill, self._kwargs)
        outputs = self._rule.run(self.func, args, kwargs, self._kept)
        found = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        return [(result, found[result.position]) for result in self.results]


def map_leaves(fn: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of an operator's arguments."""
    kind = type(value)
    if kind is tuple:
        return tuple([map_leaves(fn, item) for item in value])
    if kind is list:
        return [map_leaves(fn, item) for item in value]
    if kind is dict:
        return {name: map_leaves(fn, item) for name, item in value.items()}
    return fn(value)


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(found.append, value)
    return found


def replay_order(
    target: Any, sources: Callable[[Any], Iterable[Any]], place: Callable[[Any], int]
) -> list[Any]:
    """Calls that lead to one, in the order of the forward.

    Args:
        target: the call.
        sources: the calls that one has to wait for.
        place: the place of a call in the forward.
    """
    needed, stack = {target}, [target]
    while stack:
        for source in sources(stack.pop()):
            if source not in needed:
                needed.add(source)
                stack.append(source)
    return sorted(needed, key=place)


class SavedView:
    """A saved tensor that lies in a forgotten result."""

    __slots__ = ("view",)

    def __init__(self, view: View) -> None:
        self.view = view
        view.result.readers += 1


class Replay:
    """Computes again what one forward has forgotten."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def unpack(self, saved: SavedView | Kept) -> Tensor:
        """A saved tensor, for the operation that has saved it."""
        if type(saved) is Kept:
            return saved.get()
        assert type(saved) is SavedView
        view, result = saved.view, saved.view.result
        with self._lock:
            value = _replayed(result) if result.value is None else result.value
            result.readers -= 1
            if result.readers <= 0:
                result.value = None
        return view.on(value)


def _replayed(target: Result) -> Tensor:
    def missing(call: Call) -> list[Call]:
        return [result.call for result in call.sources if result.value is None]

    calls = replay_order(target.call, missing, lambda call: call.order)
    last_use = {source: call for call in calls for source in missing(call)}
    dying: dict[Call, list[Call]] = {}
    for source, user in last_use.items():
        dying.setdefault(user, []).append(source)
    values: dict[Result, Tensor] = {}
    with _below_autograd(calls):
        for call in calls:
            for result, value in call.run(values):
                if result.readers > 0 and result.value is None:
                    result.value = value
                values[result] = value
            for source in dying.get(call, ()):
                for result in source.results:
                    values.pop(result, None)
    return values[target]


def _below_autograd(calls: Iterable[Call]) -> ExitStack:
    """Neither graph nor autocast: the arguments are those that autocast has handed on."""
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    for kind in set().union(*(call.device_types for call in calls)):
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack
