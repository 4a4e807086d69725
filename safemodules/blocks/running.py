"""The ways to run a loop: plainly, with gradients taken in forward, with recomputation."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from safemodules.blocks.gradients import (
    GradientSum,
    LossScale,
    as_in_backward,
    attach,
    needs_care,
    take_gradients,
)
from safemodules.blocks.graph_checks import inspect_graph, reaches
from safemodules.blocks.leaves import Bridges, detached
from safemodules.blocks.outputs import Output
from safemodules.blocks.plans import Call, Result
from safemodules.blocks.weights import as_seed
from safemodules.checkpointing import checkpoint
from safemodules.errors import LoopBodyError
from safemodules.mutation import internals

__all__ = ["run_plain", "run_recomputed", "run_taken"]


def _directly(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return step(*args, **kwargs)


def run_plain(call: Call) -> Any:
    """Run the iterations as a plain loop does."""
    return _run_on(call, Result(call), call.stream(), _directly)


def run_recomputed(call: Call) -> Any:
    """Run each iteration under an exact checkpoint."""
    return _run_on(call, Result(call), call.stream(), checkpoint)


def _run_on(call: Call, result: Result, stream: Iterator[Any], run: Callable[..., Any]) -> Any:
    """Run the iterations that are left, each through ``run``."""
    for item in stream:
        carry = detached(result.carry) if call.starts_window(result.count) else result.carry
        weight = call.weighing.of(item)
        output = call.run(run, item, carry, call.shared, call.kwargs)
        del item, carry
        result.add(output, weight)
        del output
    if call.carries and call.truncate is not None:
        result.carry = detached(result.carry)
    return result.finish()


@contextlib.contextmanager
def _own_graph() -> Iterator[None]:
    """Keep saved-tensor hooks from outside, a checkpoint's or an offload's, off the iterations.

    Their graphs are gone before the hooks' owner could ask for anything. Hooks switch torch's
    version check off, so these make it.
    """
    if not internals.saved_tensor_hooks_active():
        yield
        return

    def pack(tensor: Tensor) -> tuple[Tensor, int]:
        return tensor.detach(), tensor._version

    def unpack(packed: tuple[Tensor, int]) -> Tensor:
        tensor, version = packed
        if tensor._version != version:
            raise LoopBodyError(
                f"a tensor of shape {tuple(tensor.shape)} that backward needs was overwritten in "
                f"the body of a loop: it is at version {tensor._version}, {version} was saved. "
                f"safemodules.diagnose names the line."
            )
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


_NOTHING_TO_DO: Final = contextlib.nullcontext()


class _Window:
    """Iterations whose gradients are taken together: one, or those of a truncated state."""

    def __init__(self, *, cuts: bool) -> None:
        self.losses: list[Tensor] = []
        self.seeds: list[Tensor] = []
        self.bridges = Bridges(cuts)

    def add(self, loss: Tensor, weight: Any) -> None:
        if loss.requires_grad:
            self.losses.append(loss)
            self.seeds.append(as_seed(weight, loss))


class _Taker:
    """Takes gradients window by window, of parameters and of what was handed over."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.start = internals.next_sequence_number()
        self.shared = Bridges(cuts=False)
        self.arguments = self.shared(call.shared), self.shared(call.kwargs)
        self.carry = self.shared(call.carry)
        self.parameters = list(call.parameters.values())
        self.versions = [p._version for p in self.parameters]
        self.inputs = [*self.parameters, *self.shared.originals]
        self.sum = GradientSum(len(self.inputs))
        self.items: list[tuple[Tensor, GradientSum]] = []
        self.scale = LossScale()
        self.inspected = False
        self.is_plain: bool | None = None
        self.saved_bytes: int | None = None

    def cut(self) -> None:
        """Hand leaves over from now on, see NOTE [ Bridges ]."""
        if self.shared.originals and not self.shared.cuts:
            self.shared = Bridges(cuts=True)
            self.arguments = self.shared(self.call.shared), self.shared(self.call.kwargs)
            self.shared(self.call.carry)  # its gradient is complete; the order stays

    def take(self, window: _Window) -> tuple[list[Tensor], list[Tensor | None]] | None:
        """Take the gradients of a window; returns its inputs and their gradients.

        Returns ``None`` where the losses stay in the graph, or have none.
        """
        if not window.losses:
            return None
        self._require_unwritten(window)
        used = None if self.inspected else self._inspect(window)
        if used is not None and reaches(
            [*self.shared.originals, *window.bridges.originals],
            [p for p in self.parameters if id(p) in used],
        ):
            return None
        chosen = [p for p in self.parameters if used is None or id(p) in used]
        ends: list[Tensor | GradientEdge] = [*chosen]
        ends += [*self.shared.ends, *window.bridges.ends]
        earlier = [] if callable(self.call.reduction) else [self.sum, *(s for _, s in self.items)]
        with self.surroundings(window.losses[0]):
            found = take_gradients(window.losses, window.seeds, ends, self.scale, earlier)
        gradients = list(found)
        if used is not None:
            own = iter(gradients)
            gradients = [next(own) if id(p) in used else None for p in self.parameters]
            gradients += own
        return [*self.inputs, *window.bridges.originals], gradients

    def add(self, window: _Window) -> None:
        """Take the gradients of a window and add them to the sums."""
        taken = self.take(window)
        shared = len(self.inputs)
        if taken is not None:
            inputs, gradients = taken
            self.sum.add(gradients[:shared])
            pairs = zip(inputs[shared:], gradients[shared:], strict=True)
        else:  # what the value depends on are the losses themselves
            scaled = [seed * self.scale.factor for seed in window.seeds]
            pairs = zip(window.losses, scaled, strict=True)
        for tensor, gradient in pairs:
            own = GradientSum(1)
            own.add([gradient])
            self.items.append((tensor, own))

    def surroundings(self, loss: Tensor) -> contextlib.AbstractContextManager[None]:
        """Give what backward runs in; nothing has to be changed in the usual case."""
        if self.is_plain is None:
            self.is_plain = not needs_care(loss, self.parameters)
        return _NOTHING_TO_DO if self.is_plain else as_in_backward(loss, self.parameters)

    def attach(self, value: Tensor, divisor: Any) -> Tensor:
        """Give the reduced value the gradients taken."""
        if self.scale.factor != 1.0:
            divisor = self.scale.factor if divisor is None else divisor * self.scale.factor
        inputs = [*self.inputs, *(tensor for tensor, _ in self.items)]
        sums = [*self.sum.sums, *(own.sums[0] for _, own in self.items)]
        return attach(value, inputs, sums, divisor)

    def _inspect(self, window: _Window) -> frozenset[int]:
        ends = [*self.shared.ends, *window.bridges.ends]
        measure = callable(self.call.reduction) and self.call.store == "auto"
        found = inspect_graph(
            window.losses, self.parameters, ends, self.start, self.call.place, measure=measure
        )
        self.inspected = True
        self.saved_bytes = found.saved_bytes
        if found.is_half:
            self.scale.factor = LossScale.FIRST
        return found.used

    def _require_unwritten(self, window: _Window) -> None:
        versions = [p._version for p in self.parameters]
        if versions != self.versions:
            pairs = zip(versions, self.versions, strict=True)
            changed = [now != before for now, before in pairs].index(True)
            raise LoopBodyError(
                f"{self.call.place}: an iteration changed the parameter "
                f"{list(self.call.parameters)[changed]}, so that the iterations are not those of "
                f"one function of the parameters and no gradient of their sum exists. Step the "
                f"optimizer after the loop."
            )
        written = self.shared.overwritten()
        if written is None:
            written = window.bridges.overwritten()
        if written is not None:
            raise LoopBodyError(
                f"{self.call.place}: the body overwrote a tensor of shape {tuple(written.shape)} "
                f"that it was given and that needs a gradient. Write the result to a new tensor "
                f"there; safemodules.diagnose names the line."
            )


def run_taken(call: Call) -> Any:
    """Run the iterations, taking the gradients of each as soon as it has run.

    See NOTE [ Gradients in forward ]. If the body turns out to return tensors, the first
    iteration is kept and the others are recomputed.
    """
    taker, result, stream = _Taker(call), Result(call), call.stream()
    result.carry = taker.carry
    with _own_graph():
        last = _take_while_losses(taker, result, stream)
    if last is None:
        return result.finish(None if callable(call.reduction) else taker.attach)
    if last.output is not None:
        if result.count:
            raise LoopBodyError(
                f"{call.place}: iteration {result.count} returned tensors, but the iterations "
                f"before it returned losses (tensors without dimensions)"
            )
        result.add(last.output, last.weight)
        del last
    return _run_on(call, result, stream, checkpoint)


class _Last(NamedTuple):
    """Where taking gradients ended early: at an output that is no loss, or by choice."""

    output: Output | None = None
    weight: Any = None


def _take_while_losses(taker: _Taker, result: Result, stream: Iterator[Any]) -> _Last | None:
    """Run iterations until one returns tensors, or the rest is better recomputed."""
    call = taker.call
    window = _Window(cuts=False)
    size = (call.truncate or 1) if call.carries else 1
    for item in stream:
        given, weight = window.bridges(item), call.weighing.of(item)
        del item
        output = call.run(_directly, given, result.carry, *taker.arguments)
        del given
        if not output.is_scalar:
            return _Last(output, weight)
        window.add(output.value, weight)
        if callable(call.reduction):
            result.add(_with_gradients(taker, window, output), weight)
        else:
            result.add(output._replace(value=output.value.detach()), weight)
        del output
        if result.count % size == 0:
            if not callable(call.reduction):
                taker.add(window)
            window = _Window(cuts=True)
            taker.cut()
            result.carry = detached(result.carry) if call.carries else result.carry
        if callable(call.reduction) and _is_smaller_recomputed(taker, result):
            return _Last()
    if window.losses:
        taker.add(window)
    result.carry = detached(result.carry) if call.carries else result.carry
    return None


def _with_gradients(taker: _Taker, window: _Window, output: Output) -> Output:
    """Give the loss of one iteration its gradients."""
    taken = taker.take(window)
    if taken is None:  # it has no graph, or keeps it
        return output
    factor = taker.scale.factor
    value = attach(output.value.detach(), *taken, None if factor == 1.0 else factor)
    return output._replace(value=value)


def _is_smaller_recomputed(taker: _Taker, result: Result) -> bool:
    """Whether an iteration's gradients are larger than what its graph kept."""
    if result.count != 1 or taker.call.store != "auto" or taker.saved_bytes is None:
        return False
    gradients = sum(p.numel() * p.element_size() for p in taker.parameters)
    return gradients > taker.saved_bytes
