"""What the zoo puts to the test: safemodules, and a naive converter as a control."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from benchmarks.cases import Call


@dataclass(frozen=True)
class Sites:
    """How many in-place sites a converter found, and what it decided about them."""

    found: int = 0
    swapped: int = 0
    kept: int = 0
    other: int = 0


class Converter(Protocol):
    """A way to convert a model and to take the conversion back."""

    name: str
    version: str
    refusals: tuple[type[Exception], ...]

    def convert(self, model: nn.Module, call: Call | None) -> nn.Module:
        """Convert the model, checked with the arguments of a call where one is given."""

    def sites(self, model: nn.Module) -> Sites:
        """Count the sites of a converted model."""

    def revert(self, model: nn.Module) -> nn.Module:
        """Take the conversion back."""


class SafemodulesConverter:
    """The library of this repository."""

    name = "safemodules"

    def __init__(self) -> None:
        import safemodules

        self._library = safemodules
        self.version: str = safemodules.__version__
        self.refusals: tuple[type[Exception], ...] = (safemodules.SafeModulesError,)

    def convert(self, model: nn.Module, call: Call | None) -> nn.Module:
        """Convert in default settings."""
        if call is None:
            return self._library.convert_model(model)
        return self._library.convert_model(
            model, example_inputs=call.args, example_kwargs=call.kwargs
        )

    def sites(self, model: nn.Module) -> Sites:
        """Count the sites of the plan by decision."""
        plan = self._library.conversion_plan(model)
        counts = Counter(_text(site.decision) for site in plan.sites)
        swapped, kept = counts.pop("swap", 0), counts.pop("keep", 0)
        return Sites(len(plan.sites), swapped, kept, sum(counts.values()))

    def revert(self, model: nn.Module) -> nn.Module:
        """Restore classes and flags."""
        return self._library.revert_model(model)


class Unsafe(SafemodulesConverter):
    """The library, asked for the smallest change that makes a model train."""

    name = "unsafe"

    def convert(self, model: nn.Module, call: Call | None) -> nn.Module:
        """Swap only what overwrites what backward needs."""
        assert call is not None, "which sites do is found by running the model"
        return self._library.convert_model(
            model, example_inputs=call.args, example_kwargs=call.kwargs, inplace="unsafe"
        )


class FlagsOff:
    """What people write by hand: set every ``inplace`` flag to False, ask nothing.

    The control of the comparison: it needs no library, and it changes what some models
    compute.
    """

    name = "flags"
    version = "-"
    refusals: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self._flipped: list[nn.Module] = []

    def convert(self, model: nn.Module, call: Call | None) -> nn.Module:
        """Set the flags."""
        self._flipped = [m for m in model.modules() if getattr(m, "inplace", False) is True]
        for module in self._flipped:
            module.inplace = False  # type: ignore[assignment]
        return model

    def sites(self, model: nn.Module) -> Sites:
        """Every flag is swapped."""
        return Sites(len(self._flipped), len(self._flipped))

    def revert(self, model: nn.Module) -> nn.Module:
        """Set the flags back."""
        for module in self._flipped:
            module.inplace = True  # type: ignore[assignment]
        return model


CONVERTERS: dict[str, type[SafemodulesConverter] | type[FlagsOff]] = {
    "safemodules": SafemodulesConverter,
    "unsafe": Unsafe,
    "flags": FlagsOff,
}


def make_converter(name: str) -> Converter:
    """A new converter of that name."""
    return CONVERTERS[name]()


def _text(decision: object) -> str:
    """The text of a decision, be it a string or a member of an enumeration."""
    return str(getattr(decision, "value", decision))
