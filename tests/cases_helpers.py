"""Plain functions in a module of their own that models of ``cases`` call."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def plus_one(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(x: Tensor) -> Tensor:
        y = function(x).exp()
        y += 1
        return y

    return wrapper


@plus_one
def scaled(x: Tensor) -> Tensor:
    y = x.sigmoid()
    y *= 3
    return y


def shifted(x: Tensor) -> Tensor:
    out = torch.exp(x.sigmoid())
    out.sub_(1)
    return out
