"""Functions that an exception leaves, whoever has called them."""

from programs import Program

PROGRAMS = {
    "assert raise": Program(
        body="""
locals()
try:
    return self.m0(x)
except AssertionError as e:
    return e.args[0]
""",
        methods="""
def m0(self, x):
    h = torch.relu(x)
    y = h
    h += 1
    assert x.shape[0] > 6, y
    return h
""",
    ),
    "dict or": Program(
        body="""
locals()
a = x * 1
r = self.m0({'a': a}, {'b': x})
return (r['a'], a)
""",
        methods="""
def m0(self, x, y):
    h = x | y
    h['a'] += 1
    return h
""",
    ),
    "raise carries cond": Program(
        body="""
locals()
try:
    return self.m0(x)
except KeyError as e:
    return e.args[0]
""",
        methods="""
def m0(self, x):
    h = torch.relu(x)
    y = h
    h += 1
    if x.shape[0] > 2:
        raise KeyError(y)
    return h
""",
    ),
    "raise from": Program(
        body="""
locals()
try:
    return self.m0(x)
except KeyError as e:
    return e.__cause__.args[0]
""",
        methods="""
def m0(self, x):
    h = torch.relu(x)
    y = h
    h += 1
    if x.shape[0] > 2:
        raise KeyError from ValueError(y)
    return h
""",
    ),
    "raise state": Program(
        body="""
locals()
try:
    return self.m0(x)
except KeyError as e:
    return KEPT[0]
""",
        definitions="KEPT = [0]",
        methods="""
def m0(self, x):
    h = torch.relu(x)
    if x.shape[0] > 2:
        KEPT[0] = h
        h += 1
        raise KeyError('a')
    return h
""",
    ),
    "raise via helper": Program(
        body="""
locals()
try:
    return self.m0(x)
except KeyError as e:
    return e.args[0]
""",
        definitions="""
def fail(t):
    if t.shape[0] > 2:
        raise KeyError(t)
""",
        methods="""
def m0(self, x):
    h = torch.relu(x)
    y = h
    h += 1
    fail(y)
    return h
""",
    ),
    "main raise global": Program(
        body="""
if KEPT:
    return KEPT[0]
h = x * 2
KEPT.append(h)
h += 1
raise KeyError('a')
""",
        definitions="KEPT = []",
    ),
    "main raise self attr second call": Program(
        body="""
if self.none is not None:
    return self.none
h = x * 2
self.none = h
h += 1
raise KeyError('a')
"""
    ),
}
