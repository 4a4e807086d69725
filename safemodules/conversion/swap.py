"""Swap classes and flags of a living model, all or none of them."""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn

from safemodules.blocks.checkpointed_seq import CheckpointedSeq
from safemodules.checkpointing.forgetting import Forgetting
from safemodules.conversion.record import ConversionRecord
from safemodules.conversion.regions import Edited, RegionSite
from safemodules.conversion.survey import AnySite, FlagSite, Survey, visible_modules
from safemodules.errors import ConversionError, RevertError
from safemodules.mutation.forwards import has_own_forward
from safemodules.mutation.internals import user_class_of
from safemodules.rewriting.checkpoints import (
    CALL_MARK,
    FORGETTING_MARK,
    LOOP_MARK,
    forget_marks,
)
from safemodules.rewriting.classes import Rewriting, generated_class, rewriting_of
from safemodules.rewriting.flags import given_attributes, own_attributes
from safemodules.rewriting.inference import FLAG_MARK
from safemodules.rewriting.swapping import restore_class, swap_class

# Kept in the __dict__ of a converted model.
RECORD_MARK = "_safemodules_conversion"

Undo = Callable[[], None]
_ABSENT = object()


@contextlib.contextmanager
def _all_or_nothing() -> Iterator[list[Undo]]:
    """Collect how to undo each step, and undo them all if a later one fails."""
    undo: list[Undo] = []
    try:
        yield undo
    except BaseException:
        _undo_all(undo)
        raise


def _undo_all(undo: list[Undo]) -> None:
    for step in reversed(undo):
        step()


# -- flags ----------------------------------------------------------------------------------


def _flag(module: nn.Module) -> Any:
    return module.inplace


def _assign_flag(module: nn.Module, value: Any) -> None:
    module.inplace = value


def _set_flag(module: nn.Module, path: str, value: bool) -> Undo:
    """Set ``inplace`` as a user would; where it is an instance attribute, undoing cannot fail."""
    before = module.__dict__.get("inplace", _ABSENT)
    value_before = _flag(module)

    def restore() -> None:
        if before is not _ABSENT:
            module.__dict__["inplace"] = before
        elif "inplace" in module.__dict__:
            del module.__dict__["inplace"]
        elif _flag(module) is not value_before:  # kept elsewhere, by a property or a slot
            _assign_flag(module, value_before)

    try:
        _assign_flag(module, value)
        if _flag(module) is not value:
            raise ValueError(f"it is {_flag(module)!r} after it was set to {value}")
    except Exception as error:
        with contextlib.suppress(Exception):
            restore()
        raise ConversionError(
            f"the flag `inplace` of {path or 'the model itself'} ({type(module).__name__}) cannot "
            f"be set to {value}: {type(error).__name__}: {error}. Create the module with "
            "inplace=False, or make the flag writable."
        ) from error
    return restore


def _switch_off(module: nn.Module, path: str) -> Iterator[Undo]:
    on_instance = "inplace" in module.__dict__
    yield _set_flag(module, path, False)
    yield _mark(module, FLAG_MARK, on_instance)
    for name, value in own_attributes(module).items():
        yield _mark(module, name, value)


def _switch_on(module: nn.Module, path: str) -> Iterator[Undo]:
    on_instance = module.__dict__[FLAG_MARK]
    for name in reversed(given_attributes(module)):
        yield _unmark(module, name)
    yield _set_flag(module, path, True)
    if not on_instance and "inplace" in module.__dict__:  # it was an attribute of the class
        yield _unmark(module, "inplace")
    yield _unmark(module, FLAG_MARK)


def _mark(module: nn.Module, name: str, value: Any) -> Undo:
    before = module.__dict__.get(name, _ABSENT)
    module.__dict__[name] = value
    if before is _ABSENT:
        return lambda: module.__dict__.pop(name, None)
    return lambda: module.__dict__.__setitem__(name, before)


def _unmark(module: nn.Module, name: str) -> Undo:
    value = module.__dict__.pop(name)
    return lambda: module.__dict__.__setitem__(name, value)


# -- classes --------------------------------------------------------------------------------


def _swap_module(module: nn.Module, path: str, rewriting: Rewriting) -> Undo | None:
    cls = user_class_of(type(module))
    try:
        generated = rewriting.extending(rewriting_of(type(module))).class_for(cls)
        return None if generated is cls else swap_class(module, generated)
    except TypeError as error:
        raise ConversionError(
            f"{path or 'the model itself'} ({cls.__name__}) cannot be given a subclass of its "
            f"class: {error}."
        ) from error


def _modules_with_news(
    swapped: Collection[AnySite], regions: Collection[RegionSite], chosen: Collection[nn.Module]
) -> set[int]:
    """Modules that run something which an earlier conversion of theirs has left as it was."""
    edited = (*(site for site in swapped if isinstance(site, Edited)), *regions)
    return {
        id(module)
        for site in edited
        for module in site.modules.values()
        if not site.done_in(module)
    } | {id(module) for module in chosen if not is_chosen(module)}


def is_chosen(module: nn.Module) -> bool:
    """Whether a module is checkpointed whenever it is called."""
    return CALL_MARK in module.__dict__ or isinstance(module, CheckpointedSeq)


def _choose(module: nn.Module) -> Undo:
    """Checkpoint a module whenever it is called; a plain sequence, child by child."""
    if type(module) is nn.Sequential:
        sequence = CheckpointedSeq.wrap(module)
        sequence.__dict__[CALL_MARK] = True

        def unwrap() -> None:
            del CheckpointedSeq.unwrap(sequence).__dict__[CALL_MARK]

        return unwrap
    return _mark(module, CALL_MARK, True)


def _unchoose(module: nn.Module) -> Undo:
    """The way back; only what a conversion has wrapped has the mark."""
    undo = _unmark(module, CALL_MARK)
    if not isinstance(module, CheckpointedSeq):
        return undo
    before = module.__dict__.copy()
    CheckpointedSeq.unwrap(module)

    def wrap() -> None:
        CheckpointedSeq.wrap(module)
        module.__dict__.update(before)
        undo()

    return wrap


def _mark_loops(regions: Collection[RegionSite]) -> Iterator[Undo]:
    """Mark the modules that run a checkpointed loop, see NOTE [ Innermost Loops ]."""
    for region in regions:
        if not region.is_rerouted:
            for module in region.modules.values():
                yield _mark(module, LOOP_MARK, True)
    forget_marks()
    yield forget_marks


def check_unchanged(survey: Survey) -> None:
    """Refuse to convert a model that is not what was surveyed.

    Raises:
        ConversionError: modules, their classes or flags have changed.
    """
    found = visible_modules(survey.model)
    changed = [
        path
        for (path, module), now, cls in itertools.zip_longest(
            survey.modules, found, survey.classes, fillvalue=("", None)
        )
        if now != (path, module) or user_class_of(type(module)) is not cls
    ]
    changed += [
        flag.site.module
        for flag in survey.flags
        if not flag.done and _flag(flag.module) is not True
    ]
    if changed:
        raise ConversionError(
            f"the model has changed since the conversion was planned, at "
            f"{changed[0] or 'the model itself'}. Plan it again, then apply."
        )


def apply_swaps(
    survey: Survey,
    swapped: Collection[AnySite],
    rewriting: Rewriting | None,
    record: ConversionRecord | None,
    regions: Collection[RegionSite] = (),
    chosen: Collection[nn.Module] = (),
    forgetting: Forgetting | None = None,
) -> Undo:
    """Make some sites of a model out of place.

    Args:
        survey: the model's modules.
        swapped: the sites.
        rewriting: edited code for those in source.
        record: kept with the model; ``None`` in a trial.
        regions: regions that are checkpointed.
        chosen: modules that are, whenever they are called.
        forgetting: which results the forward of the model forgets.

    Returns:
        How to undo it.

    Raises:
        ConversionError: a module refuses the change; the model is as it was.
    """
    news = _modules_with_news(swapped, regions, chosen)
    if forgetting is not None:
        news.add(id(survey.model))
    with _all_or_nothing() as undo:
        undo += map(_choose, (module for module in chosen if not is_chosen(module)))
        for path, module in survey.modules if rewriting is not None else ():
            assert rewriting is not None
            converted = generated_class(type(module)) is not None
            if has_own_forward(module) or (converted and id(module) not in news):
                continue
            step = _swap_module(module, path, rewriting)
            if step is not None:
                undo.append(step)
        for flag in swapped:
            if isinstance(flag, FlagSite) and not flag.done:
                for step in _switch_off(flag.module, flag.site.module):
                    undo.append(step)
        undo += _mark_loops(regions)
        if forgetting is not None:
            undo.append(_mark(survey.model, FORGETTING_MARK, forgetting))
        if record is not None:
            undo.append(_mark(survey.model, RECORD_MARK, record))
    return lambda: _undo_all(undo)


def revert_swaps(model: nn.Module) -> None:
    """Give every module of a model its class and flag back.

    Raises:
        RevertError: another swap lies above ours, or a flag cannot be set; the model stays
            converted.
    """
    with _all_or_nothing() as undo:
        for path, module in model.named_modules():
            if CALL_MARK in module.__dict__:
                undo.append(_unchoose(module))
            undo.append(restore_class(module, path))
            if FLAG_MARK in module.__dict__:
                try:
                    for step in _switch_on(module, path):
                        undo.append(step)
                except ConversionError as error:
                    raise RevertError(str(error)) from error
            for mark in (RECORD_MARK, LOOP_MARK, FORGETTING_MARK):
                if mark in module.__dict__:
                    undo.append(_unmark(module, mark))
    forget_marks()


def is_swapped(module: nn.Module) -> bool:
    """Whether one module has a generated class or a switched flag."""
    marks = (FLAG_MARK, CALL_MARK)
    return generated_class(type(module)) is not None or any(m in module.__dict__ for m in marks)


def has_swaps(model: nn.Module) -> bool:
    """Whether any module of a model has a generated class or a switched flag."""
    return any(is_swapped(module) for module in model.modules())
