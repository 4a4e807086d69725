"""Blocks of loops that see something else when backward recomputes them."""

import textwrap

from programs import LOOP, Program

BLOCKS = """
class Cfg:
    s = 1.0


class Block(nn.Module):
    def __init__(self, cfg=None):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.cfg = cfg
        self.n = 0
        self.s = 1.0
        self.register_buffer("buf", torch.ones(3))

    def forward(self, {parameters}):
"""
PASSES = """
def m0(self, x):
    for b in self.blocks:
        x = b(x)
    return x

def m1(self, x, c):
    for b in self.blocks:
        x = b(x, c)
    return x
"""
INIT = """
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
"""


def looped(forward, body=LOOP, definitions="", methods="", parameters="x"):
    """A loop over blocks with a forward of their own, which share a configuration."""
    block = BLOCKS.format(parameters=parameters) + textwrap.indent(forward.strip(), " " * 8)
    return Program(body, f"{definitions}\n{block}\n", INIT, f"{PASSES}\n{methods.strip()}")


PROGRAMS = {
    "array": looped(
        forward="return torch.tanh(self.lin(x) * len(A))",
        body="""
for b in self.blocks:
    x = b(x)
A.append(7)
return x
""",
        definitions="""
import array

A = array.array('f', [1.0])
""",
    ),
    "bytearray": looped(
        forward="return torch.tanh(self.lin(x) * float(A[0]))",
        body="""
for b in self.blocks:
    x = b(x)
A[0] = 7
return x
""",
        definitions="A = bytearray(b'abc')",
    ),
    "counter": looped(
        forward="""
D['a'] += 1
return torch.tanh(self.lin(x) * D['a'])
""",
        definitions="D = collections.Counter()",
    ),
    "counter update": looped(
        forward="""
D.update('a')
return torch.tanh(self.lin(x) * D['a'])
""",
        definitions="D = collections.Counter()",
    ),
    "defaultdict factory": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
import itertools

class Cfg:
    s = 1.0

class Block(nn.Module):

    def __init__(self, cfg=None):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.cfg = cfg
        self.n = 0
        self.s = 1.0
        self.register_buffer('buf', torch.ones(3))

    def forward(self, x):
        return torch.tanh(self.lin(x) * self.cfg[len(self.cfg)])
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
c = defaultdict(itertools.count(1).__next__)
for b in self.blocks:
    b.cfg = c
""",
    ),
    "grad fn q": looped(
        forward="return torch.tanh(self.lin(x) * (2.0 if x.grad_fn is None else 1.0))"
    ),
    "is leaf q": looped(forward="return torch.tanh(self.lin(x) * (2.0 if x.is_leaf else 1.0))"),
    "random instance": looped(
        forward="return torch.tanh(self.lin(x) * RNG.random())",
        definitions="""
import random

RNG = random.Random(3)
""",
    ),
    "stateful list block": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
class Cfg:
    s = 1.0

class Block(nn.Module):

    def __init__(self, cfg=None):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.cfg = cfg
        self.n = 0
        self.s = 1.0
        self.register_buffer('buf', torch.ones(3))

    def forward(self, x):
        self.cfg.l.append(1)
        return torch.tanh(self.lin(x) * len(self.cfg.l))
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
Cfg.l = []
""",
    ),
    "torch gen": looped(
        forward="return torch.tanh(self.lin(x) * torch.rand(3, generator=RNG))",
        definitions="RNG = torch.Generator().manual_seed(1)",
    ),
    "torch gen method": looped(
        forward="return torch.tanh(self.lin(x) * torch.empty(3).uniform_(generator=RNG))",
        definitions="RNG = torch.Generator().manual_seed(1)",
    ),
    "class by param": looped(
        forward="return torch.tanh(self.lin(x) * Cfg.s)",
        body="""
locals()
x = self.m0(x)
put(Cfg)
return x
""",
        definitions="""
def put(C):
    C.s = 4.0
""",
    ),
    "class method set": Program(
        body="""
locals()
x = self.m0(x)
self.cfg.go()
return x
""",
        definitions="""
class Cfg2:
    s = 1.0

    @classmethod
    def go(cls):
        cls.s = 4.0

class Cfg:
    s = 1.0

class Block(nn.Module):

    def __init__(self, cfg=None):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.cfg = cfg
        self.n = 0
        self.s = 1.0
        self.register_buffer('buf', torch.ones(3))

    def forward(self, x):
        return torch.tanh(self.lin(x) * self.cfg.s)
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
c = Cfg2()
self.cfg = c
for b in self.blocks:
    b.cfg = c
""",
        methods="""
def m0(self, x):
    for b in self.blocks:
        x = b(x)
    return x

def m1(self, x, c):
    for b in self.blocks:
        x = b(x, c)
    return x
""",
    ),
    "class set attr": Program(
        body="""
locals()
x = self.m0(x)
self.C.s = 4.0
return x
""",
        definitions="""
class Cfg:
    s = 1.0

class Block(nn.Module):

    def __init__(self, cfg=None):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.cfg = cfg
        self.n = 0
        self.s = 1.0
        self.register_buffer('buf', torch.ones(3))

    def forward(self, x):
        return torch.tanh(self.lin(x) * Cfg.s)
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
self.__dict__['C'] = Cfg
""",
        methods="""
def m0(self, x):
    for b in self.blocks:
        x = b(x)
    return x

def m1(self, x, c):
    for b in self.blocks:
        x = b(x, c)
    return x
""",
    ),
    "class set local": looped(
        forward="return torch.tanh(self.lin(x) * self.cfg.s)",
        body="""
locals()
x = self.m0(x)
C = type(self.cfg)
C.s = 4.0
return x
""",
    ),
    "module class set in loop var": looped(
        forward="return torch.tanh(self.lin(x) * Cfg.s)",
        body="""
locals()
x = self.m0(x)
for C in (Cfg,):
    C.s = 4.0
return x
""",
    ),
    "toggle setattr rt after": looped(
        forward="return torch.tanh(self.lin(x) * Cfg.s)",
        body="""
locals()
k = 's' if x.shape[0] else 'z'
x = self.m0(x)
setattr(Cfg, k, 'b' and 4.0)
return x
""",
    ),
    "toggle setattr text after": looped(
        forward="return torch.tanh(self.lin(x) * float(Cfg.s))",
        body="""
locals()
k = 's' if x.shape[0] else 'z'
x = self.m0(x)
setattr(Cfg, k, '4.')
return x
""",
    ),
}
