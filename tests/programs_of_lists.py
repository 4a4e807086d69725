"""Forwards whose inputs are lists and objects, and what is made of them."""

from programs import Program

PROGRAMS = {
    "add first": Program(
        body="""
h = (l + l)[0]
h += 1
return h
""",
        parameters="x, l",
    ),
    "iadd mul": Program(
        body="""
h = x * 1
m = l * 1
m += [h]
h += 1
return m[-1] * 1
""",
        parameters="x, l",
    ),
    "mul": Program(
        body="""
m = l * 2
h = m[0]
h += 1
return h
""",
        parameters="x, l",
    ),
    "mul F": Program(
        body="""
m = l * 2
F.relu(m[0], inplace=True)
m[0].add_(1)
return x * 2
""",
        parameters="x, l",
    ),
    "mul sub": Program(
        body="""
m = l * 2
m[0] += 1
return m[0]
""",
        parameters="x, l",
    ),
    "setitem mul": Program(
        body="""
h = x * 1
m = l * 1
m[0] = h
h += 1
return m[0] * 1
""",
        parameters="x, l",
    ),
    "ior get": Program(
        body="""
h = x * 1
m = d | d
m |= {'z': h}
h += 1
return m['z'] * 1
""",
        parameters="x, d",
    ),
    "items and": Program(
        body="""
m = dict(d.items() & d.items())
h = m['a']
h += 1
return d['a'] * 1
""",
        parameters="x, d",
    ),
    "or3": Program(
        body="""
m = d | d
m['a'] += 1
return d['a'] * 1
""",
        parameters="x, d",
    ),
    "init kw2": Program(
        body="""
h = torch.ones(4, 3)
r = nn.init.constant_(val=2.0, tensor=h)
h += 1
return r + x
"""
    ),
    "made dim for": Program(
        body="""
h = x * 2
bs = {'a': Box(h)}
h += 1
for k, b in bs.items():
    r = b.dim * 1
return r
""",
        definitions="""
class Box:

    def __init__(self, t):
        self.dim = t
""",
    ),
    "made name join": Program(
        body="""
h = x * 2
b = Box(h) if x.shape[0] > 2 else Box2(h)
h += 1
return b.name * 1
""",
        definitions="""
class Box:

    def __init__(self, t):
        self.name = t

class Box2(Box):
    pass
""",
    ),
    "made size in list": Program(
        body="""
h = x * 2
bs = [Box(h)]
h += 1
return bs[0].size * 1
""",
        definitions="""
class Box:

    def __init__(self, t):
        self.size = t
""",
    ),
    "main input list add": Program(
        body="""
h = lst + lst
g = h[0]
g += 1
return (g, lst[0] * 1)
""",
        parameters="x, lst",
    ),
    "torch from np2": Program(
        body="""
n = np.zeros(3, dtype='float32')
t = torch.as_tensor(n)
t += 1
return x + float(n.sum())
""",
        definitions="""
import types, numpy as np
import numpy
""",
    ),
    "namedtuple size": Program(
        body="""
h = x * 2
ns = NT(h, 1)
lst = [ns]
h += 1
return lst[0].size * 1
""",
        definitions="NT = collections.namedtuple('NT', 'size a')",
    ),
    "ns shape": Program(
        body="""
h = x * 2
ns = types.SimpleNamespace(shape=h)
y = ns.shape
h += 1
return y
"""
    ),
    "ns size after": Program(
        body="""
h = x * 2
ns = types.SimpleNamespace(size=h)
h += 1
return ns.size * 1
"""
    ),
    "split add": Program(
        body="""
m = x.split(1) + x.split(1)
h = m[0]
h += 1
return x * 1
"""
    ),
}
