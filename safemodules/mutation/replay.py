"""Which of its operands an operation saved, found by repeating it on tensors without data."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from safemodules.mutation import internals
from safemodules.mutation.operations import Operand, Operation, storage_of, tensors_in

__all__ = ["saved_operands"]


def saved_operands(operation: Operation) -> list[tuple[str, Operand, int]]:
    """What an operation saved for backward: its role, its operand, and a lag.

    The lag is by how much the operation itself moved the version after saving. See
    NOTE [ Writes to views ]. All operands are returned, each as ``"operand"``, where the call
    cannot be repeated.
    """
    call = operation.call
    if call is None:
        return []
    stand_ins: dict[int, Tensor] = {}
    operands: dict[int, Operand] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, Operand):
            if id(value) not in stand_ins:
                stand_ins[id(value)] = _empty(value)
                operands[storage_of(stand_ins[id(value)])] = value
            return stand_ins[id(value)]
        if type(value) in (list, tuple):
            return type(value)(map(stand_in, value))
        return value

    random = torch.get_rng_state()
    try:
        with torch.enable_grad(), torch._C.DisableTorchFunction():
            args = [stand_in(value) for value in call.args]
            leaves = {id(tensor.grad_fn) for tensor in stand_ins.values()}
            kept = [tensor.grad_fn for tensor in stand_ins.values()]  # ids stay theirs
            result = call.func(*args, **{k: stand_in(v) for k, v in call.kwargs.items()})
            results = [*tensors_in((result,)), *tensors_in(args)]
    except Exception:  # it may need values, another device, anything
        known = {id(operand): operand for operand in (*operation.inputs, *operation.outputs)}
        return [("operand", operand, 0) for operand in known.values()]
    finally:
        torch.set_rng_state(random)
    for tensor, operand in zip(tensors_in((result,)), operation.outputs, strict=False):
        operands.setdefault(storage_of(tensor), operand)
    moved = {operands[storage_of(t)].storage: t._version for t in stand_ins.values() if t._version}
    found = list(_saved(results, leaves, operands, moved))
    del kept
    return found


def _empty(operand: Operand) -> Tensor:
    """A tensor without data, that is no leaf, so that it may be overwritten."""
    tensor = torch.empty(operand.shape, dtype=operand.dtype, device="meta")
    return tensor.requires_grad_(operand.requires_grad).clone()


def _saved(
    results: list[Tensor],
    leaves: set[int],
    operands: dict[int, Operand],
    moved: dict[int, int],
) -> Iterator[tuple[str, Operand, int]]:
    stack = [tensor.grad_fn for tensor in results]
    seen = set(leaves)
    while stack:
        node: Any = stack.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        for role in internals.saved_roles(node):
            for raw in internals.raw_saved(node, role):
                tensor = internals.raw_tensor(raw)
                operand = None if tensor is None else operands.get(storage_of(tensor))
                if tensor is None or operand is None:
                    continue
                lag = _lag(node, role)
                if not lag and not tensor._version:
                    # its stand-in was not written, but it may share memory with one that was
                    lag = moved.get(operand.storage, 0)
                yield role, operand, lag
        stack += [inner for inner, _ in node.next_functions]


def _lag(node: Any, role: str) -> int:
    try:
        internals.touch_saved(node, role)
    except RuntimeError as error:
        versions = internals.VERSIONS.search(str(error))
        if versions is not None:
            return int(versions[1]) - int(versions[2])
    return 0
