"""What to do about a clash, as a table of causes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.nn.parallel import DistributedDataParallel

from safemodules.mutation.graph import Overwritten
from safemodules.mutation.operations import Backward, Write
from safemodules.mutation.sites import location

__all__ = ["CAUSES", "Cause", "Situation", "advise"]


@dataclass(frozen=True)
class Situation:
    """A clash and what surrounds it.

    Attributes:
        clash: the overwritten tensor.
        buffers: names of buffers and other state of the models, by storage.
        backwards: backwards that ran before, oldest first.
    """

    clash: Overwritten
    buffers: Mapping[int, str]
    backwards: Sequence[Backward] = ()

    @property
    def write(self) -> Write | None:
        """The first write."""
        return self.clash.writes[0] if self.clash.writes else None

    @property
    def buffer(self) -> str:
        """Name of the buffer that was overwritten, empty if it is none."""
        operand = self.clash.operand
        return "" if operand is None else self.buffers.get(operand.storage, "")


@dataclass(frozen=True)
class Cause:
    """A cause of a clash.

    Attributes:
        name: a word for it.
        applies: whether it is the cause.
        advice: what to do; ``{line}`` is the line that overwrites, ``{name}`` a buffer.
        convertible: ``convert_model`` mends it.
    """

    name: str
    applies: Callable[[Situation], bool]
    advice: str
    convertible: bool = False


def _by_optimizer(at: Situation) -> bool:
    return any(write.operation.where.optimizer for write in at.clash.writes)


def _carried(at: Situation) -> bool:
    """The graph was built before an earlier backward: it belongs to a former step."""
    made = at.clash.operation
    end = at.write.operation.time if at.write is not None else None
    return made is not None and any(
        made.time < backward.time and (end is None or backward.time < end)
        for backward in at.backwards
    )


def _distributed(at: Situation) -> bool:
    made = at.clash.operation
    root = None if made is None else made.where.root
    return bool(at.buffer) and not at.clash.writes and isinstance(root, DistributedDataParallel)


def _parameter(at: Situation) -> bool:
    return at.clash.operand is not None and at.clash.operand.parameter


def _reentrant(at: Situation) -> bool:
    return at.clash.operation is not None and at.clash.operation.where.reentrant


def _outside_models(at: Situation) -> bool:
    """No module's call was running; one that is gone by now may have been."""
    return at.write is not None and at.write.operation.where.module_ref is None


# The first row that applies is the cause.
CAUSES: tuple[Cause, ...] = (
    Cause(
        "carried state",
        lambda at: _by_optimizer(at) and _carried(at),
        "This part of the graph belongs to an earlier step: a state is carried into this one, "
        "and the optimizer has stepped since. Detach what is carried: h = h.detach(). "
        "convert_model cannot mend a training step.",
    ),
    Cause(
        "optimizer before backward",
        _by_optimizer,
        "The optimizer stepped before this backward, which needs the old weights. Move "
        "optimizer.step() after the last backward that uses them, or run the forward again "
        "after it. convert_model cannot mend a training step.",
    ),
    Cause(
        "broadcast buffers",
        _distributed,
        "DistributedDataParallel broadcast {name} from rank 0 before a later forward. Pass "
        "broadcast_buffers=False, or use {name}.clone(). convert_model cannot mend it.",
    ),
    Cause(
        "unseen write to a buffer",
        lambda at: bool(at.buffer) and not at.clash.writes,
        "No Python line wrote {name}: compiled or C++ code did, such as DistributedDataParallel "
        "broadcasting buffers (broadcast_buffers=False stops it). Use {name}.clone() before. "
        "convert_model cannot mend it.",
    ),
    Cause(
        "unseen write",
        lambda at: not at.clash.writes,
        "No Python line wrote it, so compiled or C++ code did. Give that code a clone of the "
        "tensor. convert_model cannot mend it.",
    ),
    Cause(
        "written weights",
        _parameter,
        "Weights were written between forward and backward. Write them after the backward, or "
        "run the forward again. convert_model cannot mend it.",
    ),
    Cause(
        "updated state",
        lambda at: bool(at.buffer),
        "{name} is state of the model: it is used first and updated then. Clone it before use: "
        "{name}.clone(), or update it after the backward. "
        "safemodules.convert_model(model, example_inputs) gives the use its own copy.",
        convertible=True,
    ),
    Cause(
        "carried state, written outside",
        lambda at: _carried(at) and _outside_models(at),
        "This part of the graph belongs to an earlier step. Detach what is carried from one "
        "step into the next: h = h.detach(). convert_model cannot mend a training step.",
    ),
    Cause(
        "reentrant checkpoint",
        _reentrant,
        "It happens inside a reentrant checkpoint. Pass use_reentrant=False and convert the "
        "model: safemodules.convert_model(model, example_inputs).",
        convertible=True,
    ),
    Cause(
        "saved-tensor hooks",
        lambda at: not at.clash.checked,
        "Saved-tensor hooks are active there (a checkpointed region has some), so torch does "
        "not notice, and the gradient is silently wrong. Compute {line} out of place; "
        "safemodules.convert_model(model, example_inputs) does.",
        convertible=True,
    ),
    Cause(
        "written outside the models",
        _outside_models,
        "{line} is not in a module's forward, so convert_model cannot mend it: write the result "
        "to a new tensor there, or write a clone.",
    ),
)
DEFAULT = Cause(
    "in-place operation",
    lambda at: True,
    "safemodules.convert_model(model, example_inputs) computes {line} out of place; by hand, "
    "write the result to a new tensor there.",
    convertible=True,
)


def advise(at: Situation) -> tuple[Cause, str]:
    """The cause of a clash, and what to do about it."""
    cause = next((cause for cause in CAUSES if cause.applies(at)), DEFAULT)
    line = at.write.operation.where.line if at.write is not None else None
    where = location(line.filename, line.lineno) if line else "the write"
    return cause, cause.advice.format(line=where, name=at.buffer)
