"""The verdict of a comparison, and the public verb that makes one."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from safemodules.errors import EquivalenceError
from safemodules.verification.comparison import Difference, compare, describe_checks
from safemodules.verification.modes import (
    as_arguments,
    check_reference,
    observe_modes,
    observe_reference,
)
from safemodules.verification.observation import Mode, Observation
from safemodules.verification.traces import first_difference, trace_modules

__all__ = ["Check", "Equivalence", "compare_modes", "verify"]


@dataclass(frozen=True)
class Check:
    """What was compared in one mode, or why it was not.

    Args:
        mode: Mode of the runs.
        text: The check, in one line.
    """

    mode: Mode
    text: str

    def __str__(self) -> str:
        return f"{self.mode}: {self.text}"


@dataclass(frozen=True)
class Equivalence:
    """The verdict of a comparison.

    Args:
        differences: Everything that differs.
        checks: What was compared in each mode.
        first_module: Dotted name of the first module, in the order of the calls, whose
            output differs (empty for the model itself); None if none does, or none was
            looked for.
        rtol: Relative tolerance; 0 for a comparison of bits.
        atol: Absolute tolerance.
    """

    differences: tuple[Difference, ...]
    checks: tuple[Check, ...]
    first_module: str | None = None
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def equivalent(self) -> bool:
        """Whether nothing differs in what was checked."""
        return not self.differences

    def raise_if_different(self) -> None:
        """Raise if anything differs.

        Raises:
            EquivalenceError: With the differences as its text.
        """
        if not self.equivalent:
            raise EquivalenceError(str(self))

    def to_json(self) -> str:
        """Return the verdict as a JSON object."""
        return json.dumps({"equivalent": self.equivalent, **asdict(self)}, indent=2)

    def __str__(self) -> str:
        exact = not (self.rtol or self.atol)
        how = "bit for bit" if exact else f"within rtol={self.rtol:g}, atol={self.atol:g}"
        lines = [f"equivalent {how}" if self.equivalent else f"not equivalent {how}"]
        if self.first_module is not None:
            lines.append(f"  first module that differs: {self.first_module or 'the model itself'}")
        lines += [f"  differs in {difference}" for difference in self.differences[:20]]
        if len(self.differences) > 20:
            lines.append(f"  and in {len(self.differences) - 20} more")
        lines += [f"  checked in {check}" for check in self.checks]
        return "\n".join(lines)


def compare_modes(
    reference: Mapping[str, Observation],
    candidate: Mapping[str, Observation],
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> Equivalence:
    """Compare the observations of two models, mode by mode.

    See NOTE [ Reference First, Then The Candidate ] in ``modes.py``.

    Args:
        reference: What :func:`observe_reference` returned.
        candidate: What :func:`observe_modes` returned with ``like=reference``.
        rtol: Relative tolerance; needs observations with ``keep_values``.
        atol: Absolute tolerance.

    Returns:
        The verdict; its ``first_module`` is not looked for.

    Raises:
        NonFiniteReferenceError: An output of the reference holds NaN.

    Example:
        >>> import torch
        >>> from safemodules.verification import compare_modes, observe_modes, observe_reference
        >>> net, x = torch.nn.Sequential(torch.nn.ReLU()), torch.linspace(-1, 1, 4)
        >>> reference = observe_reference(net, (x,))
        >>> net[0].inplace = True
        >>> candidate = observe_modes(net, (x,), like=reference)
        >>> print(compare_modes(reference, candidate).differences[0])
        train: input inputs[0]: values differ
    """
    check_reference(reference)
    differences: list[Difference] = []
    checks: list[Check] = []
    for mode, expected in reference.items():
        differences += compare(expected, candidate[mode], rtol=rtol, atol=atol)
        checks += [
            Check(expected.mode, text) for text in describe_checks(expected, candidate[mode])
        ]
    return Equivalence(tuple(differences), tuple(checks), rtol=rtol, atol=atol)


def verify(
    reference: nn.Module,
    candidate: nn.Module,
    example_inputs: object,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    modes: Sequence[Mode] = ("train", "eval"),
    rtol: float = 0.0,
    atol: float = 0.0,
    seed: int = 0,
    copy_parameters: bool | Collection[str] = False,
) -> Equivalence:
    """Compare what two models compute: outputs, gradients, buffers, random numbers, keys.

    Both run on copies of the inputs, in each mode, with equal seeds, one after the other.
    By default every bit must agree. Where the reference's backward raises, its outputs are
    compared under ``no_grad`` and the candidate's gradients with those of a functionalized
    run of the reference; ``checks`` of the result says so.

    Args:
        reference: The model to be matched. Both models, their gradients and the random
            number streams are afterwards as before.
        candidate: The model to judge; it may share parameters with the reference or be the
            same object.
        example_inputs: A tensor (or other single argument), or a tuple of all positional
            arguments of ``forward``.
        example_kwargs: Keyword arguments of ``forward``.
        modes: Any of ``"train"``, ``"eval"``, and ``"keep"`` for the flags as they are.
        rtol: Relative tolerance; outputs, gradients and buffers are then compared by value.
        atol: Absolute tolerance.
        seed: Seed of all random number streams, and of the loss that is differentiated.
        copy_parameters: Parameters that ``forward`` itself overwrites: names, or True for
            all. They are copied and put back after each run.

    Returns:
        The verdict, which is true to these inputs only. A branch that they do not take was
        not compared.

    Raises:
        ExampleInputError: The reference raises on these inputs in every mode.
        DeviceMismatchError: It does so, and is on another device than the inputs.
        NonFiniteReferenceError: An output of the reference holds NaN.
        StateError: A run changed a parameter, see ``copy_parameters``.

    Example:
        >>> import torch
        >>> from safemodules.verification import verify
        >>> relu, gelu = torch.nn.ReLU(), torch.nn.GELU()
        >>> x = torch.randn(3)
        >>> verify(relu, relu, x).equivalent, verify(relu, gelu, x).equivalent
        (True, False)
    """
    call = as_arguments(example_inputs), dict(example_kwargs or {})
    options: dict[str, Any] = {
        "seed": seed,
        "keep_values": rtol > 0 or atol > 0,
        "copy_parameters": copy_parameters,
    }
    expected = observe_reference(reference, *call, modes, **options)
    found = observe_modes(candidate, *call, modes, like=expected, **options)
    verdict = compare_modes(expected, found, rtol=rtol, atol=atol)
    if verdict.equivalent:
        return verdict
    again = observe_modes(reference, *call, modes, like=expected, **options)
    unstable = compare_modes(expected, again, rtol=rtol, atol=atol).differences
    notes = tuple(
        Check(d.mode, f"the reference differs from its own second run in {d.what} {d.name}")
        for d in unstable[:3]
    )
    first: str | None = None
    for mode in dict.fromkeys(difference.mode for difference in verdict.differences):
        traces = [
            trace_modules(model, *call, mode=mode, **options) for model in (reference, candidate)
        ]
        first = first_difference(*traces, rtol=rtol, atol=atol)
        if first is not None:
            break
    return replace(verdict, checks=verdict.checks + notes, first_module=first)
