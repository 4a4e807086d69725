"""Watch a run for writes to the state of a model."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from safemodules.mutation.operators import flagged_functions, function_twins, method_kind
from safemodules.mutation.resolution import is_foreign


@dataclass(frozen=True)
class StateWrite:
    """A write to a parameter, a buffer or a tensor attribute of a module.

    Attributes:
        filename: file of the line that writes, outside torch.
        lineno: the line.
        name: dotted name of the tensor.
    """

    filename: str
    lineno: int
    name: str


def state_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and tensors in plain attributes, with dotted names."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        tables = (module._parameters, module._buffers, module.__dict__)
        for table in tables:
            for name, value in table.items():
                if isinstance(value, Tensor):
                    yield prefix + name, value
                elif isinstance(value, list | tuple) and table is module.__dict__:
                    for index, entry in enumerate(value):
                        if isinstance(entry, Tensor):
                            yield f"{prefix}{name}[{index}]", entry


class _WriteMode(TorchFunctionMode):
    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.writes: list[StateWrite] = []

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for target in _written(func, args, kwargs or {}):
            if isinstance(target, Tensor) and target.layout is torch.strided:
                name = self.names.get(target.untyped_storage().data_ptr())
                if name is not None:
                    self.writes.append(StateWrite(*_user_line(), name))
        return func(*args, **(kwargs or {}))


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    name = getattr(func, "__name__", "")
    first = args[0] if args else kwargs.get("input")
    augmented = name.startswith("__i") and name.endswith("__") and name not in _NOT_AUGMENTED
    if name == "__setitem__" or augmented or method_kind(name) is not None:
        yield first
    elif func in function_twins() or (func in flagged_functions() and _flag(func, args, kwargs)):
        yield first
    if "out" in kwargs:
        out = kwargs["out"]
        yield from out if isinstance(out, tuple | list) else (out,)


_NOT_AUGMENTED = frozenset({"__index__", "__int__", "__invert__", "__iter__", "__init__"})


def _flag(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    position = flagged_functions()[func]
    return bool(args[position] if len(args) > position else kwargs.get("inplace", False))


def _user_line() -> tuple[str, int]:
    """File and line of the innermost frame outside torch and this file."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        filename = frame.f_code.co_filename
        if filename != __file__ and not is_foreign(filename):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def record_state_writes(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[StateWrite]:
    """Run a forward without gradients and list its writes to the model's state.

    The caller preserves the state; an exception of the forward ends the list.
    """
    names = {
        tensor.untyped_storage().data_ptr(): name
        for name, tensor in state_tensors(model)
        if tensor.layout is torch.strided and tensor.numel()
    }
    mode = _WriteMode(names)
    try:
        with torch.no_grad(), mode:
            model(*args, **kwargs)
    except Exception:  # the comparison has reported it already
        pass
    return mode.writes
