"""What to do about a clash, as a table of causes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from safemodules.mutation.graph import Overwritten


@dataclass(frozen=True)
class Cause:
    """A cause of a clash.

    Attributes:
        applies: whether it is the cause; is given the clash and names of buffers by storage.
        advice: what to do; ``{line}`` is the line that overwrites, ``{name}`` a buffer.
    """

    applies: Callable[[Overwritten, Mapping[int, str]], bool]
    advice: str


def _by_optimizer(clash: Overwritten, buffers: Mapping[int, str]) -> bool:
    return any(write.operation.where.optimizer for write in clash.writes)


def _parameter(clash: Overwritten, buffers: Mapping[int, str]) -> bool:
    return clash.operand is not None and clash.operand.parameter


def _buffer(clash: Overwritten, buffers: Mapping[int, str]) -> bool:
    return clash.operand is not None and clash.operand.storage in buffers


def _unseen_buffer(clash: Overwritten, buffers: Mapping[int, str]) -> bool:
    return _buffer(clash, buffers) and not clash.writes


def _unseen(clash: Overwritten, buffers: Mapping[int, str]) -> bool:
    return not clash.writes


def _checkpointed(clash: Overwritten, buffers: Mapping[int, str]) -> bool:
    return clash.operation is not None and clash.operation.where.checkpointed


CAUSES: tuple[Cause, ...] = (
    Cause(
        _by_optimizer,
        "The optimizer stepped before this backward, which needs the old weights. Call "
        "optimizer.step() after the last backward that uses them, or run the forward again "
        "after the step. If a state is carried from one step into the next, detach it: "
        "h = h.detach().",
    ),
    Cause(
        _unseen_buffer,
        "No Python line wrote it: under DistributedDataParallel the buffers are broadcast "
        "before each forward. Pass broadcast_buffers=False, or clone the buffer before use.",
    ),
    Cause(
        _unseen,
        "No Python line wrote it, so it was written by compiled or C++ code. Give that code a "
        "clone of the tensor.",
    ),
    Cause(
        _parameter,
        "Weights were written between forward and backward. Write them after the backward, or "
        "run the forward again.",
    ),
    Cause(
        _buffer,
        "{name} is state of the model: it is used first and updated then. Use a clone: "
        "{name}.clone(), or update it after the backward.",
    ),
    Cause(
        _checkpointed,
        "Inside a checkpointed region torch does not notice this, and the gradient is wrong. "
        "Convert the model: safemodules.convert_model(model, example_inputs).",
    ),
)
DEFAULT = (
    "safemodules.convert_model(model, example_inputs) computes {line} out of place; by hand, "
    "write the result to a new tensor there."
)


def advise(clash: Overwritten, buffers: Mapping[int, str]) -> str:
    """What to do about a clash.

    Args:
        clash: the overwritten tensor.
        buffers: names of the model's buffers, by storage.
    """
    text = next((cause.advice for cause in CAUSES if cause.applies(clash, buffers)), DEFAULT)
    name = buffers.get(clash.operand.storage, "") if clash.operand is not None else ""
    line = clash.writes[0].operation.where.line if clash.writes else None
    where = f"{line.filename}:{line.lineno}" if line else "the write"
    return text.format(line=where, name=name)
