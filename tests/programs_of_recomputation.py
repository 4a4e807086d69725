"""Blocks of loops that see something else when backward recomputes them."""

from programs import Program

PROGRAMS = {
    "array": Program(
        body="""
for b in self.blocks:
    x = b(x)
A.append(7)
return x
""",
        definitions="""
import array
A = array.array('f', [1.0])

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
        return torch.tanh(self.lin(x) * len(A))
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
""",
    ),
    "bytearray": Program(
        body="""
for b in self.blocks:
    x = b(x)
A[0] = 7
return x
""",
        definitions="""
A = bytearray(b'abc')

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
        return torch.tanh(self.lin(x) * float(A[0]))
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
""",
    ),
    "counter": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
D = collections.Counter()

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
        D['a'] += 1
        return torch.tanh(self.lin(x) * D['a'])
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
""",
    ),
    "counter update": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
D = collections.Counter()

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
        D.update('a')
        return torch.tanh(self.lin(x) * D['a'])
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
""",
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
    "grad fn q": Program(
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
        return torch.tanh(self.lin(x) * (2.0 if x.grad_fn is None else 1.0))
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
""",
    ),
    "is leaf q": Program(
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
        return torch.tanh(self.lin(x) * (2.0 if x.is_leaf else 1.0))
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
""",
    ),
    "random instance": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
import random
RNG = random.Random(3)

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
        return torch.tanh(self.lin(x) * RNG.random())
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
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
    "torch gen": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
RNG = torch.Generator().manual_seed(1)

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
        return torch.tanh(self.lin(x) * torch.rand(3, generator=RNG))
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
""",
    ),
    "torch gen method": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
RNG = torch.Generator().manual_seed(1)

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
        return torch.tanh(self.lin(x) * torch.empty(3).uniform_(generator=RNG))
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
""",
    ),
    "class by param": Program(
        body="""
locals()
x = self.m0(x)
put(Cfg)
return x
""",
        definitions="""
def put(C):
    C.s = 4.0

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
    "class set local": Program(
        body="""
locals()
x = self.m0(x)
C = type(self.cfg)
C.s = 4.0
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
        return torch.tanh(self.lin(x) * self.cfg.s)
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
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
    "module class set in loop var": Program(
        body="""
locals()
x = self.m0(x)
for C in (Cfg,):
    C.s = 4.0
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
    "toggle setattr rt after": Program(
        body="""
locals()
k = 's' if x.shape[0] else 'z'
x = self.m0(x)
setattr(Cfg, k, 'b' and 4.0)
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
    "toggle setattr text after": Program(
        body="""
locals()
k = 's' if x.shape[0] else 'z'
x = self.m0(x)
setattr(Cfg, k, '4.')
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
        return torch.tanh(self.lin(x) * float(Cfg.s))
""",
        init="""
self.cfg = Cfg()
self.blocks = nn.ModuleList([Block(self.cfg) for _ in range(3)])
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
}
