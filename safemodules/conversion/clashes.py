"""Which saved tensors the backward of a model would find overwritten, as lines and roles."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from safemodules.conversion.survey import AnySite, FlagSite
from safemodules.mutation.frames import Line
from safemodules.mutation.graph import Overwritten, find_overwritten
from safemodules.mutation.recorder import Recorder
from safemodules.state import preserved, seed_everything
from safemodules.trees import CallArguments, clone_inputs, flatten_tensors
from safemodules.verification import Mode
from safemodules.verification.observation import set_mode

# The role of a tensor of which one operator has made several views, which autograd lets
# nobody write: the forward raises when one of them is overwritten.
VIEWS = "views"
_SEVERAL_VIEWS = "returns multiple views"


@dataclass(frozen=True)
class Writer:
    """A line that overwrites a saved tensor.

    Attributes:
        line: the line.
        module: identity of the innermost module that was running.
    """

    line: Line
    module: int

    def is_at(self, site: AnySite) -> bool:
        """Whether a site is what overwrites."""
        if isinstance(site, FlagSite):
            return id(site.module) == self.module
        node = site.found.node
        end = node.end_lineno or node.lineno
        return site.site.filename == self.line.filename and node.lineno <= self.line.lineno <= end


@dataclass(frozen=True)
class SavedAndOverwritten:
    """One clash.

    Attributes:
        saver: the line whose operation has saved the tensor.
        op: name of that operation.
        role: what the tensor was to it, as torch names it: ``"result"``, ``"self"``.
        writers: the lines that overwrite it.
    """

    saver: Line
    op: str
    role: str
    writers: tuple[Writer, ...]

    def __str__(self) -> str:
        lines = ", ".join(dict.fromkeys(str(writer.line) for writer in self.writers))
        if self.role == VIEWS:
            return f"{self.saver} makes several views at once, one of which is written at {lines}"
        what = "result" if self.saves_result else "operand"
        return f"{self.saver} saves its {what}, which is overwritten at {lines or 'an unseen line'}"

    @property
    def saves_result(self) -> bool:
        """Whether the operation has saved what it returned."""
        return self.role.startswith(("result", "out"))


def find_clashes(
    model: nn.Module, call: CallArguments, modes: Iterable[Mode]
) -> list[SavedAndOverwritten]:
    """Run a model under the recorder, and list its clashes, each pair of lines once.

    The model is left as it was; an exception of the forward ends the list.
    """
    found: dict[SavedAndOverwritten, None] = {}
    for mode in modes:
        with preserved(model), torch.enable_grad():
            set_mode(model, mode)
            seen = _clashes(model, call, requires_grad=True)
        if seen is None:  # a forward may take no inputs but leaves
            with preserved(model), torch.enable_grad():
                set_mode(model, mode)
                seen = _clashes(model, call, requires_grad=False)
        found.update(dict.fromkeys(seen or ()))
    return list(found)


def _clashes(
    model: nn.Module, call: CallArguments, *, requires_grad: bool
) -> list[SavedAndOverwritten] | None:
    """The clashes of one run; ``None`` if its forward raises for another reason."""
    seed_everything(0)
    handed, _ = clone_inputs(call, requires_grad=requires_grad)
    recorder = Recorder()
    try:
        with recorder:
            output = model(*handed.inputs, **handed.kwargs)
        roots = [tensor for _, tensor in flatten_tensors(output) if tensor.requires_grad]
        return list(filter(None, map(_plain, find_overwritten(roots, recorder))))
    except Exception as error:
        refused = list(_refused(recorder, error))
        return refused if refused or "inplace" in str(error) else None


def _refused(recorder: Recorder, error: Exception) -> Iterator[SavedAndOverwritten]:
    """The write to one of several views that has ended a forward."""
    failure = recorder.failure
    if failure is None or failure.error is not error or failure.made is None:
        return
    if _SEVERAL_VIEWS in str(error):
        where = failure.operation.where
        writer = Writer(where.line, id(where.module))
        yield SavedAndOverwritten(failure.made.where.line, failure.made.name, VIEWS, (writer,))


def _plain(found: Overwritten) -> SavedAndOverwritten | None:
    if found.operation is None:
        return None
    writers = {
        Writer(write.operation.where.line, id(write.operation.where.module)): None
        for write in found.writes
    }
    operation = found.operation
    return SavedAndOverwritten(operation.where.line, operation.name, found.role, tuple(writers))


def sites_of(
    clashes: Iterable[SavedAndOverwritten], sites: Iterable[AnySite]
) -> Mapping[AnySite, SavedAndOverwritten]:
    """The sites that overwrite a saved tensor, each with one of its clashes."""
    found: dict[AnySite, SavedAndOverwritten] = {}
    sites = list(sites)
    for clash in clashes:
        for writer in clash.writers:
            for site in sites:
                if writer.is_at(site):
                    found.setdefault(site, clash)
    return found
