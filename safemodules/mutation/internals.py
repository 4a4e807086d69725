"""The private names of torch that this package reads, all of them.

What each is needed for stands with it; ``tests/test_internals.py`` fails if a version of
torch no longer has one, or if another file reads one.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

# What `parametrize` calls the classes that it makes; `type` gives them its own module.
_PARAMETRIZED = "Parametrized"
# Classes that fully_shard and replicate put on top; they skip exactly one class of the MRO.
_SHARDING_CLASSES = frozenset({"FSDPModule", "ReplicateModule"})
# Attributes that `torch.nn.Module.__init__` sets, and that hold what it registers.
REGISTRIES = ("_parameters", "_buffers", "_modules")


def is_initialised(module: nn.Module) -> bool:
    """Whether ``torch.nn.Module.__init__`` has run, which makes the registry of children."""
    return getattr(module, "_modules", None) is not None


def children(module: nn.Module) -> dict[str, nn.Module | None]:
    """Children by name with every one of their names; ``named_children`` drops repeated ones."""
    return module._modules


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has forward hooks, which may keep what it is given or returns."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called, so that its forward is not run as written."""
    return getattr(module, "_compiled_call_impl", None) is not None


def is_optimized(module: nn.Module) -> bool:
    """Whether a module is what ``torch.compile(model)`` returns."""
    return any(
        (base.__module__, base.__qualname__) == ("torch._dynamo.eval_frame", "OptimizedModule")
        for base in type(module).__mro__
    )


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` or ``replicate`` has put its class on top of a module's."""
    return any(
        base.__name__ in _SHARDING_CLASSES and base.__module__.startswith("torch.distributed.")
        for base in type(module).__mro__
    )


def is_lazy(module: nn.Module) -> bool:
    """Whether a module has not run yet, and changes its class when it does."""
    lazy = isinstance(module, nn.modules.lazy.LazyModuleMixin)
    return lazy and bool(module.has_uninitialized_params())  # type: ignore[operator]


def is_parametrized_class(cls: type) -> bool:
    """Whether a class was made by ``torch.nn.utils.parametrize``, for one module.

    Example:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        >>> is_parametrized_class(type(layer)), is_parametrized_class(nn.Linear)
        (True, False)
    """
    return cls.__module__ == parametrize.__name__ and cls.__name__.startswith(_PARAMETRIZED)


def why_opaque(module: nn.Module) -> str | None:
    """Why neither a module nor anything that it holds can be converted, if so."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(module).__mro__}
    if isinstance(module, torch.jit.ScriptModule):
        return "a ScriptModule: its code is compiled. Convert the model before scripting it"
    if is_optimized(module):
        return "compiled by torch.compile. Convert the model before compiling it"
    if is_compiled_in_place(module):
        return "compiled in place. Convert the model before calling compile()"
    if isinstance(module, torch.fx.GraphModule):
        return "a GraphModule: its forward is generated from a graph. Convert before tracing"
    if "torch.nn.cpp.ModuleWrapper" in names:
        return "a C++ module: it has no Python source"
    if any(".quantized" in name and name.startswith("torch.") for name in names):
        return "quantized: it has no gradients to keep exact"
    return None


# -- the class that a user wrote ------------------------------------------------------------

# Entries of a generated class (see NOTE [ Class swap ] in rewriting/classes.py).
USER_CLASS = "_safemodules_user_class"


def user_class_of(cls: type) -> type:
    """A class as its user knows it: below parametrizations and our own generated class."""
    if is_parametrized_class(cls):
        cls = cls.__bases__[0]
    for base in cls.__mro__:
        if USER_CLASS in vars(base):
            found: Any = vars(base)[USER_CLASS]
            return found  # type: ignore[no-any-return]
    return cls
