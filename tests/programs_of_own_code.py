"""Forwards whose objects run code of their own for what Python or torch else does."""

from programs import Program

PROGRAMS = {
    "LayerDrop rand": Program(
        body="""
h = self.lin(x)
y = h
for b in self.layers:
    y = b(y)
h += 1
return y
""",
        definitions="""
class LD(nn.ModuleList):

    def __iter__(self):
        for m in super().__iter__():
            if not self.training:
                yield m
""",
        init="""
self.layers = LD([nn.Linear(3, 3)])
self.eval()
""",
    ),
    "ModuleList getitem": Program(
        body="""
h = self.lin(x)
y = self.layers[0](h)
h += 1
return y
""",
        definitions="""
class LD(nn.ModuleList):

    def __getitem__(self, i):
        return super().__getitem__(1)
""",
        init="self.layers = LD([nn.Linear(3, 3), nn.Identity()])",
    ),
    "ModuleList len": Program(
        body="""
h = self.lin(x)
y = h if len(self.layers) == 5 else x
h += 1
return y
""",
        definitions="""
class LD(nn.ModuleList):

    def __len__(self):
        return 5
""",
        init="self.layers = LD([nn.Linear(3, 3), nn.Identity()])",
    ),
    "bool module": Program(
        body="""
h = self.lin(x)
y = x if self.gate else h
h += 1
return y
""",
        definitions="""
class Gate(nn.Module):

    def __bool__(self):
        return False
""",
        init="self.gate = Gate()",
    ),
    "del": Program(
        body="""
h = self.lin(x)
y = h
g = G(y)
h += 1
del g
return h * 1
""",
        definitions="""
class G:

    def __init__(self, t):
        self.t = t

    def __del__(self):
        self.t.data.add_(1)
""",
    ),
    "getattribute override": Program(
        body="""
h = self.lin(x)
y = h if self.ctl.on else x
h += 1
return y
""",
        definitions="""
class D(nn.Module):
    on = False

    def __getattribute__(self, n):
        if n == 'on':
            return True
        return super().__getattribute__(n)
""",
        init="self.ctl = D()",
    ),
    "len module changing": Program(
        body="""
h = self.lin(x)
y = x
if self.gate:
    y = h
self.gate.n += 1
h += 1
return y
""",
        definitions="""
class Gate(nn.Module):
    n = 0

    def __len__(self):
        return self.n
""",
        init="self.gate = Gate()",
    ),
    "new keeps": Program(
        body="""
h = self.lin(x)
b = Box(h)
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

class Box:

    def __new__(cls, t):
        KEPT.append(t)
        return object.__new__(cls)

    def __init__(self, t):
        self.n = 1
""",
    ),
    "setattr flag": Program(
        body="""
self.ctl.v = 1
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Control(nn.Module):
    mode = 'a'

    def __setattr__(self, n, v):
        if n == 'v':
            n, v = ('mode', 'b')
        super().__setattr__(n, v)
""",
        init="self.ctl = Control()",
    ),
    "data descriptor over instance dict": Program(
        body="""
h = self.lin(x)
y = h if self.ctl.on else x
h += 1
return y
""",
        definitions="""
class Ds:

    def __get__(self, o, c):
        return True

    def __set__(self, o, v):
        pass

class D(nn.Module):
    on = Ds()
""",
        init="""
self.ctl = D()
self.ctl.__dict__['on'] = False
""",
    ),
    "dataclass own init keeps": Program(
        body="""
h = self.lin(x)
p = P(h)
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

@dataclasses.dataclass
class P:
    a: typing.Any = None

    def __init__(self, t):
        KEPT.append(t)
        self.a = 1
""",
    ),
    "dataclass own init writes": Program(
        body="""
h = self.lin(x)
y = h
h += 1
p = P(y)
return h
""",
        definitions="""
@dataclasses.dataclass
class P:
    a: typing.Any = None

    def __init__(self, t):
        t.add_(1)
        self.a = 1
""",
    ),
    "dataclass setattr": Program(
        body="""
h = self.lin(x)
p = P(h)
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

@dataclasses.dataclass
class P:
    a: typing.Any = None

    def __setattr__(self, n, v):
        KEPT.append(v)
        object.__setattr__(self, n, v)
""",
    ),
    "dataclass subclass init": Program(
        body="""
h = self.lin(x)
p = Q(h)
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

@dataclasses.dataclass
class P:
    a: typing.Any = None

class Q(P):

    def __init__(self, t):
        super().__init__(t)
        KEPT.append(t)
""",
    ),
    "descriptor truthy known": Program(
        body="""
h = self.lin(x)
y = h if self.on2 else x
h += 1
return y
""",
        definitions="""
class Ds(int):

    def __get__(self, o, c):
        return True
""",
        methods="on2 = Ds(0)",
    ),
    "hasattr getattr dynamic": Program(
        body="""
self.ctl.tab['k'] = 1
h = self.lin(x)
y = h if hasattr(self.ctl, 'k') else x
h += 1
return y
""",
        definitions="""
class D(nn.Module):

    def __init__(self):
        super().__init__()
        self.tab = {}

    def __getattr__(self, n):
        t = self.__dict__.get('tab', {})
        if n in t:
            return t[n]
        return super().__getattr__(n)
""",
        init="self.ctl = D()",
    ),
    "hasattr property raising": Program(
        body="""
self.ready = True
h = self.lin(x)
y = h if hasattr(self, 'p') else x
h += 1
return y
""",
        init="self.ready = False",
        methods="""
@property
def p(self):
    if not self.ready:
        raise AttributeError
    return 1
""",
    ),
    "hasattr property side effect": Program(
        body="""
hasattr(self, 'p')
return self.lin(x) * self.n
""",
        init="self.n = 0",
        methods="""
@property
def p(self):
    self.n += 1
    return 1
""",
    ),
    "m dictit": Program(
        body="""
dict.fromkeys(self.o)
h = self.lin(x)
y = h if self.o.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class O(nn.Module):
    mode = 'a'

    def set_4(self):
        self.mode = 'b'

    def key(self, t):
        self.mode = 'b'
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *a):
        self.mode = 'b'

    def __str__(self):
        self.mode = 'b'
        return 's'

    def __iter__(self):
        self.mode = 'b'
        return iter([1])

    def __add__(self, o):
        self.mode = 'b'

    def __contains__(self, o):
        self.mode = 'b'
        return True

    def __getitem__(self, i):
        self.mode = 'b'
        return i

    def __setitem__(self, i, v):
        self.mode = 'b'

    def __iadd__(self, v):
        self.mode = 'b'
        return self

    def __neg__(self):
        self.mode = 'b'
        return self
    __hash__ = nn.Module.__hash__

    @property
    def p(self):
        self.mode = 'b'
        return 1

    @p.setter
    def p(self, v):
        self.mode = 'b'

    @classmethod
    def cl(cls):
        cls.mode = 'b'

    @functools.cached_property
    def cp(self):
        self.mode = 'b'
        return 1
""",
        init="self.o = O()",
    ),
    "metaclass call keeps": Program(
        body="""
h = self.lin(x)
Box(h)
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

class Meta(type):

    def __call__(cls, *a):
        KEPT.append(a[0])
        return super().__call__(*a)

class Box(metaclass=Meta):

    def __init__(self, n):
        self.n = 1
""",
    ),
    "metaclass singleton": Program(
        body="""
b = Box(1)
h = self.lin(x)
b.t = h
h += 1
return Box(1).t
""",
        definitions="""
class Meta(type):
    i = None

    def __call__(cls, *a):
        if cls.i is None:
            cls.i = super().__call__(*a)
        return cls.i

class Box(metaclass=Meta):

    def __init__(self, n):
        self.n = n
""",
    ),
    "module add keeps": Program(
        body="""
h = self.lin(x)
self.e + h
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

class E(nn.Module):

    def __add__(self, t):
        KEPT.append(t)
        return 1
""",
        init="self.e = E()",
    ),
    "module add op": Program(
        body="""
z = self.e.go(self.lin(x))
h = self.lin(x)
self.e + h
return h * 2 + z
""",
        definitions="""
class E(nn.Module):

    def go(self, t):
        t += 1
        return t

    def __add__(self, t):
        return self.go(t)
""",
        init="self.e = E()",
    ),
    "module add returns": Program(
        body="""
h = self.lin(x)
y = self.e + h
h += 1
return y
""",
        definitions="""
class E(nn.Module):

    def __add__(self, t):
        return t
""",
        init="self.e = E()",
    ),
    "module contains op": Program(
        body="""
h = self.lin(x)
h in self.e
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

class E(nn.Module):

    def __contains__(self, t):
        KEPT.append(t)
        return True
""",
        init="self.e = E()",
    ),
    "module exit flag": Program(
        body="""
with self.e:
    pass
h = self.lin(x)
y = h if self.e.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class E(nn.Module):
    mode = 'a'

    def __enter__(self):
        return 1

    def __exit__(self, *a):
        self.mode = 'b'
""",
        init="self.e = E()",
    ),
    "module lt op": Program(
        body="""
h = self.lin(x)
self.e < h
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

class E(nn.Module):

    def __lt__(self, t):
        KEPT.append(t)
        return True
""",
        init="self.e = E()",
    ),
    "module prop setter op": Program(
        body="""
z = self.e.go(self.lin(x))
h = self.lin(x)
self.e.t = h
return h * 2 + z
""",
        definitions="""
class E(nn.Module):

    def go(self, t):
        t += 1
        return t

    @property
    def t(self):
        return 1

    @t.setter
    def t(self, v):
        self.go(v)
""",
        init="self.e = E()",
    ),
    "module setattr op": Program(
        body="""
z = self.e.go(self.lin(x))
h = self.lin(x)
self.e.t = h
return h + z
""",
        definitions="""
class E(nn.Module):

    def go(self, t):
        t += 1
        return t

    def __setattr__(self, n, t):
        if n == 't':
            self.go(t)
        else:
            super().__setattr__(n, t)
""",
        init="self.e = E()",
    ),
    "namedtuple new": Program(
        body="""
h = self.lin(x)
p = P(h)
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

class P(collections.namedtuple('P0', 'a')):

    def __new__(cls, t):
        KEPT.append(t)
        return super().__new__(cls, 1)
""",
    ),
    "obj getattribute override": Program(
        body="""
h = self.lin(x)
y = h if self.ctl.on else x
h += 1
return y
""",
        definitions="""
class D:
    on = False

    def __getattribute__(self, n):
        if n == 'on':
            return True
        return super().__getattribute__(n)
""",
        init="self.ctl = D()",
    ),
    "property setter flag": Program(
        body="""
self.v = 1
h = self.lin(x)
y = h if self.mode == 'b' else x
h += 1
return y
""",
        init="self.mode = 'a'",
        methods="""
@property
def v(self):
    return 1

@v.setter
def v(self, t):
    self.mode = 'b'
""",
    ),
    "property setter flag child": Program(
        body="""
self.ctl.v = 1
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Control(nn.Module):
    mode = 'a'

    @property
    def v(self):
        return 1

    @v.setter
    def v(self, t):
        self.mode = 'b'
""",
        init="self.ctl = Control()",
    ),
    "singleton new": Program(
        body="""
b = Box()
h = self.lin(x)
b.t = h
h += 1
return Box().t
""",
        definitions="""
class Box:
    _i = None

    def __new__(cls):
        if cls._i is None:
            cls._i = object.__new__(cls)
        return cls._i
""",
    ),
    "tensor subclass iadd": Program(
        body="""
t = T(self.lin(x).detach())
t += 1
return torch.Tensor(t) * 1
""",
        definitions="""
class T(torch.Tensor):

    def __iadd__(self, o):
        return self * 100
""",
    ),
    "tensor subclass keeps": Program(
        body="""
h = self.lin(x).detach()
t = T(h)
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

class T(torch.Tensor):

    def __init__(self, t):
        KEPT.append(t)
""",
    ),
    "tuple subclass new": Program(
        body="""
h = self.lin(x)
p = P([h])
h += 1
return KEPT[-1]
""",
        definitions="""
KEPT = []

class P(tuple):

    def __new__(cls, t):
        KEPT.append(t[0])
        return super().__new__(cls, ())
""",
    ),
}
