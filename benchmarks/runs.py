"""Run a model once from fixed seeds and write down the digests of all that it did."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cases import LOSS_SEED, RUN_SEED, Case, Mode, seed_everything
from benchmarks.digests import digest, digest_leaf, leaves

# Larger outputs are compared by digest alone.
KEPT_VALUES = 1_000_000


@dataclass
class Record:
    """What one run did.

    Attributes:
        entries: Digest by key. Keys are ``kind:path``, where the kind is ``output``,
            ``gradient``, ``input gradient``, ``buffer``, ``input`` (the caller's tensors
            afterwards), ``rng`` or ``backward`` (the error that it raised).
        values: Copies of the smaller float outputs, to say by how much they differ.
        seconds: CPU seconds of forward and backward, which a busy machine does not change.
        informative: Share of the parameters whose gradient is finite and not all zero.
    """

    entries: dict[str, str] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    informative: float = 1.0


class BufferSnapshot:
    """The buffers of a model and copies of their values, to start each run from the same state."""

    def __init__(self, model: nn.Module) -> None:
        self._training = [(module, module.training) for module in model.modules()]
        self._buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def restore(self) -> None:
        """Put back the buffer objects, their values and every module's mode."""
        for module, training in self._training:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, value in self._buffers:
                module._buffers[name] = buffer
                if buffer.shape != value.shape:
                    buffer.set_(value.clone())  # type: ignore[call-overload]
                elif not _same_bits(buffer, value):
                    buffer.copy_(value)

    def changed(self) -> list[str]:
        """Names of the buffers (without their module) that are not as they were."""
        return [
            name
            for module, name, buffer, value in self._buffers
            if module._buffers.get(name) is not buffer or not _same_bits(buffer, value)
        ]

    def modes_changed(self) -> list[str]:
        """Classes of the modules that are in another mode, train or eval, than at first."""
        return [
            type(module).__qualname__
            for module, training in self._training
            if module.training != training
        ]


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and digest(first) == digest(second)


def run(
    model: nn.Module, case: Case, mode: Mode, *, backward: bool = True, graph: bool | None = None
) -> Record:
    """Run forward, and backward of a seeded weighted sum of the float outputs.

    Buffers stay as the run leaves them; gradients are dropped once they are recorded.

    Args:
        model: The model of the case, original or converted.
        case: Where the arguments come from.
        mode: Train or eval mode.
        backward: Whether gradients are computed and recorded.
        graph: Whether the graph is recorded, as for a backward by default. Torch multiplies
            some matrices by other kernels without one.
    """
    graph = backward if graph is None else graph
    record = Record()
    model.train(mode == "train")
    drop_gradients(model)
    call = case.call(mode)
    inputs: dict[str, Tensor] = {}
    with_gradients = graph and case.input_grads
    args = tuple(_prepare(a, f"{i}", inputs, with_gradients) for i, a in enumerate(call.args))
    kwargs = {k: _prepare(v, k, inputs, with_gradients) for k, v in call.kwargs.items()}

    seed_everything(RUN_SEED)
    started = time.process_time()
    with torch.set_grad_enabled(graph), patch.object(torch, "seed", _fixed_seed):
        outputs = model(*args, **kwargs)
    record.seconds = time.process_time() - started
    _record_forward(record, outputs)

    if backward:
        started = time.process_time()
        try:
            loss = weighted_sum(outputs)
            if loss is not None:
                loss.backward()
        except RuntimeError as error:
            record.entries["backward:"] = f"{type(error).__name__}: {first_line(error)}"
        record.seconds += time.process_time() - started
        _record_gradients(record, model, inputs)
    for path, value in leaves([args, kwargs], "call"):
        record.entries[f"input:{path}"] = digest_leaf(value)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        record.entries[f"buffer:{name}"] = digest(buffer)
    record.entries["rng:after"] = rng_digest()
    drop_gradients(model)
    return record


def _fixed_seed() -> int:
    """In place of ``torch.seed``, with which Reformer takes seeds from the system."""
    torch.manual_seed(RUN_SEED)
    return RUN_SEED


def _prepare(value: Any, path: str, inputs: dict[str, Tensor], with_gradients: bool) -> Any:
    """Make float tensors non-leaves of leaves that collect their gradients.

    A model may overwrite its input, which autograd allows for such a tensor only. Tensors in
    dictionaries (the targets of detectors) are passed as they are.
    """
    if isinstance(value, Tensor) and value.is_floating_point() and with_gradients:
        inputs[path] = value.requires_grad_()
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(
            _prepare(item, f"{path}.{i}", inputs, with_gradients) for i, item in enumerate(value)
        )
    return value


def _record_forward(record: Record, outputs: Any) -> None:
    for path, value in leaves(outputs, "value"):
        record.entries[f"output:{path}"] = digest_leaf(value)
        if isinstance(value, Tensor):
            record.entries[f"output:{path} requires grad"] = str(value.requires_grad)
            if value.is_floating_point() and value.numel() <= KEPT_VALUES:
                record.values[f"output:{path}"] = value.detach().clone()


def weighted_sum(outputs: Any) -> Tensor | None:
    r"""Compute the loss :math:`\sum_i w_i \cdot y_i` over the float outputs with a graph.

    The weights are drawn from a seed, so that no two elements are exchangeable; elements that
    are not finite (masked logits) take no part.

    Returns:
        The loss, or None where no output has a graph.
    """
    generator = torch.Generator().manual_seed(LOSS_SEED)
    total: Tensor | None = None
    for value in _differentiable(outputs):
        if not bool(value.isfinite().all()):
            value = value.masked_fill(~value.isfinite(), 0.0)
        if value.is_complex():
            value = torch.view_as_real(value)
        weights = torch.randn(value.shape, generator=generator).to(value)
        term = (value * weights).sum()
        total = term if total is None else total + term
    return total


def _differentiable(outputs: Any) -> Iterator[Tensor]:
    for _, value in leaves(outputs):
        if isinstance(value, Tensor) and value.requires_grad:
            yield value


def _record_gradients(record: Record, model: nn.Module, inputs: dict[str, Tensor]) -> None:
    informative = total = 0
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        record.entries[f"gradient:{name}"] = "None" if gradient is None else digest(gradient)
        total += parameter.requires_grad
        if gradient is not None:
            largest = torch.linalg.vector_norm(gradient, float("inf")).item()
            informative += 0.0 < largest < float("inf")
    record.informative = informative / total if total else 1.0
    for path, leaf in inputs.items():
        record.entries[f"input gradient:{path}"] = (
            "None" if leaf.grad is None else digest(leaf.grad)
        )


def drop_gradients(model: nn.Module) -> None:
    """Set every parameter's gradient to None."""
    for parameter in model.parameters():
        parameter.grad = None


def rng_digest() -> str:
    """A hash of the states of torch's, Python's and numpy's generators."""
    state = hashlib.sha256(torch.get_rng_state().numpy().data)
    state.update(repr(random.getstate()).encode())
    state.update(repr(np.random.get_state(legacy=False)).encode())
    return state.hexdigest()[:24]


def parameters_digest(model: nn.Module) -> str:
    """A hash of all parameters' values."""
    total = hashlib.sha256()
    for name, parameter in model.named_parameters():
        total.update(f"{name} {digest(parameter)}".encode())
    return total.hexdigest()[:24]


def first_line(error: BaseException, limit: int = 300) -> str:
    """The first line of an error's message."""
    lines = str(error).splitlines() or [""]
    return lines[0][:limit]
