"""Checkpointing whose recomputation sees what the forward saw, and leaves no trace."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from safemodules.checkpointing.compiling import writes_nothing
from safemodules.checkpointing.exclusion import is_contended
from safemodules.checkpointing.plainly import is_plain
from safemodules.checkpointing.policies import Contexts, policy_contexts
from safemodules.checkpointing.region import Region, describe, entered
from safemodules.errors import RegionError
from safemodules.mutation.graph_internals import is_traced, is_transformed

__all__ = ["checkpoint", "checkpoint_under"]

_LAZY_PRODUCERS = (
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
    inspect.iscoroutinefunction,
)


def checkpoint(
    fn: Callable[..., Any] | None = None, *args: Any, policy: Any = None, **kwargs: Any
) -> Any:
    """Run a function without keeping its activations; its backward computes them again.

    Outputs, gradients, buffers, attributes and random numbers are those of ``fn(*args,
    **kwargs)``, or an error says why they cannot be. Non-reentrant checkpointing of torch,
    which this builds on, moves batch norm's statistics twice, takes no notice of a clash inside
    of the region, and computes with whatever a closure, a keyword argument or a buffer holds by
    the time of the backward.

    Where no gradient is recorded, under transforms of ``torch.func``, and while it is traced or
    exported, ``fn`` simply runs.

    Args:
        fn: a module or a function. Left out, a decorator is returned.
        *args: its positional arguments.
        policy: results to keep rather than compute again: ``"matmul"`` keeps matrix products,
            ``"cheap"`` keeps convolutions as well; or a list of operators, or a function as
            ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` takes it.
        **kwargs: its keyword arguments; for the decorator ``streams``, a tuple that may name
            ``"numpy"`` and ``"random"``, whose random numbers shall be repeated as well.

    Returns:
        What ``fn`` returns; or the decorator.

    Raises:
        RegionError: ``fn`` is a generator or coroutine function, or returns an iterator.
        OptionError: an unknown policy or stream.
        CheckpointError: in backward, if a tensor that the region has saved was overwritten, or
            one that it reads has changed and was not copied. (What needs no gradient and has
            less than 1 MiB is copied.)

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        >>> sm.checkpoint(block, torch.randn(2, 4)).sum().backward()
        >>> int(block[1].num_batches_tracked)
        1
        >>> @sm.checkpoint(policy="matmul")
        ... def region(x, w):
        ...     return torch.tanh(x @ w)
        >>> region(torch.ones(1, 2), torch.ones(2, 2, requires_grad=True)).shape
        torch.Size([1, 2])
    """
    if fn is None:
        return functools.partial(_decorate, policy=policy, **kwargs)
    return _run(fn, args, kwargs, policy, ())


def checkpoint_under(
    context_fn: Callable[[], tuple[Any, Any]],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """:func:`checkpoint` under the two contexts that torch's own was to be run under.

    Args:
        context_fn: returns a context for the forward and one for the recomputation.
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    return _run(fn, args, kwargs, Contexts(context_fn), ())


def _decorate(
    fn: Callable[..., Any], *, policy: Any = None, streams: Sequence[str] = ()
) -> Callable[..., Any]:
    @functools.wraps(fn)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return _run(fn, args, kwargs, policy, streams)

    return checkpointed


def _run(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: Any,
    streams: Sequence[str],
) -> Any:
    if torch.compiler.is_compiling():
        if streams or torch.compiler.is_exporting() or not torch.is_grad_enabled():
            return fn(*args, **kwargs)
        if not writes_nothing(fn, args, kwargs):
            return fn(*args, **kwargs)
        if policy is None:
            return torch_checkpoint(fn, *args, use_reentrant=False, **kwargs)
        contexts = functools.partial(policy_contexts, policy)
        return torch_checkpoint(fn, *args, use_reentrant=False, context_fn=contexts, **kwargs)
    if is_plain() or is_traced() or is_transformed() or _is_symbolic(args, kwargs):
        return fn(*args, **kwargs)
    others = is_contended()
    if not torch.is_grad_enabled():
        with entered(fn, args, kwargs) if others else nullcontext():
            return fn(*args, **kwargs)
    _refuse_lazy_producer(fn)

    def make() -> Region:
        return Region(fn, args, kwargs, policy, streams)

    with entered(fn, args, kwargs, make) as region:
        if region.snapshot.is_lazy:  # its first run makes the parameters, which nothing can repeat
            return fn(*args, **kwargs)
        region.begin()
        out = torch_checkpoint(
            region,
            *region.sentinels,
            use_reentrant=False,
            preserve_rng_state=False,  # a region repeats them itself
            context_fn=region.contexts,
            early_stop=region.snapshot.may_stop_early,
            respect_saved_tensors_hooks=False,  # it would take our own for the user's
        )
        region.settle(others)
    _refuse_iterators(fn, out)
    return out


def _is_symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values()))


def _refuse_lazy_producer(fn: Any) -> None:
    if not callable(fn):
        raise RegionError(
            f"checkpoint was given {type(fn).__name__} as its function. Expected a module or a "
            f"function: checkpoint(block, x)."
        )
    run = fn.forward if isinstance(fn, torch.nn.Module) else fn
    if any(lazily(run) for lazily in _LAZY_PRODUCERS):
        raise RegionError(
            f"{describe(fn)} is a generator or coroutine function: calling it computes nothing, "
            f"and what it computes later would not be checkpointed. Checkpoint a function that "
            f"returns its results, for instance as a list."
        )


def _refuse_iterators(fn: Any, out: Any) -> None:
    values = out.values() if isinstance(out, dict) else out
    found = values if isinstance(values, (list, tuple)) else (out,)
    for value in found:
        if isinstance(value, Iterator) and not isinstance(value, torch.Tensor):
            raise RegionError(
                f"the checkpointed region {describe(fn)} returned {type(value).__name__}: "
                f"what it computes when it is iterated would not be checkpointed. Return the "
                f"items themselves, for instance as a list."
            )
