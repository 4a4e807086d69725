"""Loops whose blocks read what is something else when backward recomputes them."""

import textwrap

from programs import LOOP, Program

BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
"""
INIT = "self.blocks = nn.ModuleList([Block() for _ in range(3)])"


def looped(forward, body=LOOP, definitions="", block="", methods=""):
    """A loop over blocks with a forward, and perhaps attributes, of their own."""
    parts = (block, 8), ("def forward(self, x):", 4), (forward, 8)
    inner = "\n".join(textwrap.indent(text.strip(), " " * depth) for text, depth in parts)
    return Program(body, f"{definitions}\n{BLOCK}{inner}\n", INIT, methods)


PROGRAMS = {
    "block class attr setattr": looped(
        forward="return torch.tanh(self.lin(x) * CFG.s)",
        body="""
for b in self.blocks:
    x = b(x)
setattr(CFG, 's', 2.0)
return x
""",
        definitions="""
class CFG:
    s = 1.0
""",
    ),
    "block class attr tensor2 later": looped(
        forward="return torch.tanh(self.lin(x) + CFG.t)",
        body="""
for b in self.blocks:
    x = b(x)
CFG.t.add_(1)
return x
""",
        definitions="""
class CFG:
    t = torch.ones(3)
""",
    ),
    "block class attr tensor later": looped(
        forward="return torch.tanh(self.lin(x) + self.bf)",
        body="""
for b in self.blocks:
    x = b(x)
Block.bf.add_(1)
return x
""",
        definitions="TT = torch.ones(3)",
        block="type(self).bf = TT",
    ),
    "block contextvar": looped(
        forward="return torch.tanh(self.lin(x) * CV.get())",
        body="""
for b in self.blocks:
    x = b(x)
CV.set(5)
return x
""",
        definitions="CV = contextvars.ContextVar('v', default=1)",
    ),
    "block generator fn": looped(
        forward="return torch.tanh(self.lin(x) * next(self.g))",
        definitions="""
def gen():
    i = 0
    while True:
        i += 1
        yield i
""",
        block="self.g = gen()",
    ),
    "block global count": looped(
        forward="return torch.tanh(self.lin(x) * next(G))", definitions="G = itertools.count(1)"
    ),
    "block global fn replaced": looped(
        forward="return act(self.lin(x))",
        body="""
for b in self.blocks:
    x = b(x)
globals()['act'] = torch.sigmoid
return x
""",
        definitions="act = torch.tanh",
    ),
    "block global tensor in block": looped(
        forward="return torch.tanh(self.lin(x) + G)",
        body="""
for b in self.blocks:
    x = b(x)
G.add_(1)
return x
""",
        definitions="G = torch.zeros(3)",
    ),
    "block global tensor via helper": looped(
        forward="return torch.tanh(self.lin(x) + G)",
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
""",
    ),
    "block iter global": looped(
        forward="return torch.tanh(self.lin(x) * next(G))", definitions="G = iter(range(1, 1000))"
    ),
    "block itertools count": looped(
        forward="return torch.tanh(self.lin(x) * next(self.g))", block="self.g = itertools.count(1)"
    ),
    "block itertools cycle": looped(
        forward="return torch.tanh(self.lin(x) * next(self.g))",
        block="self.g = itertools.cycle([1, 2, 3, 4, 5])",
    ),
    "block numpy global rng": looped(
        forward="return torch.tanh(self.lin(x) * float(numpy.random.rand()))",
        body="""
numpy.random.seed(0)
for b in self.blocks:
    x = b(x)
return x
""",
    ),
    "block queue state": looped(
        forward="return torch.tanh(self.lin(x) * (1 + self.q.qsize()))",
        body="""
for b in self.blocks:
    x = b(x)
for b in self.blocks:
    b.q.put(1)
return x
""",
        block="""
import queue
self.q = queue.Queue()
""",
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
    "block threading local": looped(
        forward="return torch.tanh(self.lin(x) * getattr(TL, 'v', 1))",
        body="""
for b in self.blocks:
    x = b(x)
TL.v = 5
return x
""",
        definitions="TL = threading.local()",
    ),
    "block time": looped(
        forward="return torch.tanh(self.lin(x) * tick())",
        definitions="""
Q = queue.Queue()

for i in range(1, 999):
    Q.put(i)

tick = Q.get
""",
    ),
    "ctx with loop contextvar": looped(
        forward="return torch.tanh(self.lin(x) * CV.get())",
        body="""
t = CV.set(3)
for b in self.blocks:
    x = b(x)
CV.reset(t)
return x
""",
        definitions="CV = contextvars.ContextVar('v', default=1)",
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
