"""Swap classes and flags of a living model, all or none of them."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn

from safemodules.conversion.record import ConversionRecord
from safemodules.conversion.survey import FORWARD, AnySite, FlagSite, Survey
from safemodules.errors import ConversionError, RevertError
from safemodules.rewriting.classes import (
    Rewriting,
    generated_class,
    restore_class,
    swap_class,
    user_class,
)

# Kept in the __dict__ of a module whose flag was switched off, and of a converted model.
FLAG_MARK = "_safemodules_inplace"
RECORD_MARK = "_safemodules_conversion"

Undo = Callable[[], None]


@contextlib.contextmanager
def _all_or_nothing() -> Iterator[list[Undo]]:
    """Collect how to undo each step, and undo them all if a later one fails."""
    undo: list[Undo] = []
    try:
        yield undo
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def _set_flag(module: nn.Module, path: str, value: bool) -> Undo:
    before = module.inplace
    try:
        if "inplace" in module.__dict__:
            module.__dict__["inplace"] = value
        else:
            module.inplace = value  # type: ignore[assignment]
    except Exception as error:
        raise ConversionError(
            f"the flag `inplace` of {path or 'the model itself'} ({type(module).__name__}) cannot "
            f"be set: {error}. Create the module with inplace=False, or make it writable."
        ) from error

    def restore() -> None:
        if "inplace" in module.__dict__:
            module.__dict__["inplace"] = before
        else:
            module.inplace = before

    return restore


def _mark(module: nn.Module, name: str, value: Any) -> Undo:
    module.__dict__[name] = value
    return lambda: module.__dict__.pop(name, None)


def apply_swaps(
    survey: Survey,
    swapped: Collection[AnySite],
    rewriting: Rewriting | None,
    record: ConversionRecord | None,
) -> Undo:
    """Make some sites of a model out of place.

    Args:
        survey: the model's modules.
        swapped: the sites.
        rewriting: edited code for those in source.
        record: kept with the model; ``None`` in a trial.

    Returns:
        How to undo it.

    Raises:
        ConversionError: a module refuses the change; the model is as it was.
    """
    with _all_or_nothing() as undo:
        for path, module in survey.modules if rewriting is not None else ():
            assert rewriting is not None
            if FORWARD in module.__dict__ or generated_class(type(module)) is not None:
                continue
            cls = user_class(module)
            generated = rewriting.class_for(cls)
            if generated is cls:
                continue
            try:
                undo.append(swap_class(module, generated))
            except TypeError as error:
                raise ConversionError(
                    f"{path or 'the model itself'} ({cls.__name__}) cannot be given a subclass of "
                    f"its class: {error}."
                ) from error
        for flag in swapped:
            if isinstance(flag, FlagSite):
                undo.append(_set_flag(flag.module, flag.site.module, False))
                undo.append(_mark(flag.module, FLAG_MARK, True))
        if record is not None:
            undo.append(_mark(survey.model, RECORD_MARK, record))

    def undo_all() -> None:
        for step in reversed(undo):
            step()

    return undo_all


def revert_swaps(model: nn.Module) -> None:
    """Give every module of a model its class and flag back.

    Raises:
        RevertError: another swap lies above ours; the model stays converted.
    """
    with _all_or_nothing() as undo:
        for path, module in model.named_modules():
            undo.append(restore_class(module, path))
            if module.__dict__.get(FLAG_MARK):
                try:
                    undo.append(_set_flag(module, path, True))
                except ConversionError as error:
                    raise RevertError(str(error)) from error
                undo.append(_unmark(module, FLAG_MARK))
            if RECORD_MARK in module.__dict__:
                undo.append(_unmark(module, RECORD_MARK))


def _unmark(module: nn.Module, name: str) -> Undo:
    value = module.__dict__.pop(name)
    return lambda: module.__dict__.__setitem__(name, value)


def has_swaps(model: nn.Module) -> bool:
    """Whether any module of a model has a generated class or a switched flag."""
    return any(
        generated_class(type(module)) is not None or FLAG_MARK in module.__dict__
        for module in model.modules()
    )
