"""Tables of what is in place in PyTorch, and of what computes the same out of place.

Every table is data: the finder asks it whether something is a site, the run-time helpers ask
it for the twin. Where torch itself can be asked, the table is read off the installed torch,
so that an operator added by a later version is covered.
"""

import ast
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

MethodKind = Literal["twin", "overwrite"]

# ``x op= y``: the ast node -> (name, out of place, in place). ``@=`` is missing on purpose: a
# tensor has no ``__imatmul__``, so ``x @= w`` rebinds the name and overwrites nothing.
AUGMENTED: Mapping[type[ast.operator], str] = {
    ast.Add: "iadd",
    ast.Sub: "isub",
    ast.Mult: "imul",
    ast.Div: "itruediv",
    ast.FloorDiv: "ifloordiv",
    ast.Mod: "imod",
    ast.Pow: "ipow",
    ast.BitAnd: "iand",
    ast.BitOr: "ior",
    ast.BitXor: "ixor",
    ast.LShift: "ilshift",
    ast.RShift: "irshift",
}
AUGMENTED_SYMBOLS: Mapping[str, str] = {
    "iadd": "+=",
    "isub": "-=",
    "imul": "*=",
    "itruediv": "/=",
    "ifloordiv": "//=",
    "imod": "%=",
    "ipow": "**=",
    "iand": "&=",
    "ior": "|=",
    "ixor": "^=",
    "ilshift": "<<=",
    "irshift": ">>=",
}
AUGMENTED_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "iadd": (operator.add, operator.iadd),
    "isub": (operator.sub, operator.isub),
    "imul": (operator.mul, operator.imul),
    "itruediv": (operator.truediv, operator.itruediv),
    "ifloordiv": (operator.floordiv, operator.ifloordiv),
    "imod": (operator.mod, operator.imod),
    "ipow": (operator.pow, operator.ipow),
    "iand": (operator.and_, operator.iand),
    "ior": (operator.or_, operator.ior),
    "ixor": (operator.xor, operator.ixor),
    "ilshift": (operator.lshift, operator.ilshift),
    "irshift": (operator.rshift, operator.irshift),
}

# Methods that change a flag, a name, a shape or the storage itself, and no value.
METADATA_METHODS = frozenset(
    {
        "apply_",
        "as_strided_",
        "detach_",
        "map_",
        "map2_",
        "rename_",
        "requires_grad_",
        "resize_",
        "resize_as_",
        "resize_as_sparse_",
        "set_",
        "share_memory_",
        "sparse_resize_",
        "sparse_resize_and_clear_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)

# Methods that replace every value, so that what was there before need not be copied.
# ``bernoulli_(p)`` belongs here: ``bernoulli()`` is another function, it reads probabilities.
OVERWRITING_METHODS = frozenset(
    {
        "bernoulli_",
        "cauchy_",
        "copy_",
        "exponential_",
        "fill_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
        "zero_",
    }
)

# torch.nn classes whose constructor takes ``inplace``.
INPLACE_MODULES = frozenset(
    {
        nn.AlphaDropout,
        nn.CELU,
        nn.Dropout,
        nn.Dropout1d,
        nn.Dropout2d,
        nn.Dropout3d,
        nn.ELU,
        nn.FeatureAlphaDropout,
        nn.Hardsigmoid,
        nn.Hardswish,
        nn.Hardtanh,
        nn.LeakyReLU,
        nn.Mish,
        nn.ReLU,
        nn.ReLU6,
        nn.RReLU,
        nn.SELU,
        nn.SiLU,
        nn.Threshold,
    }
)

# Functions that draw random numbers: they must run exactly once.
RANDOM_FUNCTIONS = frozenset(
    {
        F.alpha_dropout,
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.feature_alpha_dropout,
        F.rrelu,
        F.rrelu_,
        torch.alpha_dropout_,
        torch.dropout_,
        torch.feature_alpha_dropout_,
        torch.feature_dropout_,
        torch.rrelu_,
    }
)


@functools.cache
def method_kind(name: str) -> MethodKind | None:
    """How a tensor method writes: ``"twin"``, ``"overwrite"``, or ``None`` where it does not.

    Args:
        name: the name of a method, such as ``"add_"``.

    Returns:
        ``"twin"`` for a method that computes new values from the old ones, ``"overwrite"``
        for one that replaces them whatever they were, ``None`` for anything else.

    Example:
        >>> method_kind("add_"), method_kind("zero_"), method_kind("requires_grad_")
        ('twin', 'overwrite', None)
    """
    if not name.endswith("_") or name.startswith("_") or name.endswith("__"):
        return None
    if name in METADATA_METHODS or not hasattr(torch.Tensor, name):
        return None
    return "overwrite" if name in OVERWRITING_METHODS else "twin"


@functools.cache
def method_twin(name: str) -> str | None:
    """Name of the method that computes the same out of place, if torch has one.

    Example:
        >>> method_twin("mul_"), method_twin("fill_diagonal_")
        ('mul', None)
    """
    twin = name[:-1]
    return twin if method_kind(name) == "twin" and hasattr(torch.Tensor, twin) else None


@functools.cache
def function_twins() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """In-place functions of ``torch`` and ``torch.nn.functional`` and what they are out of place.

    Example:
        >>> function_twins()[torch.relu_] is torch.relu
        True
    """
    twins: dict[Callable[..., Any], Callable[..., Any]] = {}
    for namespace in (torch, F):
        for name in dir(namespace):
            if name.startswith("_") or not name.endswith("_") or name in METADATA_METHODS:
                continue
            function, twin = getattr(namespace, name), getattr(namespace, name[:-1], None)
            if callable(function) and callable(twin):
                twins.setdefault(function, twin)
    return twins


@functools.cache
def flagged_functions() -> Mapping[Callable[..., Any], int]:
    """Functions of ``torch.nn.functional`` with an ``inplace`` argument, and its position.

    Example:
        >>> flagged_functions()[torch.nn.functional.relu]
        1
    """
    found: dict[Callable[..., Any], int] = {}
    for name, function in vars(F).items():
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        parameters = list(inspect.signature(function).parameters)
        if "inplace" in parameters:
            found[function] = parameters.index("inplace")
    return found
