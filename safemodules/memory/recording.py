"""Record one step of training, which keeps nothing for its backward."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from safemodules.checkpointing.replaying import is_plain_tensor
from safemodules.errors import ExampleInputError
from safemodules.memory.overhead import Step, measured_overhead, overhead_in
from safemodules.memory.recorder import Recorder
from safemodules.memory.tape import Tape
from safemodules.mutation.graph_internals import fake_mode
from safemodules.state import preserved, seed_everything
from safemodules.state.model import module_tensors
from safemodules.trees import CallArguments, clone_tensor, flatten_tensors, map_tensors

__all__ = ["LossFn", "costing", "prepared_step", "record_step", "summed"]

LossFn = Callable[[Any], Tensor]

# This share of a step is much.
MUCH = 0.08


def summed(output: Any) -> Tensor:
    """The loss where none is given: the sum of every floating output that needs a gradient.

    Args:
        output: what a model has returned.

    Raises:
        ExampleInputError: there is none.
    """
    found = [tensor for _, tensor in flatten_tensors(output) if tensor.requires_grad]
    if not found:
        raise ExampleInputError(
            "no output of the model needs a gradient, so a step of training saves nothing. "
            "Pass inputs on which it can be trained, or a loss_fn of its output."
        )
    return torch.stack(
        [tensor.abs().sum() if tensor.is_complex() else tensor.sum().float() for tensor in found]
    ).sum()


def record_step(
    model: nn.Module, call: CallArguments, loss_fn: LossFn | None = None, *, fake: bool = False
) -> Tape:
    """Run one step of training and record what it allocates; the model is left as it was.

    The step's backward computes with zeros in place of what was saved.

    Args:
        model: the model, in the mode that it is trained in.
        call: what it is called with.
        loss_fn: computes a scalar loss of its output; by default the sum of its outputs.
        fake: compute nothing: tensors have sizes, and no values. Seconds are then estimated.

    Raises:
        ExampleInputError: no output needs a gradient.
    """
    with ExitStack() as stack:
        stack.enter_context(_ready(model))
        handed = _copies(call)
        forward: Callable[..., Any] = model
        parameters: list[Tensor] = list(model.parameters())
        lasting = list(module_tensors(model).values())
        if fake:
            mode = fake_mode()
            named: dict[str, Tensor] = {
                name: mode.from_tensor(tensor)
                for name, tensor in (*model.named_parameters(), *model.named_buffers())
            }
            parameters = [tensor for tensor in named.values() if isinstance(tensor, nn.Parameter)]
            lasting = [*lasting, *named.values()]
            handed = map_tensors(mode.from_tensor, handed)
            forward = functools.partial(_call_functionally, model, named)
            stack.enter_context(mode)
        stack.enter_context(_no_gradients(parameters))
        known = _known([*parameters, *lasting, *_leaves(handed)])
        recorder = Recorder(model, known)
        with recorder, recorder.hooks:
            with recorder.following_modules(), recorder.calls:
                output = forward(*handed.inputs, **handed.kwargs)
            recorder.in_forward = False
            _backward(output, loss_fn)
            for parameter in parameters:
                recorder.mark_gradient(parameter.grad)
            return recorder.tape(is_estimated=fake)


def costing(
    model: nn.Module, call: CallArguments, tape: Tape, loss_fn: LossFn | None = None
) -> Tape:
    """A recorded step with what forgetting costs besides the operators that are run again.

    Where that is much of a step, it is measured in the model's own step, which tells too what the
    step takes when it is not recorded. Not on accelerators, which run behind Python, and wait for
    it less.

    Args:
        model: the model, in the mode that it is trained in.
        call: what it is called with.
        tape: the recorded step.
        loss_fn: computes a scalar loss of its output; by default the sum of its outputs.
    """
    outside = tape.costing(measured_overhead())
    tensors = (*module_tensors(model).values(), *_leaves(call))
    is_on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    if not is_on_cpu or outside.forgetting_seconds < MUCH * tape.seconds:
        return outside
    inside, seconds = overhead_in(lambda: prepared_step(model, call, loss_fn), tape.saves)
    return replace(tape.costing(inside), seconds=seconds)


@contextmanager
def prepared_step(model: nn.Module, call: CallArguments, loss_fn: LossFn | None) -> Iterator[Step]:
    """A step that can be made once in this block; afterwards the model is as it was.

    Args:
        model: the model.
        call: what it is called with.
        loss_fn: see :func:`record_step`.
    """
    with _ready(model), _no_gradients(list(model.parameters())):
        handed = _copies(call)
        yield Step(
            lambda: model(*handed.inputs, **handed.kwargs),
            lambda output: _backward(output, loss_fn),
        )


def _backward(output: Any, loss_fn: LossFn | None) -> None:
    """The loss and its backward; the caller's output is alive meanwhile, as in a user's loop."""
    loss = summed(output) if loss_fn is None else loss_fn(output)
    torch.autograd.backward(loss)


@contextmanager
def _ready(model: nn.Module) -> Iterator[None]:
    """Gradients on, and fixed random numbers; all is put back."""
    with preserved(model), torch.inference_mode(False), torch.enable_grad():
        seed_everything(0)
        yield


def _copies(call: CallArguments) -> CallArguments:
    """Inputs for one step."""
    wanted = {id(tensor) for _, tensor in flatten_tensors(call) if tensor.requires_grad}

    def copied(tensor: Tensor) -> Tensor:
        copy = clone_tensor(tensor.detach()).detach()
        # A leaf may not be overwritten, so what needs a gradient comes from one.
        return clone_tensor(copy.requires_grad_()) if id(tensor) in wanted else copy

    return map_tensors(copied, call)


def _call_functionally(
    model: nn.Module, named: dict[str, Tensor], /, *args: Any, **kwargs: Any
) -> Any:
    return functional_call(model, named, args, kwargs, tie_weights=True)


def _leaves(call: CallArguments) -> list[Tensor]:
    return [tensor for _, tensor in flatten_tensors(call)]


def _known(tensors: list[Tensor]) -> dict[int, Any]:
    """Memories that are there before the step; they are held, so that no other gets their place."""
    storages = [tensor.untyped_storage() for tensor in tensors if is_plain_tensor(tensor)]
    return {id(storage): storage for storage in storages}


@contextmanager
def _no_gradients(parameters: list[Tensor]) -> Iterator[None]:
    """Parameters without a gradient; afterwards they have again what they had."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
