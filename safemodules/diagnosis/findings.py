"""Findings of a diagnosis, as plain data."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from safemodules.diagnosis import page, text
from safemodules.mutation.frames import Line
from safemodules.mutation.sites import Site

__all__ = ["Clash", "Diagnosis", "ModuleEntry", "SiteReport"]

SiteVerdict = Literal["harmless", "clash"]


@dataclass(frozen=True)
class Clash:
    """A tensor that backward needs was overwritten.

    Attributes:
        mutated_at: the first line that overwrote it.
        saved_at: the line whose operation had saved it.
        expected_version: version of the tensor when it was saved.
        found_version: its version when backward looks, or would look.
        advice: what to do.
        tensor: what was overwritten: dtype, sizes, and what it was to the saving operation.
        mutations: all lines that overwrote it, in the order of time.
        possible: whether backward asks for the tensor is up to a custom Function.
        silent: torch makes no check of its own here, so that the gradient is wrong instead.
        cause: a word for the cause.
        convertible: ``convert_model`` mends it.
        mutated_called_at: the user's call, where the line that overwrote is in a library.
        saved_called_at: the user's call, where the line that saved is in a library.
    """

    mutated_at: Site
    saved_at: Site
    expected_version: int
    found_version: int
    advice: str
    tensor: str = ""
    mutations: tuple[Site, ...] = ()
    possible: bool = False
    silent: bool = False
    cause: str = ""
    convertible: bool = False
    mutated_called_at: Line | None = None
    saved_called_at: Line | None = None

    def __str__(self) -> str:
        return text.clash_text(self)


@dataclass(frozen=True)
class SiteReport:
    """What one site did in the run.

    Attributes:
        site: the line that overwrites.
        verdict: ``"clash"`` if it overwrote what backward needs, else ``"harmless"``.
        calls: how often it wrote.
        bytes: bytes that an out-of-place operation would keep for backward, in all calls;
            0 for a harmless site, whose old value nothing keeps.
        called_at: the user's call, where the site is in a library.
    """

    site: Site
    verdict: SiteVerdict
    calls: int
    bytes: int
    called_at: Line | None = None


@dataclass(frozen=True)
class ModuleEntry:
    """A module of the diagnosed model.

    Attributes:
        path: its dotted path, empty for the model itself.
        kind: name of its class.
    """

    path: str
    kind: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found in one run of a model.

    Attributes:
        clashes: overwritten tensors that backward needs.
        reports: every site that wrote, clashes first.
        warnings: what torch's own check does not see, and what may go wrong.
        error: the exception that the forward raised, as text; the report goes up to there.
        modules: the model's modules, parents first; empty if no model was given.
    """

    clashes: tuple[Clash, ...] = ()
    reports: tuple[SiteReport, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    modules: tuple[ModuleEntry, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site that wrote, clashes first."""
        return tuple(report.site for report in self.reports)

    def to_text(self, width: int | None = None) -> str:
        """The diagnosis as text.

        Args:
            width: columns; the terminal's by default.
        """
        return text.diagnosis_text(self, width)

    def to_json(self) -> str:
        """The diagnosis as a JSON object."""
        return json.dumps(asdict(self), indent=2)

    def to_html(self, title: str = "safemodules diagnosis") -> str:
        """The diagnosis as one self-contained page, with the module tree and source excerpts."""
        return page.document(self, title)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return page.fragment(self)
