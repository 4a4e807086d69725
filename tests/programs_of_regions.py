"""Loops whose blocks read what is something else when backward recomputes them."""

from programs import Program

PROGRAMS = {
    "block class attr setattr": Program(
        body="""
for b in self.blocks:
    x = b(x)
setattr(CFG, 's', 2.0)
return x
""",
        definitions="""
class CFG:
    s = 1.0

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) * CFG.s)
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block class attr tensor2 later": Program(
        body="""
for b in self.blocks:
    x = b(x)
CFG.t.add_(1)
return x
""",
        definitions="""
class CFG:
    t = torch.ones(3)

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) + CFG.t)
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block class attr tensor later": Program(
        body="""
for b in self.blocks:
    x = b(x)
Block.bf.add_(1)
return x
""",
        definitions="""
TT = torch.ones(3)

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        type(self).bf = TT

    def forward(self, x):
        return torch.tanh(self.lin(x) + self.bf)
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block contextvar": Program(
        body="""
for b in self.blocks:
    x = b(x)
CV.set(5)
return x
""",
        definitions="""
CV = contextvars.ContextVar('v', default=1)

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) * CV.get())
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block generator fn": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
def gen():
    i = 0
    while True:
        i += 1
        yield i

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.g = gen()

    def forward(self, x):
        return torch.tanh(self.lin(x) * next(self.g))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block global count": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
G = itertools.count(1)

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) * next(G))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block global fn replaced": Program(
        body="""
for b in self.blocks:
    x = b(x)
globals()['act'] = torch.sigmoid
return x
""",
        definitions="""
act = torch.tanh

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return act(self.lin(x))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block global tensor in block": Program(
        body="""
for b in self.blocks:
    x = b(x)
G.add_(1)
return x
""",
        definitions="""
G = torch.zeros(3)

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) + G)
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block global tensor via helper": Program(
        body="""
for b in self.blocks:
    x = b(x)
upd()
return x
""",
        definitions="""
G = torch.zeros(3)

def upd():
    G.add_(1)

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) + G)
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block iter global": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
G = iter(range(1, 1000))

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) * next(G))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block itertools count": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.g = itertools.count(1)

    def forward(self, x):
        return torch.tanh(self.lin(x) * next(self.g))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block itertools cycle": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.g = itertools.cycle([1, 2, 3, 4, 5])

    def forward(self, x):
        return torch.tanh(self.lin(x) * next(self.g))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block numpy global rng": Program(
        body="""
numpy.random.seed(0)
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) * float(numpy.random.rand()))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block queue state": Program(
        body="""
for b in self.blocks:
    x = b(x)
for b in self.blocks:
    b.q.put(1)
return x
""",
        definitions="""
class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        import queue
        self.q = queue.Queue()

    def forward(self, x):
        return torch.tanh(self.lin(x) * (1 + self.q.qsize()))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block requires grad off later": Program(
        body="""
for b in self.blocks:
    x = b(x)
for b in self.blocks:
    b.lin.weight.requires_grad_(False)
return x
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block requires grad off later2": Program(
        body="""
for b in self.blocks:
    x = b(x)
self.blocks.requires_grad_(False)
return x
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block threading local": Program(
        body="""
for b in self.blocks:
    x = b(x)
TL.v = 5
return x
""",
        definitions="""
TL = threading.local()

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) * getattr(TL, 'v', 1))
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "block time": Program(
        body="""
for b in self.blocks:
    x = b(x)
return x
""",
        definitions="""
Q = queue.Queue()
for i in range(1, 999):
    Q.put(i)
tick = Q.get

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        pass

    def forward(self, x):
        return torch.tanh(self.lin(x) * tick())
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "ctx with loop contextvar": Program(
        body="""
t = CV.set(3)
for b in self.blocks:
    x = b(x)
CV.reset(t)
return x
""",
        definitions="""
CV = contextvars.ContextVar('v', default=1)

class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.lin(x) * CV.get())
""",
        init="self.blocks = nn.ModuleList([Block() for _ in range(3)])",
    ),
    "loop del module after": Program(
        body="""
for b in self.blocks:
    x = torch.tanh(b(x))
self.blocks[0][0].weight.data = self.blocks[0][0].weight.data * 2
return x
""",
        init="""
self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)])
""",
    ),
    "loop global tensor": Program(
        body="""
for b in self.blocks:
    x = torch.tanh(b(x) + G)
G.add_(1)
return x
""",
        definitions="G = torch.zeros(3)",
        init="""
self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)])
""",
    ),
    "loop weights data swap": Program(
        body="""
for b in self.blocks:
    x = torch.tanh(b(x))
for b in self.blocks:
    b[0].weight.data.mul_(0.5)
return x
""",
        init="""
self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)])
""",
    ),
    "torch function mode": Program(
        body="""
with Mode():
    for b in self.blocks:
        x = torch.tanh(b(x))
return x
""",
        definitions="""
from torch.overrides import TorchFunctionMode

class Mode(TorchFunctionMode):

    def __torch_function__(self, f, t, a=(), k=None):
        if f is torch.tanh:
            return torch.sigmoid(*a)
        return f(*a, **k or {})
""",
    ),
}
