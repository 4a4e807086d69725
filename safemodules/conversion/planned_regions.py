"""A region of a plan as plain data."""

import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from safemodules.conversion.region_decisions import RegionDecision, RegionVerdict
from safemodules.conversion.regions import RegionSite
from safemodules.mutation.internals import user_class_of
from safemodules.mutation.sites import joined_path

__all__ = ["PlannedRegion", "planned_module", "planned_region"]


@dataclass(frozen=True)
class PlannedRegion:
    """A loop body or a call of torch's checkpoint, and what is decided about it.

    Attributes:
        filename: the file that holds it.
        lineno: its first line, counted from 1; 0 for a module.
        source: that line's text.
        kind: what it looks like.
        decision: ``"checkpoint"`` or ``"plain"``.
        reason: why.
        modules: all dotted paths of the modules that run it.
        calls: how often it ran in a forward of the example inputs.
        saved_bytes: bytes that are not kept from forward to backward any more.
        seconds: seconds by which a step gets longer, as measured in one forward.
    """

    filename: str
    lineno: int
    source: str
    kind: str
    decision: RegionVerdict
    reason: str
    modules: tuple[str, ...]
    calls: int = 0
    saved_bytes: int = 0
    seconds: float = 0.0

    def below(self, path: str) -> "PlannedRegion":
        """The same region of a model that holds this one at a path."""
        return replace(self, modules=tuple(joined_path(path, name) for name in self.modules))

    def among(self, converted: Collection[str]) -> "PlannedRegion":
        """The same region, after parts of the model were reverted."""
        if self.decision == "plain" or not self.modules:
            return self
        modules = tuple(name for name in self.modules if name in converted)
        if not modules:
            return replace(self, decision="plain", reason="was checkpointed, and is reverted")
        return replace(self, modules=modules)

    def to_data(self) -> dict[str, Any]:
        """The region as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        where = (self.modules or ("",))[0] or "the model itself"
        costs = ""
        if self.saved_bytes:
            costs = (
                f"; {self.calls} calls, {self.saved_bytes / 2**20:.2f} MiB less kept for backward, "
                f"about {1000 * self.seconds:.1f} ms more per step"
            )
        return (
            f"{self.decision:10}  {self.filename}:{self.lineno} `{self.source}` ({self.kind} in "
            f"{where}): {self.reason}{costs}"
        )


def planned_module(path: str, module: nn.Module) -> PlannedRegion:
    """A module that is checkpointed whenever it is called, as plain data."""
    cls = user_class_of(type(module))
    filename = getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    return PlannedRegion(filename, 0, cls.__name__, "module", "checkpoint", "asked for", (path,))


def planned_region(region: RegionSite, decision: RegionDecision) -> PlannedRegion:
    """A region of a living model and what was decided about it, as plain data."""
    lineno = region.found.lineno
    return PlannedRegion(
        region.file.filename,
        lineno,
        region.file.line(lineno),
        str(region.kind),
        decision.verdict,
        decision.reason,
        tuple(region.modules),
        decision.calls,
        decision.saved_bytes,
        decision.seconds,
    )
