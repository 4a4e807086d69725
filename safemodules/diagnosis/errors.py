"""Clashes that torch reports at the operation itself, before any backward."""

from collections.abc import Callable

from safemodules.diagnosis.findings import Clash
from safemodules.diagnosis.report import site_of
from safemodules.mutation.frames import Where
from safemodules.mutation.recorder import Recorder

# What torch says at once -> what to do.
AT_ONCE: tuple[tuple[str, str], ...] = (
    (
        "is a view and is being modified inplace",
        "The written tensor is a view of a kind that autograd cannot write through (one of "
        "several outputs, or behind a backward hook). safemodules.convert_model(model, "
        "example_inputs) computes this line out of place.",
    ),
    (
        "a leaf Variable that requires grad is being used in an in-place operation",
        "A parameter or input that requires grad cannot be written while gradients are on. "
        "Write it under torch.no_grad(), or write a clone.",
    ),
    (
        "a view of a leaf Variable that requires grad is being used in an in-place operation",
        "A parameter or input that requires grad cannot be written while gradients are on. "
        "Write it under torch.no_grad(), or write a clone.",
    ),
)


def explain_failure(recorder: Recorder, names: Callable[[Where], str]) -> tuple[Clash, ...]:
    """The clash behind an operation that raised in the forward, if it is one."""
    if recorder.failure is None:
        return ()
    operation, error = recorder.failure
    advice = next((advice for text, advice in AT_ONCE if text in str(error)), None)
    if advice is None or not operation.inputs:
        return ()
    site = site_of(operation, names)
    target = operation.inputs[0]
    made = recorder.failed_input
    saved = site_of(made, names) if made is not None else site
    what = f"a {str(target.dtype).removeprefix('torch.')} tensor of sizes {list(target.shape)}"
    return (Clash(site, saved, target.version, target.version, advice, what, (site,)),)
