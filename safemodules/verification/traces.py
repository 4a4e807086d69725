"""Where two models part: the outputs of every module, in the order of the calls."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from safemodules.state import preserved, seed_everything
from safemodules.trees import CallArguments, clone_inputs, flatten_tensors
from safemodules.verification.digests import TensorDigest, difference_reason, digest_tensor
from safemodules.verification.observation import Mode, quiet_run, set_mode

__all__ = ["ModuleCall", "first_difference", "trace_modules"]


class ModuleCall(NamedTuple):
    """One call of one module.

    Args:
        name: Dotted name, empty for the model itself.
        number: How many calls of this module came before.
        outputs: Its output tensors by path, as they were when the call ended.
    """

    name: str
    number: int
    outputs: dict[str, TensorDigest]


def trace_modules(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: Mode = "keep",
    seed: int = 0,
    keep_values: bool = False,
    copy_parameters: bool | Collection[str] = False,
) -> tuple[ModuleCall, ...]:
    """Run a model once under ``no_grad`` and record every module's output.

    Args:
        model: The module; it is left as it was.
        args: Positional arguments of ``forward``.
        kwargs: Keyword arguments of ``forward``.
        mode: Mode to run in.
        seed: Seed of all random number streams.
        keep_values: Keep the outputs for a comparison with a tolerance.
        copy_parameters: Parameters that forward overwrites: names, or True for all.

    Returns:
        The calls in the order in which they ended. If the model raises, those before.
    """
    call = CallArguments(tuple(args), dict(kwargs or {}))
    names = {id(module): name for name, module in model.named_modules()}
    counts: Counter[str] = Counter()
    calls: list[ModuleCall] = []

    def record(module: nn.Module, _args: object, output: object) -> None:
        name = names.get(id(module))
        if name is not None:
            digests = {
                path: digest_tensor(tensor, keep_value=keep_values)
                for path, tensor in flatten_tensors(output)
            }
            calls.append(ModuleCall(name, counts[name], digests))
            counts[name] += 1

    tensors = [*model.parameters(), *(t for _, t in flatten_tensors(call, ""))]
    with (
        preserved(model, copy_parameters=copy_parameters),
        quiet_run(iter(tensors)),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        set_mode(model, mode)
        handed, _ = clone_inputs(call, requires_grad=False, root="")
        seed_everything(seed)
        # One global hook: hooks of the modules themselves would change their dicts.
        handle = register_module_forward_hook(record)
        try:
            model(*handed.inputs, **handed.kwargs)
        except Exception:
            return tuple(calls)
        finally:
            handle.remove()
    return tuple(calls)


def first_difference(
    reference: Sequence[ModuleCall],
    candidate: Sequence[ModuleCall],
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> str | None:
    """Name the first module, in the reference's order, whose output differs.

    Modules that only one of the models has are passed over.

    Args:
        reference: Calls of the reference.
        candidate: Calls of the candidate.
        rtol: Relative tolerance, see :func:`difference_reason`.
        atol: Absolute tolerance.

    Returns:
        The dotted name (empty for the model itself), None if no output differs.
    """
    found = {(call.name, call.number): call.outputs for call in candidate}
    for name, number, expected in reference:
        outputs = found.get((name, number))
        if outputs is None:
            continue
        for path in expected.keys() | outputs.keys():
            reason = difference_reason(expected.get(path), outputs.get(path), rtol=rtol, atol=atol)
            if reason is not None:
                return name
    return None
