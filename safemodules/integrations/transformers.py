"""A callback for the Trainer of transformers that converts the model when training starts.

NOTE [ When the Trainer's model is converted ]
``on_train_begin`` comes after ``model_init`` and after gradient checkpointing was switched on, so
that the checkpoints are those that will run. The model that it is given is the one beneath
``DistributedDataParallel``. A model that was sharded by then is refused: convert it before it is
handed to the Trainer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import nn

import safemodules as sm
from safemodules.integrations.packages import require

__all__ = ["conversion_callback"]


def conversion_callback(**options: Any) -> Any:
    """Make a callback that converts the model of a ``transformers.Trainer`` before it is trained.

    A model that is converted already is left as it is. Nothing is reverted when training ends.

    Args:
        **options: keyword arguments of :func:`safemodules.convert_model`; models of transformers
            take their inputs by name, so examples go into ``example_kwargs``.

    Returns:
        A ``transformers.TrainerCallback``. It can be pickled.

    Raises:
        MissingPackageError: transformers is not installed.
        SafeModulesError: from ``Trainer.train``, if the model cannot be converted.

    Example:
        >>> from transformers import TrainerCallback
        >>> isinstance(conversion_callback(checkpoint=False), TrainerCallback)
        True
    """
    return _callback_class()(options)


@functools.cache
def _callback_class() -> Any:
    base: Any = require("transformers", "trainers").TrainerCallback
    return type("ConversionCallback", (_Conversion, base), {"__module__": __name__})


class _Conversion:
    """What the callback does; the class of transformers is mixed in when one is made."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def on_train_begin(
        self, args: object, state: object, control: object, *, model: nn.Module, **others: Any
    ) -> None:
        """Convert the model."""
        if sm.is_converted(model):
            return
        sm.convert_model(model, **self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (dict(self.options),)


def _again(options: dict[str, Any]) -> Any:
    return conversion_callback(**options)
