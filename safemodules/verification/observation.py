"""One run of a model, recorded as digests and leaving no trace.

NOTE [ What A Run Is ]
The loss is the sum, over all floating and complex outputs that require grad, of
``(output * weights).sum()`` with fixed random weights (of ``view_as_real`` for complex
ones). Its gradient with respect to the outputs is the weights themselves, so they are
handed to ``torch.autograd.grad`` directly: no loss tensor is made, outputs on several
devices need no common one, and ``.grad`` is not touched.
"""

import contextlib
import itertools
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from safemodules.errors import StateError
from safemodules.state import RandomState, preserved, seed_everything
from safemodules.trees import CallArguments, clone_inputs, describe_structure, flatten_tensors
from safemodules.verification.attributes import attribute_values, changed_attributes
from safemodules.verification.digests import TensorDigest, digest_tensor

__all__ = ["Mode", "Observation", "RunError", "observe", "output_weights", "quiet_run", "set_mode"]

Mode: TypeAlias = Literal["train", "eval", "keep"]
Digests: TypeAlias = Mapping[str, TensorDigest]
Gradients: TypeAlias = Mapping[str, TensorDigest | None]


@dataclass(frozen=True)
class RunError:
    """An exception that a run raised.

    Args:
        stage: Whether the forward or the backward raised it.
        exception: The exception; the frames of its traceback hold no tensors any more.
    """

    stage: Literal["forward", "backward"]
    exception: Exception

    def __str__(self) -> str:
        text = " ".join(str(self.exception).split())
        text = text if len(text) <= 300 else text[:297] + "..."
        return f"{type(self.exception).__name__}: {text}"


@dataclass(frozen=True)
class Observation:
    """What one run of a model did.

    Args:
        mode: Mode in which it ran.
        outputs: Output tensors by path (``out["feats"][1]``).
        structure: Types of the outputs' containers and values of their other leaves.
        buffers: Buffers at the end of the run.
        forward_buffers: Buffers at the end of the forward.
        rng: Random number streams at the end of the run.
        forward_rng: Random number streams at the end of the forward.
        inputs: The tensors that were handed over, after the forward.
        input_structure: The rest of what was handed over, after the forward.
        attributes: Attributes that the forward changed: tensors, integers, strings.
        attribute_names: All attributes of these kinds, changed or not.
        keys: Keys of the state_dict.
        gradients: Gradients of the parameters, None where unused; None altogether if the
            run made none.
        input_gradients: Likewise for the inputs.
        error: The exception of this run, None if it ended well.
        gradient_error: Why the run was repeated without gradients, None if it was not.
        input_gradient_error: Why it was repeated without those for the inputs, likewise.
        reference_gradients: Gradients of a functionalized run, taken where the plain
            backward raises. They are compared with a tolerance, hence kept.
        reference_tolerance: Relative tolerance of that comparison.
        kept_gradients: The same gradients of a candidate, kept for that comparison.
        notes: What a reader should know about how the run was made.
    """

    mode: Mode
    outputs: Digests = field(default_factory=dict)
    structure: Mapping[str, str] = field(default_factory=dict)
    buffers: Digests = field(default_factory=dict)
    forward_buffers: Digests = field(default_factory=dict)
    rng: Mapping[str, str] = field(default_factory=dict)
    forward_rng: Mapping[str, str] = field(default_factory=dict)
    inputs: Digests = field(default_factory=dict)
    input_structure: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, TensorDigest | str] = field(default_factory=dict)
    attribute_names: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()
    gradients: Gradients | None = None
    input_gradients: Gradients | None = None
    error: RunError | None = None
    gradient_error: RunError | None = None
    input_gradient_error: RunError | None = None
    reference_gradients: Mapping[str, Tensor | None] | None = None
    reference_tolerance: float = 0.0
    kept_gradients: Mapping[str, Tensor | None] | None = None
    notes: tuple[str, ...] = ()


def set_mode(model: nn.Module, mode: Mode) -> None:
    """Put a model into a mode by its own ``train()`` or ``eval()``.

    Raises:
        StateError: It refuses, as a frozen module does.
    """
    if mode == "keep":
        return
    try:
        model.train(mode == "train")
    except Exception as error:
        raise StateError(
            f"{type(model).__name__} cannot be put into {mode} mode, in which it is to be "
            f"compared: {type(error).__name__}: {error}. Make its `training` flags writable, or "
            "convert it without example_inputs."
        ) from error


@contextlib.contextmanager
def quiet_run(tensors: Iterator[Tensor]) -> Iterator[None]:
    """Ask accelerators for deterministic kernels, if any tensor is on one.

    Without this two runs of one model may differ on a GPU. On the CPU nothing is changed.
    """
    if all(tensor.device.type in ("cpu", "meta") for tensor in tensors):
        yield
        return
    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    algorithms = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            cudnn.deterministic, cudnn.benchmark = True, False
            torch.use_deterministic_algorithms(True, warn_only=True)
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = flags
        torch.use_deterministic_algorithms(algorithms, warn_only=warn_only)


def output_weights(outputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Make the fixed random weights of the loss, one tensor per output.

    Args:
        outputs: Outputs that require grad.
        seed: Seed; each output has a stream of its own.

    Returns:
        Weights of the outputs' shapes, dtypes and devices.
    """
    weights = []
    for index, output in enumerate(outputs):
        generator = torch.Generator().manual_seed(seed + index)
        wide = torch.complex64 if output.is_complex() else torch.float32
        weight = torch.randn(output.shape, generator=generator, dtype=wide, device="cpu")
        weights.append(weight.to(device=output.device, dtype=output.dtype))
    return weights


def observe(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: Mode = "keep",
    gradients: bool = True,
    input_gradients: bool = True,
    accumulate: bool = False,
    seed: int = 0,
    keep_values: bool = False,
    keep_gradients: bool = False,
    copy_parameters: bool | Collection[str] = False,
) -> Observation:
    """Run a model once, on copies of the inputs, and record what it did.

    Afterwards the model, its gradients and the random number streams are as before. An
    exception of the model is recorded, not raised.

    Args:
        model: The module to run, from its present state.
        args: Positional arguments of ``forward``.
        kwargs: Keyword arguments of ``forward``.
        mode: ``"train"``, ``"eval"``, or ``"keep"`` for the present flags.
        gradients: Run a backward, or the forward alone under ``no_grad``.
        input_gradients: Hand over inputs that require grad.
        accumulate: Run ``backward()`` (into ``.grad``, put back afterwards) instead of
            ``autograd.grad``, which reentrant checkpoints refuse.
        seed: Seed of all random number streams, and of the loss.
        keep_values: Keep outputs, buffers, inputs and gradients on the CPU.
        keep_gradients: Keep the parameters' gradients on the CPU.
        copy_parameters: Parameters that forward overwrites: names, or True for all.

    Returns:
        The record.

    Raises:
        StateError: The run changed a parameter.

    Example:
        >>> import torch
        >>> from safemodules.verification import observe
        >>> seen = observe(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
        >>> print(seen.outputs["out"], sorted(seen.gradients))
        float32 [1, 3] on cpu ['bias', 'weight']
    """
    call = CallArguments(tuple(args), dict(kwargs or {}))
    tensors = itertools.chain(
        model.parameters(), model.buffers(), (t for _, t in flatten_tensors(call, ""))
    )
    with (
        preserved(model, copy_parameters=copy_parameters),
        quiet_run(tensors),
        torch.inference_mode(False),
        torch.set_grad_enabled(gradients),
    ):
        set_mode(model, mode)
        handed, leaves = clone_inputs(call, requires_grad=gradients and input_gradients, root="")
        run = _Run(model, mode, handed, leaves, seed, accumulate, keep_values, keep_gradients)
        seed_everything(seed)
        return run.record(gradients)


class _Run:
    """The stages of one run; ``found`` fills up as they succeed."""

    def __init__(
        self,
        model: nn.Module,
        mode: Mode,
        handed: CallArguments,
        leaves: dict[str, Tensor],
        seed: int,
        accumulate: bool,
        keep_values: bool,
        keep_gradients: bool,
    ) -> None:
        self.model = model
        self.handed = handed
        self.leaves = leaves
        self.seed = seed
        self.accumulate = accumulate
        self.keep_values = keep_values
        self.keep_gradients = keep_gradients
        self.found: dict[str, Any] = {"mode": mode}

    def record(self, gradients: bool) -> Observation:
        stage: Literal["forward", "backward"] = "forward"
        try:
            outputs = self._forward()
            if gradients:
                stage = "backward"
                self._backward(outputs)
        except Exception as exception:
            # The frames hold the whole graph, which a second attempt may need the room of.
            traceback.clear_frames(exception.__traceback__)
            self.found["error"] = RunError(stage, exception)
        return Observation(**self.found)

    def _digests(
        self, pairs: Iterator[tuple[str, Tensor]], look_for_nan: bool = False
    ) -> dict[str, TensorDigest]:
        return {
            name: digest_tensor(t, keep_value=self.keep_values, look_for_nan=look_for_nan)
            for name, t in pairs
        }

    def _state(self) -> tuple[dict[str, TensorDigest], dict[str, str]]:
        buffers = self._digests(self.model.named_buffers(remove_duplicate=False))
        return buffers, RandomState.capture().digests()

    def _forward(self) -> list[Tensor]:
        before = attribute_values(self.model)
        out = self.model(*self.handed.inputs, **self.handed.kwargs)
        tensors = flatten_tensors(out)
        after = attribute_values(self.model, keep_values=self.keep_values)
        buffers, rng = self._state()
        self.found.update(
            outputs=self._digests(iter(tensors), look_for_nan=True),
            structure=describe_structure(out),
            inputs=self._digests(iter(flatten_tensors(self.handed, ""))),
            input_structure=describe_structure(self.handed, ""),
            attributes=changed_attributes(before, after),
            attribute_names=frozenset(after),
            keys=tuple(self.model.state_dict()),
            buffers=buffers,
            forward_buffers=buffers,
            rng=rng,
            forward_rng=rng,
        )
        return [t for _, t in tensors if t.requires_grad]

    def _backward(self, outputs: list[Tensor]) -> None:
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        targets = [*parameters.values(), *self.leaves.values()]
        grads: Sequence[Tensor | None] = [None] * len(targets)
        if outputs and targets:
            grads = self._differentiate(outputs, targets)
        named = dict(zip([*parameters, *self.leaves], grads, strict=True))
        digests = {
            name: None if grad is None else digest_tensor(grad, keep_value=self.keep_values)
            for name, grad in named.items()
        }
        buffers, rng = self._state()
        self.found.update(
            gradients={name: digests[name] for name in parameters},
            input_gradients={name: digests[name] for name in self.leaves},
            buffers=buffers,
            rng=rng,
        )
        if self.keep_gradients:
            self.found["kept_gradients"] = {
                name: None if grad is None else grad.detach().cpu() for name, grad in named.items()
            }

    def _differentiate(
        self, outputs: list[Tensor], targets: list[Tensor]
    ) -> Sequence[Tensor | None]:
        weights = output_weights(outputs, self.seed)
        if not self.accumulate:
            return torch.autograd.grad(outputs, targets, weights, allow_unused=True)
        for target in targets:
            target.grad = None  # the caller's gradient object comes back with the state
        torch.autograd.backward(outputs, weights)
        return [target.grad for target in targets]
