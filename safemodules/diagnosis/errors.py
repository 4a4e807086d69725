"""Clashes that torch reports at the operation itself, before any backward."""

from safemodules.diagnosis.findings import Clash
from safemodules.diagnosis.report import Namer, describe_operand
from safemodules.mutation.recorder import Recorder

__all__ = ["AT_ONCE", "explain_failure"]

_LEAF = (
    "A parameter or input that requires grad cannot be written while gradients are on. Write "
    "it under torch.no_grad(), outside of what is differentiated, or write a clone."
)
# What torch says at once -> (a word for the cause, what to do, whether conversion mends it).
AT_ONCE: tuple[tuple[str, str, str, bool], ...] = (
    (
        "is a view and is being modified inplace",
        "written view",
        "The written tensor is a view of a kind that autograd cannot write through: one of "
        "several outputs, or behind a backward hook, or made without gradients. "
        "safemodules.convert_model(model, example_inputs) computes this line out of place; by "
        "hand, write the result to a new tensor, or clone the view.",
        True,
    ),
    (
        "a leaf Variable that requires grad is being used in an in-place operation",
        "written leaf",
        _LEAF,
        False,
    ),
    (
        "a view of a leaf Variable that requires grad is being used in an in-place operation",
        "written leaf",
        _LEAF,
        False,
    ),
)


def explain_failure(
    recorder: Recorder, namer: Namer, error: BaseException | None
) -> tuple[Clash, ...]:
    """The clash behind an operation that raised in the forward, if it is one.

    Args:
        recorder: what was recorded.
        namer: names the modules.
        error: what came out; the operation's own error, or one that a user's code made of it.
    """
    failure = recorder.failure
    if failure is None or not _is_behind(failure.error, error) or not failure.operation.inputs:
        return ()
    row = next((row for row in AT_ONCE if row[0] in str(failure.error)), None)
    if row is None:
        return ()
    _, cause, advice, convertible = row
    site = namer.site(failure.operation)
    target = failure.operation.inputs[0]
    saved = namer.site(failure.made) if failure.made is not None else site
    return (
        Clash(
            mutated_at=site,
            saved_at=saved,
            expected_version=target.version,
            found_version=target.version,
            advice=advice,
            tensor=f"{describe_operand(target)}, written where autograd forbids it",
            mutations=(site,),
            cause=cause,
            convertible=convertible,
            mutated_called_at=failure.operation.where.called_at,
            saved_called_at=None if failure.made is None else failure.made.where.called_at,
        ),
    )


def _is_behind(cause: BaseException, error: BaseException | None) -> bool:
    """Whether an error is another one, or was raised from it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if error is cause:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
