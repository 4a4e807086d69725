"""``profile_memory``: what each module of a model keeps for backward."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.errors import ModuleTypeError
from safemodules.memory.allocator import allocator_peak
from safemodules.memory.page import document, profile_fragment
from safemodules.memory.recording import LossFn, record_step
from safemodules.memory.simulation import Simulation
from safemodules.memory.tape import ModuleCall, Tape
from safemodules.memory.text import columns, size_text
from safemodules.rewriting.checkpoints import FORGETTING_MARK
from safemodules.trees import CallArguments
from safemodules.verification import as_arguments

__all__ = ["MemoryProfile", "ModuleMemory", "profile_memory"]


@dataclass(frozen=True)
class ModuleMemory:
    """What one module keeps for backward, with all that it runs.

    Attributes:
        path: its dotted path; empty for the model itself.
        kind: the name of its class.
        depth: how deep it is in the tree of calls.
        calls: how often it was called.
        saved_bytes: bytes of what it makes and backward needs.
        share: those bytes as a share of all.
        input_bytes: bytes of the tensors that it was given, summed over its calls.
        output_bytes: bytes of those that it returned.
        peak: the most bytes alive in one of its calls.
        seconds: what its operators took in the forward.
        flops: floating-point operations of matrix products, convolutions and attention.
    """

    path: str
    kind: str
    depth: int
    calls: int
    saved_bytes: int
    share: float
    input_bytes: int
    output_bytes: int
    peak: int
    seconds: float
    flops: int

    @property
    def name(self) -> str:
        """Its path and class, such as ``"layer1.0.conv1 (Conv2d)"``."""
        return f"{self.path or '(the model itself)'} ({self.kind})"

    def cells(self) -> tuple[str, ...]:
        """What a table shows of it after its name."""
        return (
            str(self.calls),
            size_text(self.saved_bytes),
            f"{self.share:.1%}",
            size_text(self.input_bytes),
            size_text(self.output_bytes),
            size_text(self.peak),
            f"{1000 * self.seconds:.2f} ms",
            f"{self.flops / 1e9:.2f}",
        )


@dataclass(frozen=True)
class MemoryProfile:
    """What a step of training allocates.

    Attributes:
        modules: every module that was called, in the order of the forward.
        parameter_bytes: bytes of the parameters.
        buffer_bytes: bytes of the buffers.
        gradient_bytes: bytes of the gradients of parameters.
        optimizer_bytes: bytes of the state of the optimizer that was given.
        saved_bytes: bytes that forward keeps for backward.
        peak: the most bytes that the step has alive beyond what was there before it.
        activation_peak: the same without gradients of parameters.
        workspace_bytes: what the allocator had at its peak beyond ``peak``: buffers within
            kernels, and rounding; ``None`` if it was not measured.
        seconds: what the operators of the step took.
        live: bytes alive at each event of the step, see NOTE [ Clock ].
        forward_events: how many of them are the forward's.
        is_estimated: whether seconds were estimated from sizes, since nothing was computed.
    """

    modules: tuple[ModuleMemory, ...]
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    saved_bytes: int
    peak: int
    activation_peak: int
    workspace_bytes: int | None
    seconds: float
    live: tuple[int, ...] = field(repr=False)
    forward_events: int
    is_estimated: bool

    def summary(self) -> str:
        """A few lines: the sums."""
        workspace = self.workspace_bytes
        told = (
            "" if workspace is None else f" (the allocator's: {size_text(self.peak + workspace)})"
        )
        optimizer = f", optimizer {size_text(self.optimizer_bytes)}" if self.optimizer_bytes else ""
        return (
            f"saved for backward {size_text(self.saved_bytes)}; peak of a step "
            f"{size_text(self.peak)}{told}, of it activations {size_text(self.activation_peak)}; "
            f"parameters {size_text(self.parameter_bytes)}, buffers "
            f"{size_text(self.buffer_bytes)}, gradients {size_text(self.gradient_bytes)}{optimizer}"
        )

    def table(self, depth: int = 2) -> str:
        """The modules as a tree.

        Args:
            depth: how deep to look.
        """
        head = "module", "calls", "saved", "share", "in", "out", "peak inside", "forward", "GFLOP"
        shown = [module for module in self.modules if module.depth <= depth]
        rows = [("  " * module.depth + module.name, *module.cells()) for module in shown]
        return "\n".join(columns([head, *rows]))

    def to_json(self) -> str:
        """The profile as a JSON object."""
        return json.dumps(asdict(self), indent=2)

    def to_html(self, title: str = "Memory of a step") -> str:
        """One page that needs no other file, with a picture of the step."""
        return document(title, [profile_fragment(self)])

    def __str__(self) -> str:
        return f"{self.summary()}\n{self.table()}"

    def _repr_html_(self) -> str:
        return profile_fragment(self)


def profile_memory(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: LossFn | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    fake: bool = False,
    allocator: bool = False,
) -> MemoryProfile:
    """Measure what a step of training allocates, and which modules keep it.

    One forward and backward is run, which keeps nothing: the profile of a step that does not fit
    can be taken on the same machine. What a model with a memory budget forgets does not count. The
    model, its gradients and all random numbers are left as they were.

    Args:
        model: the model, in the mode that it is trained in.
        example_inputs: a tensor, or a tuple of positional arguments.
        example_kwargs: keyword arguments of the forward.
        loss_fn: computes a scalar loss of the output; by default the sum of all outputs.
        optimizer: its state is counted, if it has any yet.
        fake: compute nothing: tensors have sizes and no values, so a model may be larger than the
            machine. Seconds are then estimated from sizes.
        allocator: also run one ordinary step, which has to fit, and ask torch's allocator for its
            peak; what it has beyond the tensors is the workspace of kernels.

    Returns:
        The profile; ``print`` shows a table, a notebook a picture.

    Raises:
        ModuleTypeError: ``model`` is not a module.
        ExampleInputError: no output needs a gradient.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> profile = sm.profile_memory(net, torch.randn(4, 8))
        >>> profile.saved_bytes, profile.modules[2].path, profile.modules[2].saved_bytes
        (128, '1', 128)
    """
    if not isinstance(model, nn.Module):
        raise ModuleTypeError(
            f"profile_memory was given {type(model).__name__}. Expected a torch.nn.Module."
        )
    call = CallArguments(as_arguments(example_inputs), dict(example_kwargs or {}))
    tape = record_step(model, call, loss_fn, fake=fake)
    forgotten = _forgotten(model, tape)
    live, saved = Simulation(tape).run(forgotten), _saved_by_operator(tape, forgotten)
    whole = sum(saved.values())
    workspace = None
    if allocator:
        workspace = allocator_peak(model, call, loss_fn) - live.peak
    return MemoryProfile(
        tuple(_modules(tape, saved, live.live, whole)),
        _bytes(model.parameters()),
        _bytes(model.buffers()),
        sum(memory.size for memory in tape.memories if memory.is_gradient),
        _optimizer_bytes(optimizer),
        whole,
        live.peak,
        Simulation(tape, gradients=False).run(forgotten).peak,
        workspace,
        tape.seconds + live.seconds,
        live.live,
        tape.forward_events,
        tape.is_estimated,
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    if optimizer is None:
        return 0
    values = (value for state in optimizer.state.values() for value in state.values())
    return _bytes(value for value in values if isinstance(value, Tensor))


def _forgotten(model: nn.Module, tape: Tape) -> frozenset[int]:
    """Operators whose results the step forgets: those of its memory budget, if it has one."""
    plan = model.__dict__.get(FORGETTING_MARK)
    if plan is None or plan.calls != tape.calls:
        return frozenset()
    return frozenset(
        place
        for place, operator in enumerate(tape.operators)
        if plan.forgotten.get(operator.call, {}).get(operator.place) == operator.name
    )


def _saved_by_operator(tape: Tape, forgotten: frozenset[int]) -> dict[int, int]:
    """Bytes that are saved, and kept, of what each operator has made."""
    found: dict[int, int] = defaultdict(int)
    for number, memory in enumerate(tape.memories):
        place = memory.operator
        if place is None or not memory.saved:
            continue
        if place not in forgotten or number in tape.operators[place].kept:
            found[place] += memory.size
    return found


def _modules(
    tape: Tape, saved: Mapping[int, int], live: tuple[int, ...], whole: int
) -> Iterable[ModuleMemory]:
    calls: dict[str, list[ModuleCall]] = defaultdict(list)
    for call in tape.modules:
        calls[call.path].append(call)
    for path, each in calls.items():
        places = sorted({place for call in each for place in range(call.start, call.stop)})
        kept = sum(saved.get(place, 0) for place in places)
        operators = [tape.operators[place] for place in places]
        yield ModuleMemory(
            path,
            each[0].kind,
            each[0].depth,
            len(each),
            kept,
            kept / whole if whole else 0.0,
            sum(call.input_bytes for call in each),
            sum(call.output_bytes for call in each),
            max((live[operator.event] for operator in operators), default=0),
            sum(operator.seconds for operator in operators),
            sum(operator.flops for operator in operators),
        )
