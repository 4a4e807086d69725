"""A callback for Lightning that converts the model when training starts.

NOTE [ When Lightning's model is converted ]
``setup`` runs in every process, before ``configure_model``, before the strategy wraps or shards
the model and before optimizers are made. A sharded model could no longer be converted. What
``configure_model`` adds afterwards is not converted.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import nn

import safemodules as sm
from safemodules.errors import OptionError
from safemodules.integrations.packages import require

__all__ = ["conversion_callback"]


def conversion_callback(module: str | None = None, **options: Any) -> Any:
    """Make a callback that converts a LightningModule, or a part of it, before it is trained.

    The conversion follows ``forward`` of the LightningModule. Where ``training_step`` calls a
    part (``self.net(batch)``) and there is no ``forward``, name that part. A part that is
    converted already is left as it is. Nothing is reverted when training ends.

    Args:
        module: dotted name of the part to convert. Default: the LightningModule itself.
        **options: keyword arguments of :func:`safemodules.convert_model`. Without
            ``example_inputs``, those in ``example_input_array`` of the LightningModule are taken
            where the whole of it is converted and it has some.

    Returns:
        A ``lightning.pytorch.Callback``. It can be pickled.

    Raises:
        MissingPackageError: Lightning is not installed.
        OptionError: from ``Trainer.fit``, if there is no such part, or no ``forward`` to follow.
        SafeModulesError: from ``Trainer.fit``, if the model cannot be converted.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> callback = conversion_callback("net", checkpoint=False)
        >>> trainer = Trainer(callbacks=[callback], logger=False, accelerator="cpu")
        >>> callback in trainer.callbacks
        True
    """
    return _callback_class()(module, options)


@functools.cache
def _callback_class() -> Any:
    base: Any = require("lightning.pytorch", "trainers").Callback
    return type("ConversionCallback", (_Conversion, base), {"__module__": __name__})


class _Conversion:
    """What the callback does; the class of Lightning is mixed in when one is made."""

    def __init__(self, module: str | None, options: Mapping[str, Any]) -> None:
        self.module = module
        self.options = options

    def setup(self, trainer: object, pl_module: nn.Module, stage: str) -> None:
        """Convert the model, if it is about to be trained."""
        if stage != "fit":
            return
        part = _part(pl_module, self.module)
        if sm.is_converted(part):
            return
        options = dict(self.options)
        if part is pl_module and not options.keys() & {"example_inputs", "example_kwargs"}:
            options.update(_own_example(pl_module))
        sm.convert_model(part, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.module, dict(self.options))


def _again(module: str | None, options: dict[str, Any]) -> Any:
    return conversion_callback(module, **options)


def _part(model: nn.Module, name: str | None) -> nn.Module:
    children = ", ".join(child for child, _ in model.named_children()) or "none"
    if name is None:
        # LightningModule's own forward is that of nn.Module, which raises.
        if getattr(type(model), "forward", None) in _no_forward():
            raise OptionError(
                f"{type(model).__name__} defines no forward that could be followed; name the part "
                f"that training_step calls, as in conversion_callback('net'). Parts: {children}."
            )
        return model
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise OptionError(
            f"conversion_callback({name!r}): {type(model).__name__} has no such part. "
            f"Parts: {children}."
        ) from None


def _no_forward() -> tuple[Any, ...]:
    return nn.Module.forward, require("lightning.pytorch", "trainers").LightningModule.forward


def _own_example(model: nn.Module) -> dict[str, Any]:
    """The example of a LightningModule: a tensor or a tuple, or keyword arguments."""
    example = getattr(model, "example_input_array", None)
    if example is None:
        return {}
    return {"example_kwargs" if isinstance(example, Mapping) else "example_inputs": example}
