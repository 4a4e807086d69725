"""Random programs as real source text, and an oracle of what backward finds overwritten.

NOTE [ Oracle ]: it shares nothing with the recorder. A program runs once more under
saved-tensor hooks. The pack hook notes the line that runs and takes a version token of the
tensor; a line tracer compares all tokens after each line, so that the first line which moved
a version is known; the unpack hook notes what backward asks for. Whether there is a clash is
plain PyTorch's own word: the same program without hooks, and its backward.
"""

import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import safemodules as sm

MESSAGE = "modified by an inplace operation"
Choose = Callable[[Sequence[Any]], Any]

UNARY = (
    "{a}.sigmoid()",
    "torch.tanh({a})",
    "{a}.exp()",
    "F.relu({a})",
    "{a}.sin()",
    "torch.square({a})",
    "F.softplus({a})",
    "F.leaky_relu({a}, 0.1)",
    "F.gelu({a})",
    "F.elu({a})",
    "-{a}",
    "{a}.clone()",
    "{a} * 2.0",
    "1.0 / ({a} + 9.0)",
    "{a} ** 2",
    "{a}.abs()",
    "{a}.softmax(-1)",
    "{a}.cumsum(0)",
    "{a}.cumprod(-1)",
    "{a}.logsumexp(-1, keepdim=True).expand_as({a})",
    "{a}.clamp(-0.5, 0.5)",
    "{a}.norm() * {a}",
    "{a}.amax(-1, keepdim=True) + {a}",
    "{a}.detach()",
    "F.layer_norm({a}, {a}.shape[-1:])",
    "F.hardtanh({a})",
    "[v.sin() for v in ({a}, {a})][1]",
    "(lambda v: v.exp())({a})",
    "helper({a})",
    "decorated({a})",
    "{a}.sort(-1).values",
    "torch.where({a} > 0, {a}, -{a})",
    "KeepsResult.apply({a})",
    "NeverAsks.apply({a})",
    "Modern.apply({a})",
    "{a}.index_select(0, self.index[: {a}.shape[0]])",
    "{a}.std() + {a}",
    "F.silu({a})",
    "torch.nn.functional.normalize({a}, dim=0)",
)
BINARY = (
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a} / ({b} + 9.0)",
    "torch.maximum({a}, {b})",
    "torch.lerp({a}, {b}, 0.3)",
    "torch.atan2({a}, {b})",
    "torch.where(self.mask4, {a}.sum(), {b}.sum()).sum() + {a}",
    "torch.addcmul({a}, {a}, {b})",
    "torch.stack([{a}, {b}]).prod(0)",
    "torch.cat([{a}, {b}])[: {a}.shape[0]]",
    "torch.hypot({a}, {b} + 9.0)",
    "KeepsBoth.apply({a}, {b})",
)
SQUARE = (
    "{a} @ {b}",
    "self.linear({a})",
    "self.norm({a})",
    "self.bn({a})",
    "self.block({a})",
    "self.act({a})",
    "self.scripted({a})",
    "{a}.gather(0, self.index2)",
    "torch.where(self.mask, {a}, {b})",
    "{a}.masked_fill(self.mask, 0.5) * {b}",
    "{a} * self.buffer",
    "torch.einsum('ij,jk->ik', {a}, {b})",
    "self.conv({a}[None]).squeeze(0)",
    "F.embedding(self.index, {a}) * {b}",
)
VIEWS = (
    ("{a}[:2]", (4, 4), (2, 4)),
    ("{a}[1:3]", (4, 4), (2, 4)),
    ("{a}[::2]", (4, 4), (2, 4)),
    ("{a}[0]", (4, 4), (4,)),
    ("{a}[:, 1]", (4, 4), (4,)),
    ("{a}.t()", (4, 4), (4, 4)),
    ("{a}.diagonal()", (4, 4), (4,)),
    ("{a}.view(16)[4:8]", (4, 4), (4,)),
    ("{a}.view_as({a})", (4, 4), (4, 4)),
    ("{a}.chunk(2)[0]", (4, 4), (2, 4)),
    ("{a}.narrow(0, 1, 2)", (4, 4), (2, 4)),
    ("{a}[1]", (2, 4), (4,)),
    ("{a}.unsqueeze(0)[0]", (2, 4), (2, 4)),
    ("{a}.expand(2, 4)", (4,), (2, 4)),
)
INPLACE = (
    "{a} += {b}",
    "{a} -= 0.1",
    "{a} *= 2.0",
    "{a} /= 3.0",
    "{a} **= 2",
    "{a}.mul_({b})",
    "{a}.add_({b})",
    "{a}.add_(0)",
    "{a}.relu_()",
    "{a}.exp_()",
    "{a}.clamp_(-1, 1)",
    "{a}.zero_()",
    "{a}.copy_({b})",
    "{a}.neg_()",
    "{a}.addcmul_({b}, {b})",
    "{a}.lerp_({b}, 0.5)",
    "{a}.masked_fill_({a}.detach() > 0, 0.5)",
    "torch.sigmoid_({a})",
    "F.relu({a}, inplace=True)",
    "F.leaky_relu_({a})",
    "{a}[0] = 1.0",
    "{a}[..., 1] = {b}[..., 0]",
    "{a}[{a}.detach() > 9] = 0.0",
    "torch._foreach_mul_([{a}], 2.0)",
    "torch._foreach_add_([{a}, {b}], 0.5)",
    "overwrite({a})",
    "{a} = {a}.tanh_()",
    "{a} = self.act({a})",
    "{a} = self.block({a}) if {a}.dim() == 2 else {a}.sin_()",
    "for _ in range(2): {a}.mul_(1.5)",
    "self.block.act({a})",
    "{a}.requires_grad_({a}.requires_grad)",
)
SILENT = (
    "{a}.detach().mul_(2.0)",
    "{a}.data.mul_(2.0)",
    "self.mask.logical_not_()",
    "self.index.add_(0)",
    "self.index2.fill_(1)",
    "self.buffer.mul_(0.9)",
    "with torch.no_grad(): {a}.mul_(0.5)",
    "with torch.no_grad(): {a} += 1.0",
    "with torch.no_grad(): torch.add({b}, {b}, out={a})",
    "with torch.no_grad(): self.linear.weight.mul_(0.5)",
    "with torch.no_grad(): self.norm.weight[0] = 2.0",
    "self.step()",
    "{a} = {a}.detach()",
)
HEADER = """\
def decorate(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner


def helper(v):
    w = v.tanh()
    return w * v


@decorate
def decorated(v):
    return (
        v.sigmoid()
        + v.sin()
    )


def overwrite(v):
    return v.mul_(1.5)


class KeepsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        y = v.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class KeepsBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, w):
        ctx.save_for_backward(v, w)
        return v * w

    @staticmethod
    def backward(ctx, g):
        v, w = ctx.saved_tensors
        return g * w, g * v


class NeverAsks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return v.clone()

    @staticmethod
    def backward(ctx, g):
        return g


class Modern(torch.autograd.Function):
    @staticmethod
    def forward(v):
        return v.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.double)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = torch.sigmoid(x)
        y = self.linear(y) if y.shape[-1] == 4 else y * 1.0
        z = self.act(y)
        return z * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.double)
        self.norm = nn.LayerNorm(4, dtype=torch.double)
        self.bn = nn.BatchNorm1d(4, dtype=torch.double)
        self.conv = nn.Conv1d(4, 4, 1, dtype=torch.double)
        self.act = nn.ELU(inplace=True)
        self.block = Block()
        self.scripted = nn.Sequential(nn.Tanh(), nn.Hardtanh(inplace=True))
        self.register_buffer("buffer", torch.linspace(0.1, 1.0, 4, dtype=torch.double))
        self.register_buffer("mask", torch.eye(4, dtype=torch.bool))
        self.register_buffer("mask4", torch.tensor(True))
        self.register_buffer("index", torch.tensor([0, 2, 1, 3]))
        self.register_buffer("index2", torch.tensor([[0, 1, 0, 1]] * 4))
        self.optimizer = [torch.optim.SGD(self.linear.parameters(), lr=0.1, foreach=FOREACH)]

    def step(self):
        for p in self.linear.parameters():
            p.grad = torch.ones_like(p)
        self.optimizer[0].step()

    def forward(self, x):
"""


@dataclass
class Program:
    """A program: its text, and the name of its file.

    Attributes:
        body: the statements of ``forward``, one a line.
        filename: unique, as ``linecache`` knows it.
    """

    body: tuple[str, ...]
    filename: str = field(default="")

    @property
    def source(self) -> str:
        return HEADER + "".join(f"        {line}\n" for line in self.body)

    def build(self) -> nn.Module:
        """A fresh model, always the same."""
        if not self.filename:
            self.filename = f"<program {id(self)}>"
        linecache.cache[self.filename] = (
            len(self.source),
            None,
            self.source.splitlines(True),
            self.filename,
        )
        scope: dict[str, Any] = {
            "__name__": "program",
            "torch": torch,
            "nn": nn,
            "F": F,
            "functools": __import__("functools"),
            "checkpoint": checkpoint,
            "FOREACH": len(self.body) % 2 == 0,
        }
        exec(compile(self.source, self.filename, "exec"), scope)
        torch.manual_seed(0)
        return scope["Net"]()

    def text(self) -> str:
        return "\n".join(self.body)


def example() -> Tensor:
    """The input of every program."""
    return torch.randn(4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def make_program(choose: Choose, length: int) -> Program:
    """A random program.

    Args:
        choose: picks one of several.
        length: number of random statements.
    """
    shapes: dict[str, tuple[int, ...]] = {"a": (4, 4), "b": (4, 4)}
    body = ["a = x * 1.0", "b = x + 0.5"]
    for number in range(length):
        body.append(_statement(choose, shapes, f"v{number}"))
    names = sorted(shapes)
    kept = [name for name in names if choose((True, True, False))] or names[-1:]
    body.append("return (" + " + ".join(f"{name}.sum()" for name in kept) + ")")
    return Program(tuple(body))


def _statement(choose: Choose, shapes: dict[str, tuple[int, ...]], new: str) -> str:
    a = choose(sorted(shapes))
    shape = shapes[a]
    b = choose([name for name in sorted(shapes) if shapes[name] == shape])
    kind = choose(("unary", "unary", "binary", "square", "view", "inplace", "inplace", "silent"))
    if kind == "inplace":
        return str(choose(INPLACE)).format(a=a, b=b)
    if kind == "silent":
        return str(choose(SILENT)).format(a=a, b=b)
    if kind == "view":
        views = [view for view in VIEWS if view[1] == shape]
        if views:
            text, _, shapes[new] = choose(views)
            return f"{new} = {text.format(a=a)}"
    templates = UNARY
    if kind == "binary":
        templates = BINARY
    if kind == "square" and shape == (4, 4):
        templates = SQUARE
    target = choose((new, new, new, a))
    shapes[target] = shape
    return f"{target} = {str(choose(templates)).format(a=a, b=b)}"


# -- truth -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What plain PyTorch does with a program.

    Attributes:
        forward_error: what the forward raised.
        backward_error: what the backward raised.
        clashes: pairs of lines: saved at, first overwritten at; of what backward asked for.
        complete: the oracle's backward, which goes on where torch raises, came to its end.
    """

    forward_error: str | None
    backward_error: str | None
    clashes: frozenset[tuple[int, int]]
    complete: bool = True


def plain_run(program: Program) -> tuple[str | None, str | None]:
    """Errors of forward and backward, as a user would see them."""
    model, leaf = program.build(), example().requires_grad_()
    try:
        loss = model(leaf.clone())
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    if not loss.requires_grad:
        return None, None
    try:
        loss.backward()
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return None, None


@dataclass(eq=False)
class _Kept:
    tensor: Tensor
    token: Tensor
    version: int
    saved_at: int
    overwritten_at: int | None = None
    asked: bool = False


class _Oracle:
    """See NOTE [ Oracle ]."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.kept: list[_Kept] = []
        self.last = 0

    def pack(self, tensor: Tensor) -> _Kept:
        token = tensor.detach()
        token.data = torch.empty(0, dtype=tensor.dtype)
        kept = _Kept(tensor.detach(), token, tensor._version, self._line())
        self.kept.append(kept)
        return kept

    def unpack(self, kept: _Kept) -> Tensor:
        kept.asked = True
        return kept.tensor

    def _line(self) -> int:
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == self.filename:
                return frame.f_lineno
            frame = frame.f_back
        return 0

    def trace(self, frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != self.filename:
            return None
        self.look()
        # after a call the caller's line goes on, which has no event of its own
        back = frame.f_back
        while event == "return" and back is not None and back.f_code.co_filename != self.filename:
            back = back.f_back
        self.last = frame.f_lineno if event != "return" or back is None else back.f_lineno
        return self.trace

    def look(self) -> None:
        for kept in self.kept:
            if kept.overwritten_at is None and kept.token._version != kept.version:
                kept.overwritten_at = self.last


def truth(program: Program) -> Truth:
    """What plain PyTorch does, and the lines of every clash."""
    forward_error, backward_error = plain_run(program)
    other = backward_error is not None and MESSAGE not in backward_error
    if forward_error is not None or other:
        return Truth(forward_error, backward_error, frozenset())
    model, leaf = program.build(), example().requires_grad_()
    oracle = _Oracle(program.filename)
    outer = sys.gettrace()
    with torch.autograd.graph.saved_tensors_hooks(oracle.pack, oracle.unpack):
        sys.settrace(oracle.trace)
        try:
            loss = model(leaf.clone())
        finally:
            sys.settrace(outer)
    oracle.look()
    complete = True
    if loss.requires_grad:
        try:
            loss.backward()
        except RuntimeError:  # on a tensor of a kind that it would not have come to
            complete = False
    clashes = {
        (kept.saved_at, kept.overwritten_at)
        for kept in oracle.kept
        if kept.asked and kept.overwritten_at is not None
    }
    return Truth(None, backward_error, frozenset(clashes), complete)


def disagreement(program: Program, expected: Truth | None = None) -> str | None:
    """How ``diagnose`` and ``watch`` differ from the truth, if they do."""
    expected = expected or truth(program)
    raises = expected.backward_error is not None
    if raises and MESSAGE not in str(expected.backward_error):
        return None  # another error: not a program to judge by
    if raises != bool(expected.clashes) and expected.complete:
        return f"the oracle itself: raises {raises}, but {sorted(expected.clashes)}"
    diagnosis = sm.diagnose(program.build(), example())
    if expected.forward_error is not None:
        if diagnosis.error != expected.forward_error:
            return f"forward error {diagnosis.error!r}, not {expected.forward_error!r}"
        return None
    if diagnosis.error is not None:
        return f"diagnose made the forward raise {diagnosis.error}"
    here = [c for c in diagnosis.clashes if not c.silent]
    certain = {_lines(c) for c in here if not c.possible}
    possible = {_lines(c) for c in here if c.possible}
    if not expected.complete:
        return None if raises == bool(certain or possible) else f"raises {raises}: {diagnosis}"
    if certain - expected.clashes:
        return (
            f"false alarm: {sorted(certain - expected.clashes)}, truth {sorted(expected.clashes)}"
        )
    if expected.clashes - certain - possible:
        missed = expected.clashes - certain - possible
        return f"missed: {sorted(missed)} of {sorted(expected.clashes)}, found {sorted(certain)}"
    return _watch_disagreement(program, expected)


def _lines(clash: Any) -> tuple[int, int]:
    return clash.saved_at.lineno, clash.mutated_at.lineno


def _watch_disagreement(program: Program, expected: Truth) -> str | None:
    model, leaf = program.build(), example().requires_grad_()
    error: Exception | None = None
    try:
        with sm.watch() as watched:
            loss = model(leaf.clone())
            if loss.requires_grad:
                loss.backward()
    except RuntimeError as caught:
        error = caught
    if str(error) != str(expected.backward_error).partition(": ")[2] and error is not None:
        return f"watch changed the error to {error}, from {expected.backward_error}"
    if (error is None) != (expected.backward_error is None):
        return f"watch: error {error}, truth {expected.backward_error}"
    if error is not None:
        if len(getattr(error, "__notes__", [])) != 1:
            return "watch: not exactly one note"
        first = watched.diagnosis.clashes[0]
        if _lines(first) not in expected.clashes:
            return f"watch: first clash {_lines(first)}, truth {sorted(expected.clashes)}"
    return None
