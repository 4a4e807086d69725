"""A memory budget as a user says it."""

import re
from dataclasses import dataclass
from typing import Final

from safemodules.errors import OptionError

__all__ = ["Budget"]

FORMS: Final = (
    'a number of bytes, a size such as "2 GiB" or "300 MB", or a share of what the step needs as '
    'it is, such as "50%" or "50% of activations"'
)
_UNITS: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b|%)(\s+of\s+activations)?", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """What a step may allocate beyond what was there before it.

    Attributes:
        amount: bytes, or a share.
        is_share: whether it is a share of what the step needs as it is.
        gradients: whether the gradients of the parameters count too.

    Example:
        >>> Budget.parse("50%").of(1000), Budget.parse("1.5 KiB").of(1000), Budget.parse(7).of(9)
        (500, 1536, 7)
        >>> Budget.parse("50% of activations").gradients
        False
    """

    amount: float
    is_share: bool = False
    gradients: bool = True

    @classmethod
    def parse(cls, budget: int | str) -> "Budget":
        """Read a budget.

        Args:
            budget: bytes, ``"2 GiB"``, ``"50%"`` of the peak of the step, or
                ``"50% of activations"``, which leaves the gradients of parameters out.

        Raises:
            OptionError: it is none of these.
        """
        if isinstance(budget, int) and not isinstance(budget, bool) and budget > 0:
            return cls(budget)
        found = _SIZE.fullmatch(budget.strip()) if isinstance(budget, str) else None
        if found is None or float(found[1]) <= 0:
            raise OptionError(f"memory_budget={budget!r} is not a budget; expected {FORMS}.")
        number, unit, activations = float(found[1]), found[2].lower(), found[3] is not None
        if unit == "%":
            return cls(number / 100, is_share=True, gradients=not activations)
        return cls(number * _UNITS[unit], gradients=not activations)

    def of(self, whole: int) -> int:
        """Its bytes, where the step needs some bytes as it is."""
        return int(self.amount * whole) if self.is_share else int(self.amount)
