"""``diagnose``: run a model once and say what backward would find."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.diagnosis.errors import explain_failure
from safemodules.diagnosis.findings import Diagnosis
from safemodules.diagnosis.report import buffer_names, clashes_of, module_names, site_reports
from safemodules.mutation.recorder import Recorder
from safemodules.state import preserved
from safemodules.trees import CallArguments, clone_inputs, flatten_tensors
from safemodules.verification import as_arguments


def diagnose(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[[Any], Tensor] | None = None,
) -> Diagnosis:
    """Find in-place operations that backward would fail on, without a backward.

    The forward (and ``loss_fn``) runs once, in the model's present mode, on copies of the
    inputs. Then each tensor that the graph has saved is asked whether it is still what was
    saved. Parameters, gradients, buffers, random numbers, hooks and inputs are left as
    they were.

    Args:
        model: an initialised module.
        example_inputs: a tensor, or a tuple of positional arguments.
        example_kwargs: keyword arguments of the forward.
        loss_fn: makes the loss of the outputs; all outputs are followed without it.

    Returns:
        The clashes, every site that ran, and warnings.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> class Net(torch.nn.Module):
        ...     def forward(self, x):
        ...         h = torch.sigmoid(x)
        ...         h += x
        ...         return h
        >>> [clash] = sm.diagnose(Net(), torch.randn(2)).clashes
        >>> clash.saved_at.source, clash.mutated_at.source
        ('h = torch.sigmoid(x)', 'h += x')
    """
    call = CallArguments(as_arguments(example_inputs), dict(example_kwargs or {}))
    names = module_names(model)
    error: str | None = None
    recorder = Recorder()
    with preserved(model), torch.inference_mode(False), torch.enable_grad():
        handed, _ = clone_inputs(call, requires_grad=True)
        roots: list[Tensor] = []
        try:
            with recorder:
                out = model(*handed.inputs, **handed.kwargs)
                out = out if loss_fn is None else loss_fn(out)
            roots = [t for _, t in flatten_tensors(out) if t.requires_grad]
        except Exception as exception:
            error = f"{type(exception).__name__}: {exception}"
        buffers = buffer_names([model])
        clashes = clashes_of(roots, recorder, names, buffers)
        clashes += explain_failure(recorder, names)
        reports = site_reports(recorder, clashes, names)
    return Diagnosis(clashes, reports, (), error)
