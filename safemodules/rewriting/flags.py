"""What a module of torch runs once its ``inplace`` flag was switched off.

NOTE [ Flags that were set ]: out of place, an activation does not always compute what it does in
place: ``elu``, ``selu`` and ``celu`` have gradients with other rounding, on accelerators dropout
draws other numbers, and what is overwritten where no graph is recorded keeps its history. So a
module whose forward is torch's own calls the helper that stands for ``F.elu(x, inplace=True)``
in source, too, as an attribute ``forward`` of its own. Its class stays torch's, since libraries
look activations up by their very type. While the flag is set again, in inference, and once it
no longer has the mark, it runs its class's forward.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from safemodules.mutation.forwards import FORWARD, OF_CONVERSION, has_own_forward
from safemodules.mutation.internals import children
from safemodules.mutation.operators import RANDOM_FUNCTIONS
from safemodules.rewriting.inference import FLAG_MARK
from safemodules.rewriting.out_of_place import RESULT_FUNCTIONS, flagged

# Forward of a class -> the function that it calls, and the attributes that it hands on.
FORWARDS: dict[Callable[..., Any], tuple[Callable[..., Any], tuple[str, ...]]] = {
    nn.CELU.forward: (F.celu, ("alpha",)),
    nn.Dropout.forward: (F.dropout, ("p", "training")),
    nn.Dropout1d.forward: (F.dropout1d, ("p", "training")),
    nn.Dropout2d.forward: (F.dropout2d, ("p", "training")),
    nn.Dropout3d.forward: (F.dropout3d, ("p", "training")),
    nn.ELU.forward: (F.elu, ("alpha",)),
    nn.Hardsigmoid.forward: (F.hardsigmoid, ()),
    nn.Hardswish.forward: (F.hardswish, ()),
    nn.Hardtanh.forward: (F.hardtanh, ("min_val", "max_val")),
    nn.LeakyReLU.forward: (F.leaky_relu, ("negative_slope",)),
    nn.Mish.forward: (F.mish, ()),
    nn.RReLU.forward: (F.rrelu, ("lower", "upper", "training")),
    nn.ReLU.forward: (F.relu, ()),
    nn.SELU.forward: (F.selu, ()),
    nn.SiLU.forward: (F.silu, ()),
    nn.Threshold.forward: (F.threshold, ("threshold", "value")),
}
# Those that compute something else out of place even where a graph is recorded.
DIFFERING = {
    forward
    for forward, (call, _) in FORWARDS.items()
    if call in RESULT_FUNCTIONS or call in RANDOM_FUNCTIONS
}
# Attributes that a module gets when its flag is switched off.
ATTRIBUTES = (FORWARD, "__prepare_scriptable__")


def run(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """The forward of a module whose flag was switched off."""
    forward = type(module).forward
    # a trace is for both
    recorded = torch.is_grad_enabled() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if recorded and forward not in DIFFERING:
        return forward(module, *args, **kwargs)
    found = FORWARDS.get(forward)
    given = (*args, *kwargs.values())
    off = FLAG_MARK in module.__dict__ and not module.inplace
    if found is None or not off or len(given) != 1:
        return forward(module, *args, **kwargs)
    call, names = found
    options = [getattr(module, name) for name in names]
    return flagged(call, None, given[0], *options, inplace=True)


setattr(run, OF_CONVERSION, True)


def scriptable(module: nn.Module, known: dict[int, nn.Module] | None = None) -> nn.Module:
    """A module for TorchScript, which compiles forwards of classes and not of instances.

    What holds such a module is copied with it, since TorchScript would put the copy into it.
    """
    known = {} if known is None else known
    if id(module) in known:
        return known[id(module)]
    known[id(module)] = module
    held = children(module)
    plain = {name: child and scriptable(child, known) for name, child in held.items()}
    ours = given_attributes(module)
    if not ours and all(plain[name] is child for name, child in held.items()):
        return module
    copy: nn.Module = object.__new__(type(module))
    copy.__dict__.update({k: v for k, v in module.__dict__.items() if k not in ours})
    copy.__dict__["_modules"] = plain
    known[id(module)] = copy
    return copy


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """What a module gets when its flag is switched off, if its forward is torch's own."""
    if type(module).forward not in FORWARDS or has_own_forward(module):
        return {}
    made = (functools.partial(run, module), functools.partial(scriptable, module))
    return dict(zip(ATTRIBUTES, made, strict=True))


def given_attributes(module: nn.Module) -> list[str]:
    """Names of those that it has."""
    ours = FORWARD in module.__dict__ and not has_own_forward(module)
    return [name for name in ATTRIBUTES if name in module.__dict__] if ours else []


def was_set(holder: Any, flag: Any) -> Any:
    """Whether a flag is set, or was when a conversion has switched it off."""
    return flag or FLAG_MARK in getattr(holder, "__dict__", ())
