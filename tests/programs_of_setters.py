"""Forwards that set attributes in roundabout ways, and branches that look at them."""

from programs import Program

CONTROL = """
class Ctl(nn.Module):

    def __init__(self):
        super().__init__()
        self.mode = 'a'
        self.modd = 'a'
"""

SWITCHED = """
self.sw = Sw()
self.sw.ctl = self.ctl
"""

# Methods that set an attribute and tell it.
PUT = """
def put(self, v):
    self.none = v

def get(self):
    return self.none

def m0(self, x, *a):
    h = torch.relu(x)
    return h
"""


def controlled(body, definitions="", init="", methods=""):
    """A forward beside a module ``self.ctl``, whose ``mode`` it looks at."""
    return Program(body, CONTROL + definitions, f"self.ctl = Ctl()\n{init.strip()}", methods)


PROGRAMS = {
    "callback map cls": controlled(
        body="""
list(map(Tg, [self.ctl]))
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Tg:

    def __init__(self, s):
        s.mode = 'b'
""",
    ),
    "deepcopy": controlled(
        body="""
copy.deepcopy(self.sw)
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Sw:

    def __deepcopy__(self, memo):
        Tg(self)
        return self

class Tg:

    def __init__(self, s):
        s.ctl.mode = 'b'
""",
        init=SWITCHED,
    ),
    "dunder dict alias": controlled(
        body="""
d = getattr(self.ctl, '__dict__')
d['mode'] = 'b'
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
"""
    ),
    "dunder setattr rt": controlled(
        body="""
key = 'mode' if x.shape[0] > 2 else 'z'
self.ctl.__setattr__(key, 'b')
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
"""
    ),
    "exec": controlled(
        body="""
EX(self.ctl)
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
exec('def EX(c): c.mode = "b"')
""",
    ),
    "iter class": controlled(
        body="""
for _ in self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class It:

    def __init__(self, c):
        self.c = c
        self.n = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.n:
            raise StopIteration
        self.n = 1
        self.c.mode = 'b'

class Sw:

    def __iter__(self):
        return It(self.ctl)
""",
        init=SWITCHED,
    ),
    "load": controlled(
        body="""
self.ctl.__setstate__({**self.ctl.__getstate__(), 'mode': 'b'})
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
"""
    ),
    "object setattr rt": controlled(
        body="""
key = 'mode' if x.shape[0] > 2 else 'z'
object.__setattr__(self.ctl, key, 'b')
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
"""
    ),
    "setattr fstring only text value": controlled(
        body="""
key = 'mode' if x.shape[0] > 2 else 'z'
setattr(self.ctl, f'{key}', 'b')
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
"""
    ),
    "setattr join": controlled(
        body="""
setattr(self.ctl, ''.join(['mo', 'de'] if x.shape[0] > 2 else ['z']), 'b')
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
"""
    ),
    "setattr loop keys": controlled(
        body="""
for k in list(self.keys):
    setattr(self.ctl, k, 'b')
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.keys = {'mode'}",
    ),
    "setattr percent": controlled(
        body="""
setattr(self.ctl, '%s' % ('mode' if x.shape[0] > 2 else 'z'), 'b')
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
"""
    ),
    "setattr rt key text value": controlled(
        body="""
key = 'mode' if x.shape[0] > 2 else 'z'
setattr(self.ctl, key, 'b')
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
"""
    ),
    "toggle class init": controlled(
        body="""
if self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Tog:

    def __init__(self, s):
        s.ctl.mode = 'b'

class Sw:

    def __bool__(self):
        Tog(self)
        return True
""",
        init=SWITCHED,
    ),
    "toggle classmethod": controlled(
        body="""
if self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Sw:

    @classmethod
    def p(cls, c):
        c.mode = 'b'

    def __bool__(self):
        self.p(self.ctl)
        return True
""",
        init=SWITCHED,
    ),
    "toggle dict fn": controlled(
        body="""
if self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
def tg(s):
    s.ctl.mode = 'b'

FN = {'t': tg}

class Sw:

    def __bool__(self):
        FN['t'](self)
        return True
""",
        init=SWITCHED,
    ),
    "toggle method of ctl": Program(
        body="""
if self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class C2(Control):

    def go(self):
        self.mode = 'b'

class Sw:

    def __bool__(self):
        self.ctl.go()
        return True
""",
        init="""
self.ctl = C2()
self.sw = Sw()
self.sw.ctl = self.ctl
""",
    ),
    "toggle own staticmethod": controlled(
        body="""
if self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Sw:

    @staticmethod
    def p(c):
        c.mode = 'b'

    def __bool__(self):
        self.p(self.ctl)
        return True
""",
        init=SWITCHED,
    ),
    "toggle partial": controlled(
        body="""
if self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
def tg(s):
    s.ctl.mode = 'b'

TP = functools.partial(tg)

class Sw:

    def __bool__(self):
        TP(self)
        return True
""",
        init=SWITCHED,
    ),
    "toggle property": controlled(
        body="""
if self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Sw:

    @property
    def p(self):
        self.ctl.mode = 'b'
        return True

    def __bool__(self):
        return self.p
""",
        init=SWITCHED,
    ),
    "toggle staticmethod": controlled(
        body="""
if self.sw:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Tog:

    @staticmethod
    def t(s):
        s.ctl.mode = 'b'

class Sw:

    def __bool__(self):
        Tog.t(self)
        return True
""",
        init=SWITCHED,
    ),
    "child opaque": Program(
        body="""
self.put('a')
self.tg(x)
h = self.lin(x)
y = h if self.none == 'b' else x
h += 1
return y
""",
        definitions="""
import types, threading

class Tg(nn.Module):

    def forward(self, x):
        locals()
        self.o[0].put('b')
        return x
""",
        init="""
self.d = {}
self.tg = Tg()
self.tg.o = [self]
""",
        methods=PUT,
    ),
    "genexp late": Program(
        body="""
g = (self.put('b') for _ in range(1))
self.put('a')
list(g)
h = self.lin(x)
y = h if self.none == 'b' else x
h += 1
return y
""",
        definitions="import types, threading",
        init="self.d = {}",
        methods=PUT,
    ),
    "suppress": Program(
        body="""
self.put('a')
with suppress(KeyError):
    self.put('b')
    self.d['q']
    self.put('a')
h = self.lin(x)
y = h if self.none == 'b' else x
h += 1
return y
""",
        definitions="import types, threading",
        init="self.d = {}",
        methods=PUT,
    ),
    "try implicit callee": Program(
        body="""
self.put('a')
try:
    self.mid()
except KeyError:
    pass
h = self.lin(x)
y = h if self.none == 'b' else x
h += 1
return y
""",
        definitions="import types, threading",
        init="self.d = {}",
        methods=PUT
        + """
def mid(self):
    self.put('b')
    self.d['q']
    self.put('a')
""",
    ),
    "try implicit mode": Program(
        body="""
self.put('a')
try:
    self.put('b')
    self.d['q']
    self.put('a')
except KeyError:
    pass
h = self.lin(x)
y = h if self.none == 'b' else x
h += 1
return y
""",
        definitions="import types, threading",
        init="self.d = {}",
        methods=PUT,
    ),
}
