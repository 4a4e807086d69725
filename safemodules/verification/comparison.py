"""Comparison of two observations of one mode."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from safemodules.verification.digests import TensorDigest, difference_reason
from safemodules.verification.observation import Mode, Observation
from safemodules.verification.reference import gradient_reason

__all__ = ["Difference", "compare", "describe_checks"]

What: TypeAlias = Literal[
    "output", "gradient", "input gradient", "buffer", "attribute", "rng", "input", "keys", "error"
]
_Digests: TypeAlias = Mapping[str, TensorDigest | None]


@dataclass(frozen=True)
class Difference:
    """One thing in which the candidate is not the reference.

    Args:
        what: What kind of thing.
        name: Path or dotted name.
        reason: How it differs, in one line.
        mode: Mode of the run.
    """

    what: What
    name: str
    reason: str
    mode: Mode = "keep"

    def __str__(self) -> str:
        return f"{self.mode}: {self.what} {self.name}: {self.reason}"


class _Comparison:
    """Collects the differences of two observations of one mode."""

    def __init__(
        self, reference: Observation, candidate: Observation, rtol: float, atol: float
    ) -> None:
        self.reference = reference
        self.candidate = candidate
        self.rtol = rtol
        self.atol = atol
        self.found: list[Difference] = []

    def add(self, what: What, name: str, reason: str | None) -> None:
        if reason is not None:
            self.found.append(Difference(what, name, reason, self.reference.mode))

    def reason(
        self, expected: TensorDigest | None, found: TensorDigest | None, *, strides: bool = True
    ) -> str | None:
        return difference_reason(expected, found, rtol=self.rtol, atol=self.atol, strides=strides)

    def digests(
        self, what: What, reference: _Digests, candidate: _Digests, *, strides: bool = True
    ) -> None:
        for name in _union(reference, candidate):
            expected, found = reference.get(name), candidate.get(name)
            self.add(what, name, self.reason(expected, found, strides=strides))

    def texts(self, what: What, reference: Mapping[str, str], candidate: Mapping[str, str]) -> None:
        for name in _union(reference, candidate):
            expected, found = reference.get(name, "missing"), candidate.get(name, "missing")
            if expected != found:
                self.add(what, name, f"is {found}, expected {expected}")

    def keys(self) -> None:
        expected, found = self.reference.keys, self.candidate.keys
        for name in _union(dict.fromkeys(expected), dict.fromkeys(found)):
            if name not in found:
                self.add("keys", name, "missing from the candidate's state_dict")
            elif name not in expected:
                self.add("keys", name, "not in the reference's state_dict")
        if set(expected) == set(found) and expected != found:
            self.add("keys", "state_dict", "the keys stand in another order")

    def attributes(self) -> None:
        reference, candidate = self.reference, self.candidate
        for name in _union(reference.attributes, candidate.attributes):
            if name not in reference.attribute_names or name not in candidate.attribute_names:
                continue  # an attribute of one class only says nothing about the other
            expected, found = reference.attributes.get(name), candidate.attributes.get(name)
            if isinstance(expected, TensorDigest) and isinstance(found, TensorDigest):
                self.add("attribute", name, self.reason(expected, found))
            elif expected != found:
                unchanged = "unchanged by the run"
                self.add(
                    "attribute", name, f"is {found or unchanged}, expected {expected or unchanged}"
                )

    def gradients(self) -> None:
        reference, candidate = self.reference, self.candidate
        if reference.gradients is not None and candidate.gradients is not None:
            # A parameter's .grad takes the parameter's strides, whatever autograd returned.
            self.digests("gradient", reference.gradients, candidate.gradients, strides=False)
            if reference.input_gradients is not None and candidate.input_gradients is not None:
                self.digests(
                    "input gradient",
                    reference.input_gradients,
                    candidate.input_gradients,
                    strides=False,
                )
                self.graph_membership()
            elif reference.input_gradients is not None and candidate.input_gradient_error:
                raised = candidate.input_gradient_error
                self.add("error", "backward", f"the candidate raises with input gradients {raised}")
        elif reference.gradients is not None:
            self.add("error", "backward", f"the candidate raises {candidate.gradient_error}")
        elif reference.reference_gradients is not None and candidate.kept_gradients is not None:
            self.functional_gradients()

    def graph_membership(self) -> None:
        for name in self.reference.outputs.keys() & self.candidate.outputs.keys():
            expected, found = self.reference.outputs[name], self.candidate.outputs[name]
            if expected.requires_grad != found.requires_grad:
                self.add(
                    "output",
                    name,
                    f"requires_grad is {found.requires_grad}, expected {expected.requires_grad}",
                )

    def functional_gradients(self) -> None:
        reference = self.reference.reference_gradients or {}
        candidate = self.candidate.kept_gradients or {}
        norms = [torch.linalg.vector_norm(g).item() for g in reference.values() if g is not None]
        for name in _union(reference, candidate):
            is_input = name.startswith(("inputs[", "kwargs["))
            if is_input and name not in candidate:
                continue  # the candidate ran with inputs that do not require grad
            what: What = "input gradient" if is_input else "gradient"
            reason = gradient_reason(
                reference.get(name),
                candidate.get(name),
                max(norms, default=0.0),
                self.reference.reference_tolerance,
            )
            self.add(what, name, reason)


def _union(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of both in the order of the first, then of the second."""
    yield from a
    yield from (name for name in b if name not in a)


def compare(
    reference: Observation, candidate: Observation, *, rtol: float = 0.0, atol: float = 0.0
) -> tuple[Difference, ...]:
    """Compare two observations of one mode.

    Where one of the runs has no gradients (its backward raised), what the other's backward
    did to buffers and random numbers is left out too.

    Args:
        reference: The run to be matched.
        candidate: The run to judge, of the same mode and seed.
        rtol: Relative tolerance; needs observations with ``keep_values``.
        atol: Absolute tolerance.

    Returns:
        All differences, outputs first.
    """
    comparison = _Comparison(reference, candidate, rtol, atol)
    if reference.error is not None or candidate.error is not None:
        expected, found = reference.error, candidate.error
        kinds = [type(error.exception) if error else None for error in (expected, found)]
        if kinds[0] is not kinds[1]:
            text = f"raises {found}" if found else "raises nothing"
            wanted = f"it raises {expected}" if expected else "the reference raises nothing"
            comparison.add("error", "forward", f"{text}; {wanted}")
        return tuple(comparison.found)
    both = reference.gradients is not None and candidate.gradients is not None
    comparison.digests("output", reference.outputs, candidate.outputs)
    comparison.texts("output", reference.structure, candidate.structure)
    comparison.gradients()
    comparison.digests(
        "buffer",
        reference.buffers if both else reference.forward_buffers,
        candidate.buffers if both else candidate.forward_buffers,
    )
    comparison.attributes()
    wanted_rng = reference.rng if both else reference.forward_rng
    found_rng = candidate.rng if both else candidate.forward_rng
    shared = wanted_rng.keys() & found_rng.keys()  # a stream may come up in between: an import
    comparison.texts(
        "rng",
        {name: wanted_rng[name] for name in shared},
        {name: found_rng[name] for name in shared},
    )
    comparison.digests("input", reference.inputs, candidate.inputs)
    comparison.texts("input", reference.input_structure, candidate.input_structure)
    comparison.keys()
    return tuple(comparison.found)


def describe_checks(reference: Observation, candidate: Observation) -> Iterator[str]:
    """Say what a comparison of two observations covered.

    Args:
        reference: The run to be matched.
        candidate: The run to judge.

    Yields:
        One line for each thing that was compared, or why it was not.
    """
    if reference.error is not None:
        yield f"not checked: the reference raises {reference.error}"
        return
    rest = "buffers, attributes, random numbers, inputs after the run, state_dict keys"
    if reference.gradients is not None:
        also = ", input gradients" if reference.input_gradients else ""
        yield f"outputs, gradients{also}, {rest}"
    else:
        yield f"outputs under no_grad, {rest} (the reference raised: {reference.gradient_error})"
        if candidate.gradient_error is not None:
            yield f"gradients not compared: the candidate raises {candidate.gradient_error}"
        elif reference.reference_gradients is not None and candidate.kept_gradients is not None:
            yield "gradients against functionalize"
        elif reference.reference_gradients is not None:
            yield "gradients not compared: the candidate was observed without like=reference"
    if any(not digest.hash for digest in reference.outputs.values()):
        yield "shapes only for outputs on the meta device, which have no values"
    yield from dict.fromkeys(reference.notes + candidate.notes)
