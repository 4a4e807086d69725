"""How much is known of a tensor from the modules that it has passed through."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from torch import nn

from safemodules.mutation.forwards import has_own_forward
from safemodules.mutation.fresh_tables import FRESH_MODULES, TRANSPARENT_MODULES
from safemodules.mutation.internals import SEQUENTIAL, has_hooks
from safemodules.mutation.operators import INPLACE_MODULES


class Freshness(IntEnum):
    """How much is known of a value; a value of several paths has the least of theirs."""

    SHARED = 0
    VALUE = 1  # new, but perhaps a list that holds other tensors
    TENSOR = 2  # a new tensor
    FILLED = 3  # a new tensor whose values no operator has kept: from a factory


@dataclass(frozen=True)
class Freshnesses:
    """What is plainly fresh in one function.

    Attributes:
        sites: freshness of the tensor of each site, by identity of its node (of its target
            for an item assignment).
        flags: for each module that is called, by identity: whether it is always given a
            fresh tensor that nobody reads afterwards.
        called: identities of the modules that are called.
        exposed: identities of modules that are used otherwise, and of all they hold.
    """

    sites: dict[int, Freshness]
    flags: dict[int, bool]
    called: set[int]
    exposed: set[int]


def is_sequential(module: nn.Module) -> bool:
    """Whether a module calls its children one after the other, and does nothing else."""
    return (
        isinstance(module, nn.Sequential)
        and (type(module).forward is nn.Sequential.forward or getattr(module, SEQUENTIAL, False))
        and not has_own_forward(module)
    )


def result_of(module: nn.Module, given: Freshness) -> Freshness:
    """Freshness of a module's result, from that of its input."""
    if has_hooks(module) or has_own_forward(module):
        return Freshness.SHARED
    cls = type(module)
    if cls in FRESH_MODULES:
        return Freshness.TENSOR
    if cls in TRANSPARENT_MODULES or (cls in INPLACE_MODULES and module.inplace):
        return min(given, Freshness.TENSOR)
    if cls in INPLACE_MODULES:
        return Freshness.TENSOR
    if is_sequential(module):
        for child in module.children():
            given = result_of(child, given)
        return given
    return Freshness.SHARED


def fresh_in_sequentials(modules: Iterable[nn.Module]) -> dict[int, bool]:
    """For each child of a Sequential, by identity: whether it is always given a fresh tensor."""
    fresh: dict[int, bool] = {}
    for sequential in modules:
        if not is_sequential(sequential):
            continue
        given = Freshness.SHARED
        for child in sequential.children():
            known = given > Freshness.SHARED and not has_hooks(child)
            fresh[id(child)] = fresh.get(id(child), True) and known
            given = result_of(child, given)
    return fresh


def returns_input(module: nn.Module) -> bool:
    """Whether a module may hand on what it is given."""
    return type(module) in TRANSPARENT_MODULES or (
        type(module) in INPLACE_MODULES and bool(module.inplace)
    )
