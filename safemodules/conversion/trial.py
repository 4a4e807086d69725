"""Try a conversion on example inputs, and find the sites that change what is computed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from safemodules.checkpointing.forgetting import Forgetting
from safemodules.checkpointing.plainly import run_plain
from safemodules.conversion.bisection import find_guilty
from safemodules.conversion.clashes import SavedAndOverwritten, find_clashes, sites_of
from safemodules.conversion.decisions import (
    CHANGED,
    CLASH,
    DONE,
    HARMLESS,
    NO_CLASH,
    ROUNDED,
    Decision,
    SourceVerdicts,
    decide_without_inputs,
    intended,
    load_bearing,
    not_exercised,
    read_elsewhere,
    verdicts_from_source,
)
from safemodules.conversion.regions import RegionSite
from safemodules.conversion.rewriter import make_rewriting
from safemodules.conversion.savers import SaverCopy, saver_copies, saver_sites
from safemodules.conversion.stale_reads import StaleReads
from safemodules.conversion.survey import AnySite, FlagSite, Survey
from safemodules.conversion.swap import apply_swaps
from safemodules.errors import ConversionError, MismatchError
from safemodules.mutation.liveness.verdicts import Effect, SiteVerdict
from safemodules.rewriting.inference import out_of_place
from safemodules.state import preserved, seed_everything
from safemodules.trees import CallArguments, clone_inputs
from safemodules.verification import (
    Equivalence,
    Mode,
    Observation,
    compare_modes,
    observe_modes,
    observe_reference,
)
from safemodules.verification.modes import is_out_of_memory
from safemodules.verification.observation import set_mode

_SPARED = (HARMLESS, NO_CLASH)
_INPLACE_MESSAGES = ("modified by an inplace operation", "is being modified inplace")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a trial has found to compute the same.

    Attributes:
        decisions: what is done with each site.
        copies: copies for operations whose saved tensor a kept site overwrites.
        equivalence: the comparison with the original; ``None`` if nothing was run.
    """

    decisions: dict[AnySite, Decision]
    copies: tuple[SaverCopy, ...]
    equivalence: Equivalence | None


class Trial:
    """The original's behaviour on example inputs, and comparisons with it.

    Attributes:
        survey: the model and its sites.
        clashes: the original's own run raises for an in-place operation.
        clashing: the sites that overwrite what backward needs.
        readers: load-bearing sites, and who reads what they overwrite.
        state: those of them that write state of the model.
        doubtful: sites that may be read on another path, for all that the source tells.
        trusted: those of them that the example inputs have decided.
    """

    def __init__(self, survey: Survey, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.survey = survey
        self.call = CallArguments(args, kwargs)
        with self._plain([]):
            self.reference = observe_reference(survey.model, args, kwargs)
        self.modes: tuple[Mode, ...] = tuple(seen.mode for seen in self.reference.values())
        self.clashes = any(map(_is_clash, self.reference.values()))
        self.readers: dict[AnySite, str] = {}
        self.state: set[AnySite] = set()
        self.doubtful: set[AnySite] = set()
        self.trusted: set[AnySite] = set()
        self.clashing: Mapping[AnySite, SavedAndOverwritten] = {}
        if self.clashes:
            self.clashing = sites_of(self._clashes_left({}, ()), survey.sites())

    @cached_property
    def source(self) -> SourceVerdicts:
        """What the source alone says."""
        return verdicts_from_source(self.survey)

    @property
    def verdicts(self) -> Mapping[AnySite, SiteVerdict]:
        """What the source says of each site."""
        return self.source.sites

    @cached_property
    def by_source(self) -> dict[AnySite, Decision]:
        """What would be done without example inputs."""
        return decide_without_inputs(self.survey, self.verdicts)

    def confirm(self, decisions: Mapping[AnySite, Decision]) -> Outcome:
        """Compare the model converted by some decisions with the original.

        Kept are load-bearing sites, see NOTE [ Stale reads ]; sites of a model that trains
        whose gradient is rounded otherwise out of place (a write through a view gives the
        gradient other strides); and those without which the models compute the same. If one
        of them overwrites what backward needs, who has saved it gets a copy.

        Raises:
            MismatchError: the original does not repeat itself.
            ConversionError: a clash remains that cannot be mended; both lines are named.
        """
        decided = dict(decisions)
        self._keep_load_bearing(decided)
        copies = self._mended(decided)
        equivalence = self.compare(_swapped(decided), copies)
        if not equivalence.equivalent:
            self._check_repeatable()
            rounded = not self.clashes and _only_gradients(equivalence)
            for site in self._guilty(decided, copies):
                decided[site] = ROUNDED if rounded else CHANGED
            copies = self._mended(decided)
            equivalence = self.compare(_swapped(decided), copies)
        if not equivalence.equivalent:
            raise _mismatch(equivalence, copies)
        return Outcome(decided, copies, equivalence)

    def intend(self, outcome: Outcome) -> Outcome:
        """Swap the load-bearing sites too, other than those that write state of the model.

        The comparison then tells what has changed.
        """
        readers = {s: reader for s, reader in self.readers.items() if s not in self.state}
        decided = dict(outcome.decisions)
        decided.update({site: intended(reader) for site, reader in readers.items()})
        copies = self._mended(decided)
        return Outcome(decided, copies, self.compare(_swapped(decided), copies))

    def _keep_load_bearing(self, decided: dict[AnySite, Decision]) -> None:
        """Leave in place what is read afterwards, or may be on a path that was not taken."""
        ran = self._keep_read(decided)
        swapped = [site for site in _swapped(decided) if decided[site] is not DONE]
        for site in swapped:
            verdict = self.verdicts[site]
            if site not in ran:
                decided[site] = not_exercised(self.by_source[site])
            elif verdict.read and site not in self.trusted:
                decided[site] = read_elsewhere(verdict)
                if verdict.effect is not Effect.LOAD_BEARING:
                    self.doubtful.add(site)
        if any(decided[site].verdict == "keep" for site in swapped):
            self._keep_read(decided)

    def _keep_read(self, decided: dict[AnySite, Decision]) -> set[AnySite]:
        """Leave in place what is read on the example inputs; the sites that ran."""
        ran: set[AnySite] = set()
        while True:
            watch = self._watch(_swapped(decided))
            ran |= watch.ran
            if not watch.found:
                return ran
            self.readers.update(watch.found)
            decided.update({s: load_bearing(reader) for s, reader in watch.found.items()})

    def _mended(self, decided: dict[AnySite, Decision]) -> tuple[SaverCopy, ...]:
        """Mend clashes; where that fails, the example inputs decide what the source leaves open."""
        if not self.clashes:
            return ()
        try:
            return self._mend(decided)
        except ConversionError:
            doubtful = [site for site in self.doubtful if decided[site].verdict == "keep"]
            if not doubtful:
                raise
            self.trusted.update(doubtful)
            decided.update(dict.fromkeys(doubtful, CLASH))
            self._keep_read(decided)
            return self._mend(decided)

    def _mend(self, decided: dict[AnySite, Decision]) -> tuple[SaverCopy, ...]:
        """Swap or copy until no clash is left that backward would raise for."""
        copies: dict[Any, SaverCopy] = {}
        for wide in (False, True):
            while clashes := self._clashes_left(decided, tuple(copies.values())):
                spared = [site for site, decision in decided.items() if decision in _SPARED]
                found = {*sites_of(clashes, spared)}
                savers = {s for c in clashes if c.saves_result for s in saver_sites(self.survey, c)}
                found |= savers.intersection(spared)
                if found:
                    decided.update(dict.fromkeys(found, CLASH))
                    self._keep_load_bearing(decided)
                    continue
                swapped = _swapped(decided)
                made = [
                    copy
                    for clash in clashes
                    for copy in saver_copies(self.survey, clash, swapped, wide=wide)
                    if copy.key not in copies
                ]
                if not made:
                    break
                copies.update({copy.key: copy for copy in made})
        clashes = [clash for clash in clashes if self._is_looked_into(clash)]
        made_copies = tuple(copies.values())
        if clashes and self._raises(_swapped(decided), made_copies):
            raise _unmended(clashes)
        return made_copies

    def _is_looked_into(self, clash: SavedAndOverwritten) -> bool:
        """Whether a line that overwrites is a site; what was skipped is reported anyway."""
        return any(
            writer.is_at(site)
            and (isinstance(site, FlagSite) or writer.module in map(id, site.modules.values()))
            for writer in clash.writers
            for site in self.survey.sites()
        )

    def _clashes_left(
        self, decided: Mapping[AnySite, Decision], copies: Sequence[SaverCopy]
    ) -> list[SavedAndOverwritten]:
        with self._plain(_swapped(decided), copies):
            return find_clashes(self.survey.model, self.call, self.modes)

    @contextmanager
    def _plain(
        self, swapped: Sequence[AnySite], copies: Sequence[SaverCopy] = ()
    ) -> Iterator[None]:
        """The model with some sites swapped, and without the checkpoints of its user.

        What these compute is what they compute without a checkpoint; torch's own is silent
        about a clash inside of it, and moves buffers twice.
        """
        with converted(self.survey, swapped, copies, self.survey.rerouted), run_plain():
            yield

    def _guilty(
        self, decided: Mapping[AnySite, Decision], copies: Sequence[SaverCopy]
    ) -> list[AnySite]:
        return find_guilty(
            _swapped(decided), lambda sites: not self.compare(sites, copies).equivalent
        )

    def compare(self, swapped: Sequence[AnySite], copies: Sequence[SaverCopy] = ()) -> Equivalence:
        """Compare the model with some sites swapped; afterwards it is as it was."""
        return compare_modes(self.reference, self._observe(swapped, copies))

    def _raises(self, swapped: Sequence[AnySite], copies: Sequence[SaverCopy]) -> bool:
        """Whether backward asks for what is overwritten; a custom Function may not."""
        return any(map(_is_clash, self._observe(swapped, copies).values()))

    def _observe(
        self, swapped: Sequence[AnySite], copies: Sequence[SaverCopy]
    ) -> dict[str, Observation]:
        with self._plain(swapped, copies), out_of_place():
            return self._observed()

    def _observed(self) -> dict[str, Observation]:
        model, call = self.survey.model, self.call
        return observe_modes(model, call.inputs, call.kwargs, self.modes, like=self.reference)

    def observe_plain(self, outcome: Outcome) -> dict[str, Observation]:
        """What the converted model does without checkpoints."""
        return self._observe(_swapped(outcome.decisions), outcome.copies)

    def compare_checkpointed(
        self,
        outcome: Outcome,
        plain: Mapping[str, Observation],
        regions: Sequence[RegionSite],
        chosen: Sequence[nn.Module] = (),
        forgetting: Forgetting | None = None,
    ) -> tuple[Equivalence, bool]:
        """Compare the converted model, some regions and modules of it checkpointed.

        Args:
            outcome: the conversion.
            plain: what it does without checkpoints.
            regions: regions that are checkpointed.
            chosen: modules that are.
            forgetting: results that the forward forgets.

        Returns:
            The comparison with the original, and whether it computes what it does without
            checkpoints; where the original cannot run backward, only that tells of gradients.
        """
        with self.with_regions(outcome, regions, chosen, forgetting), out_of_place():
            seen = self._observed()
        raises = any(
            seen[mode].gradient_error is not None and plain[mode].gradient_error is None
            for mode in plain
        )
        equivalent = compare_modes(plain, seen).equivalent and not raises
        return compare_modes(self.reference, seen), equivalent

    @contextmanager
    def with_regions(
        self,
        outcome: Outcome,
        regions: Sequence[RegionSite],
        chosen: Sequence[nn.Module] = (),
        forgetting: Forgetting | None = None,
    ) -> Iterator[None]:
        """The converted model with some regions and modules checkpointed."""
        swapped = _swapped(outcome.decisions)
        with converted(self.survey, swapped, outcome.copies, regions, chosen, forgetting):
            yield

    def _watch(self, swapped: Sequence[AnySite]) -> StaleReads:
        """Run the model with some sites swapped, and watch who reads old tensors."""
        watch = StaleReads(swapped)
        with self._plain(swapped):
            for mode in self.modes:
                with preserved(self.survey.model):
                    set_mode(self.survey.model, mode)
                    seed_everything(0)
                    handed, _ = clone_inputs(self.call, requires_grad=False)
                    watch.run(self.survey.model, handed)
        self.state |= watch.state
        return watch

    def _check_repeatable(self) -> None:
        plain = self.compare([])
        if not plain.equivalent:
            raise MismatchError(
                "the original does not compute the same twice from one state and one seed, so "
                f"nothing can be compared with it:\n{plain}\nMake it deterministic, or convert "
                "it without example_inputs."
            )


@contextmanager
def converted(
    survey: Survey,
    swapped: Sequence[AnySite],
    copies: Sequence[SaverCopy] = (),
    regions: Sequence[RegionSite] = (),
    chosen: Sequence[nn.Module] = (),
    forgetting: Forgetting | None = None,
) -> Iterator[None]:
    """A model with some sites swapped and regions checkpointed; afterwards it is as it was."""
    rewriting = make_rewriting(
        survey, swapped, copies, regions, chosen, forgets=forgetting is not None
    )
    undo = apply_swaps(survey, swapped, rewriting, None, regions, chosen, forgetting)
    try:
        yield
    finally:
        undo()


def _mismatch(equivalence: Equivalence, copies: Sequence[SaverCopy]) -> MismatchError:
    lines = "\n".join(f"  {copy}" for copy in copies)
    return MismatchError(
        f"converted, the model computes something else: {equivalence.differences[0]}. What is "
        f"saved for backward was copied at\n{lines}\nbecause an overwrite there is part of what "
        "the model computes. Write `.clone()` on these lines by hand where the overwritten "
        "tensor goes on to be used. The model is unchanged."
    )


def _unmended(clashes: Sequence[SavedAndOverwritten]) -> ConversionError:
    lines = "\n".join(f"  {clash}" for clash in clashes)
    return ConversionError(
        "the overwrite is part of what the model computes and cannot be made out of place, and "
        f"the operation that has saved the old values cannot be given a copy:\n{lines}\nWrite "
        "`.clone()` behind the value that is saved, on the line that saves it, where the "
        "overwritten tensor goes on to be used. The model is unchanged."
    )


def _swapped(decisions: Mapping[AnySite, Decision]) -> list[AnySite]:
    return [site for site, decision in decisions.items() if decision.verdict == "swap"]


def _only_gradients(equivalence: Equivalence) -> bool:
    """Whether the forward is the same, so that gradients can differ by their rounding alone."""
    return all("gradient" in difference.what for difference in equivalence.differences)


def _is_clash(seen: Observation) -> bool:
    error = seen.gradient_error or seen.input_gradient_error or seen.error
    if error is None or is_out_of_memory(error.exception):
        return False
    return any(text in str(error.exception) for text in _INPLACE_MESSAGES)
