"""Random programs: source text of a module that overwrites tensors in every way.

Each tensor that is overwritten has one name (or one place in a container), so that every
site is neutral: out of place, the module computes the same. A wild program also has aliases,
views, and writes to its input; there the analysis must find out which sites to keep.

All tensors have the shape (N, 4) and stay between moderate bounds.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import strategies as st

HEAD = """\
import functools

import torch
import torch.nn.functional as F
from torch import nn


def passed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper


"""
# What wild programs call without naming it.
INDIRECT = """\
def halves(h, held=None):
    h.mul_(0.5)
    return h if held is None else h + held


def doubles(h, held=None):
    return h * 2 if held is None else h + held


def spread(h, **options):
    return halves(h, **options)


def bound(h, **options):
    options["held"] = h
    return doubles(h, **options)


def unnamed(*args):
    return halves(*args[1:])


TABLE = [doubles, halves]


class Held:
    def __init__(self, h):
        self.h = h

    def __call__(self):
        return self.h * 2

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.h = self.h * 2

    def overwrite(self):
        self.h.add_(1)
        return self.h

    @property
    def half(self):
        return self.h * 0.5


"""

INIT = """\
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)
        self.relu = nn.ReLU(inplace=True)
        self.silu = nn.SiLU(inplace=True)
        self.drop = nn.Dropout(0.3, inplace=True)
        self.block = nn.Sequential(
            nn.Linear(4, 4), nn.Sigmoid(), nn.LeakyReLU(0.1, inplace=True), nn.Dropout(0.3, True)
        )
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Hardtanh(-0.5, 0.5, inplace=True)])
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

"""

# {a} and {b} are tensors that are read; the result is new memory
FRESH = (
    "torch.sigmoid({a})",
    "torch.tanh({a})",
    "{a} * 0.5",
    "{a} + {b}",
    "{a} - {b}",
    "torch.sin({a}) * {b}",
    "self.lin({a})",
    "self.bn({a})",
    "self.block({a})",
    "self.parts[0]({a})",
    "torch.tanh({a}).exp()",
    "{a}.clone()",
    "{a}.softmax(1)",
    "torch.where({a} > 0, {a}, {b})",
    "torch.cat([{a}[:, :2], {b}[:, 2:]], 1)",
    "F.elu({a}, 0.5)",
    "F.gelu({a})",
    "torch.stack([{a}, {b}]).mean(0)",
    "torch.zeros_like({a})",
    "{a} @ torch.eye(4, dtype={a}.dtype)",
)
VALUES = (
    "0.5",
    "2",
    "self.scale",
    "self.scale * 0.5",
    "{a}",
    "{a}[:, :1]",
    "{a}.mean(1, keepdim=True)",
)
AUGMENTED = ("+=", "-=", "*=", "+=", "*=")
METHODS = (
    "mul_({v})",
    "add_({v})",
    "sub_({v}, alpha=0.5)",
    "clamp_(-0.8, 0.8)",
    "clamp_(min=-0.5)",
    "tanh_()",
    "sigmoid_()",
    "relu_()",
    "square_()",
    "neg_()",
    "sin_()",
    "cumsum_(1)",
    "masked_fill_({a} > 0.5, 0.1)",
    "addcmul_({a}, {b}, value=0.5)",
    "lerp_({a}, 0.3)",
    "copy_({v})",
    "zero_()",
    "fill_(0.5)",
    "index_add_(1, torch.tensor([0, 2]), {a}[:, :2])",
    "scatter_(1, torch.zeros({a}.shape[0], 1, dtype=torch.int64), 0.3)",
    "tril_()",
    "normal_()",
    "div_(3)",
    "pow_(2)",
)
FUNCTIONS = (
    "torch.relu_({t})",
    "torch.sigmoid_({t})",
    "torch.square_({t})",
    "F.elu_({t}, 0.5)",
    "F.leaky_relu_({t}, 0.2)",
    "F.hardtanh_({t})",
    "torch.clamp_({t}, -1, 1)",
    "torch.celu_({t})",
    "torch.dropout_({t}, 0.3, self.training)",
    "F.relu({t}, inplace=True)",
    "F.relu({t}, True)",
    "F.elu({t}, 0.5, True)",
    "F.silu({t}, inplace=True)",
    "F.hardswish({t}, inplace=self.training)",
    "F.dropout({t}, 0.3, self.training, True)",
    "F.dropout({t}, p=0.3, training=self.training, inplace=True)",
    "F.rrelu({t}, training=self.training, inplace=True)",
    "F.threshold({t}, 0.1, 0.2, inplace=True)",
)
MODULES = ("self.relu({t})", "self.silu({t})", "self.drop({t})", "self.parts[1]({t})")
KEYS = (
    "0",
    "-1",
    "..., 1",
    ":, 1:3",
    "::2",
    ":1, 0",
    "None",
    "...",
    "{t} > 0.2",
    "{a} > 0.2",
    ":, torch.tensor([0, 3])",
    "[0, -1]",
    "torch.tensor(0), 1:",
    ":, torch.tensor([], dtype=torch.int64)",
    ":, [True, False, True, False]",
)
CONDITIONS = (
    "{a}.sum() > 0",
    "x.shape[0] > 3",
    "self.training",
    "{a}[0, 0] > {b}[-1, -1]",
)


@dataclass
class Program:
    """A program that is being written.

    Attributes:
        draw: draws from strategies.
        wild: whether aliases are made.
        owned: expressions of tensors that may be overwritten, by what they hold.
        read: expressions of tensors that may only be read.
    """

    draw: Callable
    wild: bool = False
    lines: list[str] = field(default_factory=list)
    indent: int = 2
    owned: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    singles: list[str] = field(default_factory=list)  # float32
    whole: list[str] = field(default_factory=list)  # int64
    count: int = 0
    in_method: bool = True
    helpers: list[str] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)
    loops: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def pick(self, choices):
        return self.draw(st.sampled_from(list(choices)))

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(0, one_in - 1)) == one_in - 1

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def atom(self, but: str = "") -> str:
        """A tensor to read, other than the one that is written."""
        return self.pick([e for e in [*self.read, *self.owned] if e != but])

    def filled(self, template: str, t: str = "", v: bool = True) -> str:
        value = self.value(t) if "{v}" in template else ""
        return template.format(t=t, a=self.atom(t), b=self.atom(t), v=value)

    def usable(self, templates):
        """Templates that may stand here: plain functions have no ``self``."""
        return templates if self.in_method else [t for t in templates if "self" not in t]

    def fresh(self) -> str:
        """An expression whose value is new memory."""
        text = self.filled(self.pick(self.usable(FRESH)))
        if self.helpers and self.in_method and self.chance(4):
            return f"{self.pick(self.helpers)}({text})"
        kind = self.draw(st.integers(0, 6))
        if kind == 5:
            return f"({text}).{self.method_call()}"
        if kind == 6:
            return self.pick(self.usable([*FUNCTIONS, *MODULES])).format(t=text)
        return text

    def value(self, target: str) -> str:
        """Something to compute with; it does not share memory with the target."""
        if self.chance(4):
            return self.fresh()
        return self.pick(self.usable(VALUES)).format(a=self.atom(target))

    def method_call(self, target: str = "") -> str:
        return self.filled(self.pick(self.usable(METHODS)), target)

    # -- scopes -------------------------------------------------------------------------

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Statements inside another one; names bound there are forgotten afterwards."""
        self.line(head)
        kept = [list(names) for names in (self.owned, self.read, self.singles, self.whole)]
        self.indent += 1
        yield
        if self.lines[-1].endswith(":"):
            self.line("pass")
        self.indent -= 1
        owned, read, singles, whole = kept
        self.owned = [name for name in owned if name in self.owned]
        self.read, self.singles, self.whole = read, singles, whole

    # -- statements ---------------------------------------------------------------------

    def statements(self, most: int, depth: int) -> None:
        for _ in range(self.draw(st.integers(1, most))):
            kinds = [self.site, self.site, self.site, self.bind, self.containers, self.other]
            if depth:
                kinds += [self.branch, self.loop]
            if self.wild:
                kinds += [self.alias, self.alias, self.indirect]
            kind = self.pick(kinds)
            if kind in (self.branch, self.loop):
                kind(depth - 1)
            else:
                kind()

    def bind(self) -> None:
        name, text = self.name(), self.fresh()
        self.line(f"{name} = {text}")
        self.owned.append(name)

    def containers(self) -> None:
        name, first, second = self.name(), self.fresh(), self.fresh()
        text, entries = self.pick(
            [
                ("[{0}, {1}]", ["[0]", "[1]"]),
                ("({0}, {1})", ["[0]", "[1]"]),
                ("{{'a': {0}, 'b': {1}}}", ["['a']", "['b']"]),
                ("{{'a': [{0}, ({1},)]}}", ["['a'][0]", "['a'][1][0]"]),
                ("[{{'b': {0}}}, {1}]", ["[0]['b']", "[-1]"]),
            ]
        )
        self.line(f"{name} = {text.format(first, second)}")
        self.owned += [name + entry for entry in entries]

    def site(self) -> None:
        """Overwrite one tensor that has one name."""
        if not self.owned:
            self.bind()
        t = self.pick(self.owned)
        kinds = [self.augmented, self.item, self.method, self.chain, self.inside, self.function]
        self.pick([*kinds, self.consumed])(t)

    def augmented(self, t: str) -> None:
        if self._in_tuple(t):  # a tuple takes no entry, not even the one it has
            return self.item(t)
        place = f"{t}[{self.pick(KEYS[:8])}]" if self.chance(4) else t
        value = self.pick(["0.5", "2"]) if place != t else self.value(t)
        self.line(f"{place} {self.pick(AUGMENTED)} {value}")
        return None

    @staticmethod
    def _in_tuple(t: str) -> bool:
        return "[" in t

    def item(self, t: str) -> None:
        key = self.filled(self.pick(KEYS), t)
        value = self.pick(["0.5", "2", f"torch.tensor(0.25, dtype={t}.dtype)", "True"])
        if key == "...":
            value = self.value(t)
        form = self.pick(
            ["{t}[{k}] = {v}"] * 3 + ["{n} = {t}[{k}] = {v}", "{n}, {t}[{k}] = 1, {v}"]
        )
        self.line(form.format(t=t, k=key, v=value, n="_"))

    def method(self, t: str) -> None:
        entry = self.pick(["[0]", "[:, :2]", "[..., 1:]", "[[0]]"]) if self.chance(4) else ""
        call = self.pick(["mul_(0.5)", "add_(1)", "relu_()"]) if entry else self.method_call(t)
        self.line(f"{t}{entry}.{call}")

    def chain(self, t: str) -> None:
        text = f"{t}.{self.method_call(t)}.{self.method_call(t)}"
        self.line(f"{t} = {text}" if "[" not in t and self.chance(2) else text)

    def inside(self, t: str) -> None:
        """A site in an expression whose value is new memory."""
        call = self.filled(self.pick(self.usable(FUNCTIONS)), t)
        text = self.pick([f"{t}.{self.method_call(t)}", call])
        name = self.name()
        form = ["{} * 2", "2 - {}", "torch.cat([{}[:, :2], {}[:, 2:]], 1)", "torch.tanh({})"]
        chosen = self.pick([*form, "[{}.exp() for _ in range(2)][1].tanh()"])
        if chosen.count("{}") == 2:
            chosen = chosen.replace("{}", "{0}", 1).replace("{}", self.atom(t))
        self.line(f"{name} = " + chosen.replace("{0}", "{}").format(text))
        self.owned.append(name)

    def function(self, t: str) -> None:
        """A function, or a module with a flag; the latter's result must go by the same name."""
        choices = self.usable(FUNCTIONS if "[" in t else [*FUNCTIONS, *MODULES, *MODULES])
        template = self.pick(choices)
        text = template.format(t=t)
        rebinds = "[" not in t and (template in MODULES or self.chance(2))
        self.line(f"{t} = {text}" if rebinds else text)

    def consumed(self, t: str) -> None:
        """The tensor gets another name, and is not read under the old one again."""
        if not t.startswith("v") or "[" in t or self.loops or self.indent > 2:
            return self.function(t)
        name = self.name()
        calls = [f"{t}.{self.method_call(t)}", self.pick(self.usable(FUNCTIONS)).format(t=t)]
        if self.in_method:
            calls.append(self.pick(MODULES).format(t=t))
            calls += [f"{helper}({t})" for helper in self.helpers]
        self.line(f"{name} = {self.pick(calls)}")
        self.owned[self.owned.index(t)] = name
        return None

    def other(self) -> None:
        """Other types, and memory that is filled."""
        name = self.name()
        kind = self.draw(st.integers(0, 5))
        if kind == 0:
            self.line(f"{name} = ({self.fresh()}).float()")
            self.line(f"{name} {self.pick(AUGMENTED)} {self.value('')}")
            self.line(f"{name}.{self.pick(['mul_(0.5)', 'relu_()', 'add_(1)'])}")
            self.line(f"{name}[:, 0] = {self.pick(['0.5', '2', 'x[:, 0]'])}")
            self.read.append(f"{name}.double()")
        elif kind == 1:
            self.line(f"{name} = {self.atom()} > 0")
            self.line(f"{name} {self.pick(['&=', '|=', '^='])} {self.atom()} < 0.5")
            self.line(f"{name}.logical_not_()")
            self.read.append(f"(x * {name})")
        elif kind == 2:
            self.line(f"{name} = torch.arange(4)")
            self.line(f"{name} {self.pick(['+=', '*=', '<<=', '//=', '%=', '**='])} 2")
            self.line(f"{name}[{self.pick(['0', '1:', '::2'])}] = {self.pick(['1', '3'])}")
            self.read.append(f"(x * {name})")
        elif kind == 3:
            self.line(f"{name} = torch.empty_like(x)")
            with self.block("with torch.no_grad():"):
                self.line(f"torch.mul({self.atom()}, 0.5, out={name})")
                self.line(f"{name}.{self.pick(['add_(1)', 'tanh_()'])}")
            self.owned.append(name)
        elif kind == 4:
            self.line(f"{name} = {self.fresh()}")
            with self.block("with torch.no_grad():"):
                self.line(f"{name}.{self.pick(['clamp_(-0.5, 0.5)', 'mul_(0.5)'])}")
            self.owned.append(name)
        elif self.in_method and not self.loops:
            self.line(f"self.steps += {self.pick(['1', '2'])}")

    def alias(self) -> None:
        """Something after which a tensor has two names, or a write that others see."""
        t, name = self.atom(), self.name()
        self.line(
            self.pick(
                [
                    f"{name} = {t}",
                    f"{name} = {t}[:, :]",
                    f"{name} = {t}.view(-1, 4)",
                    f"{name} = {t}.t().t()",
                    f"{name} = {t}.relu_()",
                    f"{name} = F.relu({t}, inplace=True)",
                    f"{name} = {t} + {t}.mul_(0.5)",
                    f"{name} = {t} + F.relu({t}, inplace=True)",
                    f"{name} = [{t}, {t}][0]",
                    f"{name} = {t} if {self.atom()}.sum() > 0 else {self.atom()}",
                    f"{name} = (lambda h: h.mul_(0.5))({t})",
                    f"{name} = {t}.detach()",
                    f"{name} = {t}.to(torch.float64)",
                    f"{name} = {t}; {t}.mul_(0.5)" if "(" not in t else f"{name} = {t}",
                ]
            )
        )
        self.owned.append(name)

    def indirect(self) -> None:
        """A function, a nested function or an object that is not called by its name."""
        t, name, other = self.atom(), self.name(), self.name()
        condition = self.filled(self.pick(self.usable(CONDITIONS)))
        kind = self.draw(st.integers(0, 9))
        if kind == 0:
            self.line(
                f"{name} = {self.pick(['TABLE', '[doubles, halves]'])}[int({condition})]({t})"
            )
        elif kind == 1:
            self.line(f"{name} = (halves if {condition} else doubles)({t})")
        elif kind == 2:
            self.line(f"{other} = []; {other}.append(halves); {name} = {other}[0]({t})")
        elif kind == 3:
            self.line(f"{other} = dict(f=halves)")
            self.line(f"{name} = {self.pick(['next(iter({}.values()))', '{}.pop(chr(102))'])}({t})"
                      .replace("{}", other))  # fmt: skip
        elif kind == 4:
            self.line(f"def {other}(): return {t} * 2")
            self.line(f"{name} = [{other}]")
            self.read += [f"{other}()", f"{name}[0]()"]
            return
        elif kind == 5:
            self.line(f"{other} = Held({t})")
            self.read += [f"{other}()", f"{other}.half"]
            self.line(f"{name} = {self.pick(['{}.overwrite()', '{}.h', '{}()'])}"
                      .replace("{}", other))  # fmt: skip
        elif kind == 6:
            self.line(f"{other} = Held({t})")
            with self.block(f"with {other}:"):
                self.site()
            self.line(f"{name} = {other}.h")
        else:
            call = ("spread({t}, held={a})", "bound({t})", "unnamed({a}, {t})", "spread({t})")
            self.line(f"{name} = {self.pick(call).format(t=t, a=self.atom())}")
        self.owned.append(name)

    def branch(self, depth: int) -> None:
        conditions = [*CONDITIONS, *(f"{counter} == 1" for counter in self.counters)]
        with self.block(f"if {self.filled(self.pick(self.usable(conditions)))}:"):
            self.statements(3, depth)
        if self.chance(2):
            with self.block("else:"):
                self.statements(2, depth)

    def loop(self, depth: int) -> None:
        counter = self.name()
        self.loops += 1
        if self.chance(3):
            self.line(f"{counter} = 0")
            with self.block(f"while {counter} < 2:"):
                self.counters.append(counter)
                form = "{0} += 1" if self.chance(2) else "{0} = {0} + 1"
                self.line(form.format(counter))
                self.statements(3, depth)
                self.counters.remove(counter)
        else:
            over = self.pick(["range(2)", "(0.5, 1)", "[x, x * 2]"])
            with self.block(f"for {counter} in {over}:"):
                if over.startswith("["):
                    self.read.append(counter)
                self.statements(3, depth)
        self.loops -= 1

    # -- functions ----------------------------------------------------------------------

    def body(self, parameter: str, most: int, depth: int, *, owned: bool) -> None:
        self.owned, self.read = ([parameter], []) if owned else ([], [parameter])
        if owned:  # something else to read
            other = self.name()
            self.line(f"{other} = torch.cos({parameter})")
            self.read.append(other)
        self.statements(most, depth)

    def returned(self) -> str:
        """Everything that the body has made."""
        return " + ".join([*self.owned, *self.read]) or "x"


@st.composite
def programs(draw, wild=False):
    """The text of a file with a class ``Net`` whose forward takes one tensor of shape (N, 4)."""
    program = Program(draw, wild)
    text = [HEAD, INDIRECT] if wild else [HEAD]
    helpers: list[str] = []
    for number in range(draw(st.integers(0, 2))):
        program.in_method, program.indent, program.lines = False, 1, []
        program.body("h", 3, 0, owned=True)
        if program.chance(2):
            text.append("@passed\n")
        text += [
            f"def helper{number}(h):\n",
            re.sub(r"\bx\b", "h", "\n".join(program.lines)) + "\n",
        ]
        text.append("    return h\n\n\n")
        helpers.append(f"helper{number}")
    text += ["class Net(nn.Module):\n", INIT]
    program.in_method, program.indent = True, 2
    if draw(st.booleans()):
        program.lines = []
        program.body("x", 3, 1, owned=True)
        text += ["    def mixed(self, x):\n", "\n".join(program.lines) + "\n"]
        text.append(f"        return {program.pick(['x', 'x', 'x * 1'])}\n\n")
        helpers.append("self.mixed")
    program.lines, program.helpers = [], helpers
    program.body("x", 6, 2, owned=False)
    text += ["    def forward(self, x):\n", "\n".join(program.lines) + "\n"]
    result = program.returned()
    text.append(f"        return {program.pick([result, f'[{result}, x * 2]'])}\n")
    return "".join(text)
