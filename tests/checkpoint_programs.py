"""Random programs of regions, and what becomes of them with and without checkpoints.

A program is the text of a function ``step(run, net, x)``: it calls ``run(function, ...)``, which
is either a plain call or a checkpoint. Its functions are closures over variables that are rebound
later, modules with buffers and counters, containers that change, and further regions.
"""

import itertools
import linecache
import random
import types
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

import safemodules as sm

_numbers = itertools.count()


class Ema(nn.Module):
    """Rebinds a buffer and then uses it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.detach().abs().mean(0)
        return torch.tanh(self.linear(x / (0.5 + self.mean)))


class InPlace(Ema):
    """Overwrites a buffer and then uses a copy of it."""

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.detach().abs().mean(0), alpha=0.5)
        return torch.tanh(self.linear(x / (0.5 + self.mean.clone())))


class Counter(nn.Module):
    """Keeps a number, a list and a dict."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.names = 0, [], {"inner": {"n": 0}}

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        self.names["inner"]["n"] += len(self.seen)
        return torch.sin(x * (1 + 0.1 * self.calls)) + 0.01 * self.names["inner"]["n"]


class Net(nn.Module):
    """What programs call."""

    def __init__(self):
        super().__init__()
        self.lin, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.4)
        self.ema, self.inp, self.counter = Ema(), InPlace(), Counter()
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.2))
        self.inplace = nn.Sequential(nn.Linear(4, 4), nn.ELU(inplace=True))
        self.k, self.bag = 1.0, [1.0, 2.0]


EXPRESSIONS = (
    "torch.sin({t})",
    "torch.tanh({t})",
    "torch.sigmoid({t}) * {u}",
    "{t} * {number}",
    "{t} + 0.5 * {u}",
    "{t} * {tensor}",
    "{t} * {bag}[0]",
    "{t} * options['k'] + options['deep'][0]",
    "net.lin({t})",
    "net.bn({t})",
    "net.drop({t})",
    "net.ema({t})",
    "net.inp({t})",
    "net.counter({t})",
    "net.seq({t})",
    "net.inplace({t})",
    "net.k * {t}",
    "torch.rand_like({t}) * {t}",
    "{t}.exp().clamp(max=3)",
)
IN_PLACE = (
    "{v} += 1",
    "{v}.mul_(0.5)",
    "{v}[:, 0] = 0.5",
    "{v}.relu_()",
    "{v} *= {u}",
)
STATE = (
    "{number} = {number} + 0.25",
    "bag[0] = bag[0] + 0.5",
    "options['k'] = options['k'] * 0.9",
    "options['deep'].append(0.1)",
    "options['deep'][0] += 0.2",
    "net.k = net.k + 0.5",
    "net.bag.append(net.k)",
    "{tensor} = {tensor} + 0.5",
    "{tensor}.add_(0.25)",
)


@dataclass
class Writer:
    """Writes a program.

    Attributes:
        choose: chooses one of a sequence.
    """

    choose: Callable
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def name(self, letter):
        self.count += 1
        return f"{letter}{self.count}"

    def fill(self, text, t, u, v=""):
        return text.format(t=t, u=u, v=v, number="number", tensor="tensor", bag="bag")

    def function(self, indent, depth):
        """A function of one or two tensors; its name."""
        name, pad = self.name("f"), "    " * indent
        self.lines.append(f"{pad}def {name}(a, b):")
        pad += "    "
        writes = self.choose((False, False, True))
        if writes:
            self.lines.append(f"{pad}nonlocal number, tensor")
        known = ["a", "b"]
        for _ in range(self.choose((1, 2, 2, 3, 4))):
            kind = self.choose(("expression",) * 5 + ("in place", "state", "region"))
            if kind == "expression" or (kind == "state" and not writes):
                v = self.name("v")
                text = self.fill(self.choose(EXPRESSIONS), self.choose(known), self.choose(known))
                self.lines.append(f"{pad}{v} = {text}")
                known.append(v)
            elif kind == "in place":
                own = [v for v in known if v not in ("a", "b")] or (known if depth == 0 else [])
                if own:
                    v = self.choose(own)
                    self.lines.append(pad + self.fill(self.choose(IN_PLACE), v, "b", v))
            elif kind == "state":
                self.lines.append(pad + self.fill(self.choose(STATE), "a", "b"))
            elif depth:
                self.region(indent + 1, depth - 1, known)
        self.lines.append(f"{pad}return {known[-1]} + 0.1 * {self.choose(known)}")
        return name

    def region(self, indent, depth, known):
        pad, v = "    " * indent, self.name("v")
        t, u = self.choose(known), self.choose(known)
        kind = self.choose(("function", "function", "function", "module", "late", "keyword"))
        if kind == "module":
            module = self.choose(("lin", "bn", "drop", "ema", "inp", "counter", "seq", "inplace"))
            self.lines.append(f"{pad}{v} = run(net.{module}, {t})")
        elif kind == "late":
            self.lines.append(f"{pad}{v} = {t}")
            k = self.name("k")
            body = self.fill(self.choose(EXPRESSIONS), "q", "q")
            self.lines.append(f"{pad}for {k} in (0.5, 1.5):")
            self.lines.append(f"{pad}    {v} = run(lambda q: torch.sin(({body}) * {k}), {v})")
        elif kind == "keyword":
            name = self.function(indent, depth)
            self.lines.append(f"{pad}{v} = run({name}, {t}, b={u})")
        else:
            name = self.function(indent, depth)
            self.lines.append(f"{pad}{v} = run({name}, {t}, {u})")
        known.append(v)

    def program(self):
        """The text."""
        self.lines = [
            "def step(run, net, x):",
            "    number, tensor, bag = 1.5, torch.linspace(0.5, 1, 4), [0.5, 'x']",
            "    options = {'k': 2.0, 'deep': [0.5]}",
            "    y = x * 1",
        ]
        known = ["x", "y"]
        for _ in range(self.choose((1, 2, 2, 3, 4))):
            self.region(1, 2, known)
            if self.choose((False, True)):
                self.lines.append("    " + self.fill(self.choose(STATE), "x", "y"))
            if self.choose((False, False, False, True)):
                v = self.choose(known[1:])
                self.lines.append("    " + self.fill(self.choose(IN_PLACE), v, "x", v))
        self.lines.append("    state = (number, tensor, bag, options)")
        self.lines.append(f"    return {known[-1]} + 0.1 * {self.choose(known)}, state")
        return "\n".join(self.lines) + "\n"


def make_program(choose):
    """The text of a random program.

    Args:
        choose: chooses one of a sequence: ``random.Random(0).choice``.
    """
    return Writer(choose).program()


def load(text):
    """The function of a program, with its source at hand for tracebacks."""
    name = f"<program {next(_numbers)}>"
    scope = types.ModuleType("checkpointed_program").__dict__
    scope.update(torch=torch)
    exec(compile(text, name, "exec"), scope)
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    return scope["step"]


def plain(fn, *args, **kwargs):
    return fn(*args, **kwargs)


def flat(value):
    """Tensors and other values in nested containers, in order."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in (key, *flat(value[key]))]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value]


def outcome(step, run, steps=2):
    """Everything that can be told after some steps, or where and how it raised."""
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    found = []
    for _ in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        optimizer.zero_grad()
        try:
            out, state = step(run, net, x)
        except Exception as error:
            return "forward", error, found
        found += flat((out, state))
        try:
            out.square().sum().backward()
        except Exception as error:
            return "backward", error, found
        optimizer.step()
        found += [x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]
        found += flat((dict(net.named_buffers()), net.k, net.bag, vars(net.counter)["calls"]))
        found += flat((net.counter.seen, net.counter.names, torch.get_rng_state()))
    return "runs", None, found


def equal(a, b):
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a.nan_to_num(), b.nan_to_num())
    return type(a) is type(b) and a == b


# The one cause for which a program of these may be refused: a tensor that a region was given
# has other values by now, and had no copy.
OVERWRITTEN = "since the region was entered"


def judge(text, run=None):
    """What kind of program it is, and how it differs with checkpoints, if it does.

    Args:
        text: the program.
        run: what stands for the checkpoint.
    """
    step = load(text)
    before, error_before, expected = outcome(step, plain)
    after, error_after, found = outcome(step, run or sm.checkpoint)
    if before == after == "runs":
        if len(expected) == len(found) and all(map(equal, expected, found)):
            return "runs", None
        pairs = enumerate(zip(expected, found, strict=False))
        places = [index for index, (a, b) in pairs if not equal(a, b)]
        return "runs", f"differs in {places[:5]} of {len(expected)}, {len(found)}"
    if before == "runs":
        if isinstance(error_after, sm.CheckpointError) and OVERWRITTEN in str(error_after):
            return "refused", None
        return "runs", f"raises {type(error_after).__name__} in {after}: {error_after}"
    if after == "runs":
        return before, f"runs, where plain raises in {before}: {error_before}"
    if before == after:
        n = min(len(expected), len(found))
        if all(map(equal, expected[:n], found[:n])):
            return f"{before} raises", None
        return before, "differs before it raises"
    return before, f"raises in {after}, not in {before}: {error_after}; plain: {error_before}"


def random_program(seed):
    return make_program(random.Random(seed).choice)
