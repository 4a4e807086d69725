"""The private names of torch that this package reads, all of them.

What each is needed for stands with it; ``tests/test_internals.py`` fails if a version of
torch no longer has one.
"""

from torch import nn


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
