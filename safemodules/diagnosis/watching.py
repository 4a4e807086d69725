"""``watch``: a training step whose in-place error names its lines."""

from types import TracebackType
from typing import Any

from torch import nn

from safemodules.diagnosis.errors import explain_failure
from safemodules.diagnosis.explanations import explain_message
from safemodules.diagnosis.findings import Clash, Diagnosis
from safemodules.diagnosis.report import buffer_names, clashes_of, module_names, site_reports
from safemodules.mutation.recorder import Recorder


class watch:
    """Watch a training step, and explain an in-place error that passes through.

    Any number of models, forwards, backwards and optimizer steps may run inside. The error
    is raised as ever, with a note of what was overwritten, the line that had saved it, the
    line that overwrote it, and what to do.

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
        ...             weight.mul_(0.9)
        ...         loss.backward()
        ... except RuntimeError:
        ...     print(watched.diagnosis.clashes[0].mutated_at.source)
        weight.mul_(0.9)
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model
        self.diagnosis = Diagnosis()
        self._recorder = Recorder()

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
        names = module_names(self.model)
        clashes: tuple[Clash, ...] = ()
        if isinstance(error, RuntimeError):
            buffers = buffer_names([self.model] if self.model is not None else recorder.modules())
            clashes = clashes_of(recorder.roots, recorder, names, buffers)
            clashes += explain_failure(recorder, names)
            notes = [str(clash) for clash in clashes] or explain_message(str(error))
            if notes:
                _add_note(error, "safemodules: " + "\n".join(notes))
        text = None if error is None else f"{type(error).__name__}: {error}"
        self.diagnosis = Diagnosis(clashes, site_reports(recorder, clashes, names), (), text)
        recorder.forget()


def _add_note(error: Any, note: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:  # Python 3.10 prints no notes; they are there for whoever looks
        error.__notes__ = [*getattr(error, "__notes__", []), note]
