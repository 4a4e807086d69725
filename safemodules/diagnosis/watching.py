"""``watch``: a training step whose in-place error names its lines."""

from types import TracebackType
from typing import Any

from torch import nn

from safemodules.diagnosis.errors import explain_failure
from safemodules.diagnosis.explanations import explain_message
from safemodules.diagnosis.findings import Clash, Diagnosis
from safemodules.diagnosis.report import (
    Namer,
    buffer_names,
    clashes_of,
    module_entries,
    site_reports,
    warn_silent,
)
from safemodules.diagnosis.text import clash_text
from safemodules.mutation.graph import Silent, find_silent, modules_of
from safemodules.mutation.recorder import Recorder

__all__ = ["watch"]

_MARK = "safemodules: "
_WIDTH = 100


class watch:  # noqa: N801 - used like torch.no_grad
    """Watch a training step, and explain an in-place error that passes through.

    Any number of models, forwards, backwards and optimizer steps may run inside. The error
    is raised as ever, with a note of what was overwritten, the line that had saved it, the
    line that overwrote it, and what to do. Overwrites that torch does not notice (through
    ``.data``, and batch-norm statistics that a graph of evaluation mode reads) become
    warnings of the diagnosis.

    Code compiled by ``torch.compile`` runs unwatched, so that it is neither compiled again
    nor broken up; what it overwrites is found, but not its line. Only the thread that enters
    the block is watched, and the backwards that it starts. Sites are listed up to the last
    131,072 writes.

    Args:
        model: names the modules; without it they are named from the outermost one called.

    Attributes:
        diagnosis: what was found; filled when the block ends.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> weight = torch.ones(2, requires_grad=True)
        >>> try:
        ...     with sm.watch() as watched:
        ...         loss = weight.square().sum()
        ...         with torch.no_grad():
        ...             _ = weight.mul_(0.9)
        ...         loss.backward()
        ... except RuntimeError:
        ...     print(watched.diagnosis.clashes[0].mutated_at.source)
        _ = weight.mul_(0.9)
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model
        self.diagnosis = Diagnosis()
        self._silent: list[Silent] = []
        self._recorder = Recorder(self._look_for_silent)

    def __enter__(self) -> "watch":
        self._recorder.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        recorder = self._recorder
        recorder.__exit__(kind, error, traceback)
        namer = Namer(self.model)
        clashes: tuple[Clash, ...] = ()
        if isinstance(error, RuntimeError):
            clashes = self._explain(error, namer)
        self.diagnosis = Diagnosis(
            clashes,
            site_reports(recorder, clashes, namer),
            warn_silent(self._silent, namer),
            None if error is None else f"{type(error).__name__}: {error}",
            () if self.model is None else module_entries(self.model),
        )
        recorder.forget()
        self._silent.clear()

    def _explain(self, error: RuntimeError, namer: Namer) -> tuple[Clash, ...]:
        recorder, message = self._recorder, str(error)
        clashes: tuple[Clash, ...] = ()
        if "modified by an inplace operation" in message:
            roots = [root for backward in recorder.raised for root in backward.outputs]
            models = modules_of(roots, recorder) if self.model is None else [self.model]
            found = clashes_of(roots, recorder, namer, buffer_names(models), message)
            clashes = tuple(clash for clash in found if not clash.silent)
        clashes += explain_failure(recorder, namer, error)
        notes = [clash_text(clash, _WIDTH) for clash in clashes]
        notes = notes or explain_message(message, recorder)
        if notes:
            _add_note(error, _MARK + "\n".join(notes))
        return clashes

    def _look_for_silent(self, outputs: tuple[Any, ...]) -> None:
        self._silent += find_silent(outputs, self._recorder)


def _add_note(error: Any, note: str) -> None:
    """Add a note, unless a watch inside this one has added one."""
    notes = list(getattr(error, "__notes__", []))
    if any(text.startswith(_MARK) for text in notes):
        return
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:  # Python 3.10 prints no notes; they are there for whoever looks
        error.__notes__ = [*notes, note]
