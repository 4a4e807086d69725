"""Who reads a tensor that a swapped site would have overwritten: the proof of neutrality.

NOTE [ Stale reads ]: out of place, the old tensor keeps its old values. The swap changes
nothing if nobody reads them afterwards. So the converted model runs once more while every
operation is watched: the storage of each swapped site's old tensor is remembered, and an
operation that is given it later, under whatever name or view, is a *stale read*. It is
load-bearing where the old tensor is read, and also where it outlives the forward: as the
caller's input, an output, an attribute of a module, or in the hands of anyone else.

This is stricter than to fill the old memory with NaN and to look for a change of the output:
a read counts even if its value happens not to matter, and it has a line.
"""

import gc
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from safemodules import rewriting
from safemodules.conversion.survey import AnySite, FlagSite, SourceSite
from safemodules.mutation.frames import locate_from
from safemodules.mutation.internals import module_calls
from safemodules.mutation.liveness.kinds import takes_form_of_first
from safemodules.mutation.operations import may_write, state_tensors, storage_of, tensors_in
from safemodules.mutation.operators import flagged_functions
from safemodules.rewriting.copies import written_in_place
from safemodules.rewriting.inference import FLAG_MARK, out_of_place
from safemodules.rewriting.places import is_state
from safemodules.trees import CallArguments, flatten_tensors

_HELPERS = str(Path(rewriting.__file__).parent)
# Operations that look at the size, type or place of an argument, and not at its values.
_SILENT = frozenset(
    """__get__ __len__ data_ptr dim element_size is_complex is_contiguous is_floating_point numel
    size stride untyped_storage""".split()
)
_KEPT = "{} of the model keeps it"
_FORM_OF_SECOND = frozenset({"expand_as", "view_as", "reshape_as", "type_as", "resize_as_"})


class StaleReads(TorchFunctionMode):
    """Watches a run of a converted model.

    Attributes:
        found: for each swapped site whose old tensor was read, who read it first.
        state: those of them that write state of the model.
        ran: the swapped sites that ran.
    """

    def __init__(self, swapped: Collection[AnySite]) -> None:
        super().__init__()
        self.found: dict[AnySite, str] = {}
        self.state: set[AnySite] = set()
        self.ran: set[AnySite] = set()
        self._flags = {id(s.module): s for s in swapped if isinstance(s, FlagSite)}
        self._lines: dict[tuple[str, int], list[SourceSite]] = {}
        for site in swapped:
            if isinstance(site, SourceSite):
                node = site.found.node
                for lineno in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    self._lines.setdefault((site.site.filename, lineno), []).append(site)
        self._kept: dict[int, str] = {}
        self._model: set[int] = set()
        self._old: dict[int, tuple[Any, list[AnySite]]] = {}  # with a weak reference
        self._helper: FrameType | None = None
        self._own: set[int] = set()
        self._running: list[nn.Module] = []

    # -- operations ---------------------------------------------------------------------

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _SILENT:
            return func(*args, **kwargs)
        given = _read(name, args, kwargs)
        if not given:  # a factory, or a switch such as that of gradients
            return func(*args, **kwargs)
        helper = _helper_frame(sys._getframe(1))
        if helper is not self._helper:  # another site runs, or the same one again
            self._helper, self._own = helper, set()
        stale = [t for t in given if storage_of(t) in self._old and storage_of(t) not in self._own]
        writes = may_write(name, func, kwargs)
        result = func(*args, **kwargs)
        shared = {storage_of(tensor) for tensor in tensors_in((result,))}
        for tensor in stale:
            if writes or storage_of(tensor) not in shared:  # else a view, which reads nothing
                where = locate_from(sys._getframe(1)).line
                reader = f"{where.filename}:{where.lineno} reads it: {where.source}"
                self._note_reader(tensor, reader)
        if helper is not None:
            self._note_site(helper, shared)
        elif func in flagged_functions() and self._running and id(self._running[-1]) in self._flags:
            self._remember(tensors_in(args[:1]), [self._flags[id(self._running[-1])]], shared)
        return result

    def _note_site(self, helper: FrameType, results: set[int]) -> None:
        """Remember what the site that is running would have overwritten."""
        sites = self._sites_of(helper)
        if not sites:
            return
        written = list(_targets(helper.f_locals))
        if written:
            self.ran.update(sites)
        for tensor in written:  # other names of the old tensor do not see what is written now
            if storage_of(tensor) in self._old and storage_of(tensor) not in self._own:
                where = locate_from(helper.f_back).line
                reader = f"{where.filename}:{where.lineno} overwrites it again: {where.source}"
                self._note_reader(tensor, reader)
        targets = [t for t in written if storage_of(t) not in results]
        self._own.update(map(storage_of, targets))
        self._remember(targets, sites, results)

    def _sites_of(self, helper: FrameType) -> list[SourceSite]:
        line = locate_from(helper.f_back).line
        sites = self._lines.get((line.filename, line.lineno), [])
        call = helper.f_locals.get("call")
        op = helper.f_locals.get("name") or getattr(call, "__name__", None)
        exact = [site for site in sites if op is not None and _same_operator(site.found.op, op)]
        return exact or sites

    def _remember(
        self, targets: Iterable[Tensor], sites: Sequence[AnySite], results: set[int]
    ) -> None:
        for tensor in targets:
            storage = storage_of(tensor)
            if storage and storage not in results:
                known = self._old.get(storage)
                if known is None:
                    reference: Any = StorageWeakRef
                    self._old[storage] = reference(tensor.untyped_storage()), list(sites)
                else:
                    known[1].extend(site for site in sites if site not in known[1])
                if storage in self._kept:
                    self._note_reader(tensor, self._kept[storage])
                    self.state.update(sites if storage in self._model else ())

    def _note_reader(self, tensor: Tensor, reader: str) -> None:
        for site in self._old[storage_of(tensor)][1]:
            self.found.setdefault(site, reader)

    # -- modules whose flag was switched off --------------------------------------------

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._running.append(module)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._running.pop()
        flag = self._flags.get(id(module)) if FLAG_MARK in module.__dict__ else None
        if flag is None:
            return
        self.ran.add(flag)
        results = {storage_of(tensor) for _, tensor in flatten_tensors(output)}
        self._remember((t for _, t in flatten_tensors((args, kwargs))), [flag], results)

    # -- a whole run --------------------------------------------------------------------

    def run(self, model: nn.Module, call: CallArguments) -> None:
        """Run a converted model; the caller preserves its state.

        An exception of the forward ends the run: what was seen until then is kept.
        """
        before = dict(state_tensors(model))
        kept = self._kept = {storage_of(t): _KEPT.format(name) for name, t in before.items()}
        self._model = set(kept)
        for name, tensor in flatten_tensors(call, ""):
            kept.setdefault(storage_of(tensor), f"it is the caller's {name}")
        with suppress(Exception), module_calls(self._enter, self._leave):
            self._run(model, call, kept)
        self._helper = None
        self._running.clear()
        for name, tensor in state_tensors(model):
            kept.setdefault(storage_of(tensor), _KEPT.format(name))
            if tensor is not before.get(name) and tensor.grad_fn is not None:
                with suppress(RuntimeError):  # a view
                    tensor.detach_()  # a graph that lives on keeps what it has saved
        self._survivors(kept)

    def _run(self, model: nn.Module, call: CallArguments, kept: dict[int, str]) -> None:
        with torch.enable_grad(), out_of_place(), self:
            output = model(*call.inputs, **call.kwargs)
        for name, tensor in flatten_tensors(output):
            kept.setdefault(storage_of(tensor), f"it is returned as {name}")

    def _survivors(self, kept: Mapping[int, str]) -> None:
        """Old tensors that somebody holds after the forward."""
        for generation in range(3):  # frames and what they held may lie in cycles, young ones
            if all(r.expired() or s in kept for s, (r, _) in self._old.items()):
                break
            gc.collect(generation)
        for storage, (reference, sites) in self._old.items():
            if storage in kept or not reference.expired():
                reader = kept.get(storage, "it is still referred to after the forward")
                for site in sites:
                    self.found.setdefault(site, reader)


def _helper_frame(frame: FrameType | None) -> FrameType | None:
    """The frame of the run-time helper, called by edited code, in which an operation runs."""
    helper = None
    while frame is not None and frame.f_code.co_filename.startswith(_HELPERS):
        helper, frame = frame, frame.f_back
    return helper


def _targets(names: Mapping[str, Any]) -> Iterable[Tensor]:
    """The tensors that the site of a run-time helper overwrites in the original."""
    for name in ("target", "out"):
        if name in names:
            return [] if written_in_place(names[name]) else [names[name]]
    place = names.get("place", names.get("container"))
    if place is None or is_state(place) or isinstance(place[0], nn.Parameter):
        return []
    found = []
    while place is not None:
        if isinstance(place[0], Tensor):
            found.append(place[0])
        place = place[1]
    return found


def _read(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Arguments of an operation whose values it may read."""
    if takes_form_of_first(name):
        args = args[1:]
    elif name in _FORM_OF_SECOND:
        args = args[:1]
    return [tensor for _, tensor in flatten_tensors((tuple(args), dict(kwargs)))]


def _same_operator(op: str, called: str) -> bool:
    """Whether a site's operator is the one that a helper runs: ``relu_`` and ``relu``."""
    return op.rstrip("_") == called.rstrip("_")
