"""The Python side of a module's state: counters, cached tensors, names.

Compared are only attributes that a run changes, and only kinds whose value has a meaning
across two models: tensors, integers, booleans, strings and tuples of them. Floats are left
out, since modules keep times in them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from torch import Tensor, nn

from safemodules.verification.digests import TensorDigest, digest_tensor

__all__ = ["attribute_values", "changed_attributes"]

Attributes: TypeAlias = dict[str, TensorDigest | str]


def _is_simple(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_simple(item) for item in value)
    return value is None or isinstance(value, (bool, int, str))


def attribute_values(model: nn.Module, *, keep_values: bool = False) -> Attributes:
    """Describe the comparable attributes of every module, by dotted name.

    Args:
        model: The module.
        keep_values: Keep tensors on the CPU, for a comparison with a tolerance.

    Returns:
        A digest for a tensor, a printed form for anything else.
    """
    found: Attributes = {}
    for prefix, module in model.named_modules():
        namespace: dict[str, Any] = vars(module)
        for name, value in namespace.items():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(value, Tensor):
                found[path] = digest_tensor(value, keep_value=keep_values)
            elif _is_simple(value):
                found[path] = repr(value)
    return found


def changed_attributes(before: Mapping[str, TensorDigest | str], after: Attributes) -> Attributes:
    """Return the attributes that a run changed or made, as they are after it.

    Whether a tensor requires grad is no change: it depends on whether the run made gradients.
    """
    return {name: value for name, value in after.items() if not _same(before.get(name), value)}


def _same(before: TensorDigest | str | None, after: TensorDigest | str) -> bool:
    if isinstance(before, TensorDigest) and isinstance(after, TensorDigest):
        return replace(before, requires_grad=after.requires_grad) == after
    return before == after
