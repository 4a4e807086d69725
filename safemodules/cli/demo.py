"""``safemodules demo``: two faults raised for real, mended, and proven mended."""

from __future__ import annotations

import argparse
import copy
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

import safemodules as sm
from safemodules.cli.command import Command, ExitCode
from safemodules.cli.console import Console
from safemodules.cli.demo_models import GradientLog, UNet
from safemodules.cli.progress import ProgressCallback
from safemodules.cli.saved_memory import SavedMemory, measure_saved
from safemodules.testing import gradcheck_module

_WIDTH = 96


@dataclass(frozen=True)
class Proof:
    """One thing that was checked, and whether it holds."""

    claim: str
    holds: bool
    detail: str = ""


@dataclass(frozen=True)
class Act:
    """One model of the demonstration.

    Attributes:
        title: What the model is and what is wrong with it.
        code: The line that mends it.
        fault: What PyTorch raised before the conversion.
        swapped: In-place sites that the conversion replaced.
        kept: In-place sites that it found and left.
        proofs: What was checked afterwards.
        saved_before: Saved-for-backward memory of one forward before the conversion.
        saved_after: The same after it.
        note: How ``saved_before`` was measured.
    """

    title: str
    code: str
    fault: str
    swapped: int
    kept: int
    proofs: tuple[Proof, ...]
    saved_before: SavedMemory
    saved_after: SavedMemory
    note: str

    @property
    def holds(self) -> bool:
        """Whether the fault was raised and every proof holds."""
        return bool(self.fault) and all(proof.holds for proof in self.proofs)


def play_unet(progress: ProgressCallback | None = None) -> Act:
    """Mend a U-Net whose backward raises, and check it by finite differences."""
    torch.manual_seed(0)
    net = UNet(width=2)
    x = torch.randn(2, 1, 32, 32)
    original = copy.deepcopy(net)
    saved_before = measure_saved(original, x)
    fault = _fault_of(net, x)

    sm.convert_model(net, example_inputs=x, progress=progress)

    small = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    return Act(
        title="U-Net: its residual adds and its gate overwrite what backward needs",
        code="sm.convert_model(net, example_inputs=x)",
        fault=fault,
        **_counts(net),
        proofs=(
            _prove("a training step runs", lambda: _train_step(net, x)),
            _prove("bit for bit what the original computes", lambda: _verify(original, net, x)),
            _prove(
                "gradients equal finite differences in float64",
                lambda: _gradcheck(net, small),
            ),
        ),
        saved_before=saved_before,
        saved_after=measure_saved(net, x),
        note="before: of its forward, which still runs",
    )


def play_resnet(progress: ProgressCallback | None = None) -> Act:
    """Mend a ResNet that raises as soon as its gradients are watched by hooks."""
    from torchvision.models import resnet18  # loaded only when the demo is run

    torch.manual_seed(0)
    net = resnet18(weights=None, num_classes=10)
    x = torch.randn(2, 3, 64, 64)
    original = copy.deepcopy(net)
    saved_before = measure_saved(original, x)
    log = GradientLog(net)
    fault = _fault_of(net, x)

    sm.convert_model(net, example_inputs=x, progress=progress)

    return Act(
        title="torchvision resnet18: raises once a gradient monitor hooks its layers",
        code="sm.convert_model(net, example_inputs=x)",
        fault=fault,
        **_counts(net),
        proofs=(
            _prove("a training step runs", lambda: _train_step(net, x)),
            _prove("every layer's hook was called", lambda: _called(log, net, x)),
            _prove(
                "bit for bit what the original computes without hooks",
                lambda: _verify(original, net, x),
            ),
        ),
        saved_before=saved_before,
        saved_after=measure_saved(net, x),
        note="before: without the hooks, with which its forward raises",
    )


#: The acts, in order; each is independent of the others.
ACTS: dict[str, Callable[[ProgressCallback | None], Act]] = {
    "unet": play_unet,
    "resnet": play_resnet,
}


def render(act: Act, number: int) -> str:
    """Return ``act`` as text."""
    lines = [f"{number}. {act.title}", ""]
    lines += _block("before", act.fault or "nothing was raised: the fault is not there")
    lines += _block("mend", act.code)
    lines += _block("", f"{act.swapped} in-place sites swapped, {act.kept} kept")
    for index, proof in enumerate(act.proofs):
        mark = "ok" if proof.holds else "FAILED"
        detail = f": {proof.detail}" if proof.detail else ""
        lines += _block("" if index else "proof", f"[{mark}] {proof.claim}{detail}")
    lines += _block("saved", f"for backward: {act.saved_before} before, {act.saved_after} after")
    lines += _block("", f"({act.note})")
    return "\n".join(lines) + "\n"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: tensors this small only lose by more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _block(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=f"   {label:<9}",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fault_of(net: nn.Module, x: Tensor) -> str:
    """Return the error of a training step of a copy; empty if there is none."""
    try:
        _train_step(net, x)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _counts(net: nn.Module) -> dict[str, int]:
    decisions = [site.decision for site in sm.conversion_plan(net).sites]
    return {"swapped": decisions.count("swap"), "kept": decisions.count("keep")}


def _prove(claim: str, check: Callable[[], str]) -> Proof:
    """Run ``check``; what it returns is the detail, what it raises the reason of a failure."""
    try:
        return Proof(claim, True, check())
    except (sm.SafeModulesError, RuntimeError, AssertionError) as error:
        return Proof(claim, False, f"{type(error).__name__}: {error}")


def _train_step(net: nn.Module, x: Tensor) -> str:
    # Of a copy: what is compared later must not have moved. The input requires grad because
    # the hook of a layer warns where none of the layer's inputs does.
    trained = copy.deepcopy(net)
    loss = trained(x.clone().requires_grad_()).square().mean()
    loss.backward()
    torch.optim.SGD(trained.parameters(), lr=0.1).step()
    return f"loss {loss.item():.4f}"


def _verify(original: nn.Module, net: nn.Module, x: Tensor) -> str:
    equivalence = sm.verify(original, net, x)
    equivalence.raise_if_different()
    return _describe(equivalence)


def _describe(equivalence: sm.Equivalence) -> str:
    """Return what was compared, modes with the same checks joined."""
    modes: dict[str, list[str]] = {}
    for check in equivalence.checks:
        # The error that the reference raised is shown above, as the fault.
        modes.setdefault(re.sub(r" \(the reference raised: .*\)$", "", check.text), []).append(
            check.mode
        )
    return "; ".join(f"{what} ({' and '.join(where)})" for what, where in modes.items())


def _gradcheck(net: nn.Module, x: Tensor) -> str:
    checked = copy.deepcopy(net).double()
    gradcheck_module(checked, x)
    return f"{sum(p.numel() for p in checked.parameters()) + x.numel()} parameters and inputs"


def _called(log: GradientLog, net: nn.Module, x: Tensor) -> str:
    log.norms.clear()
    _train_step(net, x)
    leaves = {name for name, module in net.named_modules() if not any(module.children())}
    missing = sorted(leaves - log.norms.keys())
    if missing:
        raise AssertionError(f"no gradient at {', '.join(missing)}")
    return f"{len(leaves)} layers"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", choices=sorted(ACTS), action="append", help="run this act (repeatable)"
    )


def _run(options: argparse.Namespace, console: Console) -> ExitCode:
    names = options.only or list(ACTS)
    acts = []
    for number, name in enumerate(names, start=1):
        with console.progress() as progress, _one_thread():
            act = ACTS[name](progress)
        console.print(render(act, number))
        acts.append(act)
    proven = all(act.holds for act in acts)
    console.print("Every fault was raised, mended and proven mended." if proven else "NOT proven.")
    console.print_json({"acts": [asdict(act) for act in acts], "proven": proven})
    return ExitCode.CLEAN if proven else ExitCode.FINDINGS


COMMAND = Command(
    name="demo",
    summary="break two models for real, mend them, prove it",
    details=(
        "Runs on the CPU in well under a minute and needs no network. Exit code 0 if every\n"
        "fault was raised, mended and proven mended; 1 otherwise."
    ),
    add_arguments=_add_arguments,
    run=_run,
)
