"""Try a conversion on example inputs, and find the sites that change what is computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from safemodules.conversion.decisions import ROUNDED, Decision
from safemodules.conversion.rewriter import make_rewriting
from safemodules.conversion.survey import AnySite, SourceSite, Survey
from safemodules.conversion.swap import apply_swaps
from safemodules.errors import MismatchError
from safemodules.mutation.recorder import StateWrite, record_state_writes
from safemodules.state import preserved
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

_INPLACE_MESSAGES = ("modified by an inplace operation", "is being modified inplace")


class Trial:
    """The original's behaviour on example inputs, and comparisons with it.

    Attributes:
        survey: the model and its sites.
        clashes: the original's own run raises for an in-place operation.
    """

    def __init__(self, survey: Survey, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.survey = survey
        self.args, self.kwargs = args, kwargs
        self.reference = observe_reference(survey.model, args, kwargs)
        self.clashes = any(_is_clash(seen) for seen in self.reference.values())

    def confirm(
        self, decisions: Mapping[AnySite, Decision]
    ) -> tuple[dict[AnySite, Decision], Equivalence]:
        """Compare the model converted by some decisions with the original.

        Kept are sites that are found to write state of the model, and sites of a model that
        trains whose gradient is rounded otherwise out of place (a write through a view gives
        the gradient other strides). Any other mismatch raises.

        Raises:
            MismatchError: the sites that change what is computed are named.
        """
        decided = dict(decisions)
        equivalence = self.compare(_swapped(decided))
        if equivalence.equivalent:
            return decided, equivalence
        decided.update(self._state_sites(decided))
        equivalence = self.compare(_swapped(decided))
        if not equivalence.equivalent and not self.clashes and _only_gradients(equivalence):
            for site in self._guilty(decided):
                decided[site] = ROUNDED
            equivalence = self.compare(_swapped(decided))
        if equivalence.equivalent:
            return decided, equivalence
        raise self._mismatch(decided, equivalence)

    def _guilty(self, decided: Mapping[AnySite, Decision]) -> list[AnySite]:
        return find_guilty(_swapped(decided), lambda sites: not self.compare(sites).equivalent)

    def compare(self, swapped: Sequence[AnySite]) -> Equivalence:
        """Compare the model with some sites swapped; afterwards it is as it was."""
        sources = [site for site in swapped if isinstance(site, SourceSite)]
        undo = apply_swaps(self.survey, swapped, make_rewriting(self.survey, sources), None)
        try:
            modes: tuple[Mode, ...] = tuple(seen.mode for seen in self.reference.values())
            seen = observe_modes(
                self.survey.model, self.args, self.kwargs, modes, like=self.reference
            )
            return compare_modes(self.reference, seen)
        finally:
            undo()

    def _state_sites(self, decided: Mapping[AnySite, Decision]) -> dict[AnySite, Decision]:
        """Sites that write a buffer or other state of the model through a local name."""
        writes: dict[tuple[str, int], StateWrite] = {}
        for mode in self.reference:
            with preserved(self.survey.model):
                if mode != "keep":
                    self.survey.model.train(mode == "train")
                call = CallArguments(self.args, self.kwargs)
                handed, _ = clone_inputs(call, requires_grad=False)
                for write in record_state_writes(self.survey.model, handed.inputs, handed.kwargs):
                    writes[write.filename, write.lineno] = write
        found = {}
        for site, decision in decided.items():
            there = writes.get((site.site.filename, site.site.lineno))
            if there is not None and decision.verdict == "swap":
                found[site] = Decision("keep", f"writes {there.name}, which is state of the model")
        return found

    def _mismatch(
        self, decided: Mapping[AnySite, Decision], equivalence: Equivalence
    ) -> MismatchError:
        plain = self.compare([])
        if not plain.equivalent:
            return MismatchError(
                "the original does not compute the same twice from one state and one seed, so "
                f"nothing can be compared with it:\n{plain}\nMake it deterministic, or convert "
                "it without example_inputs."
            )
        guilty = self._guilty(decided)
        lines = "\n".join(f"  {site.site}" for site in guilty)
        return MismatchError(
            f"out of place, the model computes something else: {equivalence.differences[0]}. "
            f"The overwrite is part of its function at\n{lines}\nbecause the old tensor is read "
            "under another name, or by the caller. Rewrite these lines so that every reader "
            "names the new tensor, or convert without example_inputs, which keeps such sites. "
            "The model is unchanged."
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


def find_guilty(
    sites: Sequence[AnySite], differs: Callable[[Sequence[AnySite]], bool]
) -> list[AnySite]:
    """The sites that make a difference, by bisection.

    Args:
        sites: sites that together make a difference.
        differs: whether swapping only some sites makes one.

    Returns:
        At least one site; without those returned, nothing differs.

    Example:
        >>> find_guilty(list(range(9)), lambda some: 3 in some or {5, 7} <= set(some))
        [3, 5, 7]
    """
    guilty: list[AnySite] = []
    rest = list(sites)
    while rest and differs(rest):
        found = _one_group(rest, differs)
        guilty += found
        rest = [site for site in rest if site not in found]
    return sorted(guilty, key=list(sites).index)


def _one_group(sites: list[AnySite], differs: Callable[[Sequence[AnySite]], bool]) -> list[AnySite]:
    """A smallest group of sites that makes a difference together."""
    group: list[AnySite] = []
    rest = sites
    while not (group and differs(group)):
        # the shortest prefix that differs, with the group so far, ends in a guilty site
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            if differs([*group, *rest[:middle]]):
                high = middle
            else:
                low = middle
        group.append(rest[high - 1])
        rest = rest[: high - 1]
    return group
