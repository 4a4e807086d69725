"""Forwards written in every way that Python has, in which another name is read later."""

HEAD = """
import functools
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

KEPT = []
SEEN = set()
ACTS = {"relu": F.relu}
TABLE = torch.zeros(3)


def bump(t):
    t += 1
    return t


def perhaps(box, h, fails):
    if fails:
        box[0] = h
        raise ValueError
    return box


def score(t):
    t += 1
    return float(t.detach().sum())


def partly():
    return TABLE


class Box:
    shared = torch.zeros(3)

    def __init__(self, t=None):
        self.t = t

    def get(self):
        return self.t

    def put(self, t):
        self.t = t

    def view(self, t):
        return t

    def update(self, t):
        t.add_(1)

    @property
    def value(self):
        return self.t

    @value.setter
    def value(self, t):
        t.add_(1)

    def __add__(self, t):
        return t

    def __getitem__(self, t):
        return t

    def __lt__(self, t):
        self.t = t
        return True

    def __contains__(self, t):
        self.t = t
        return True

    def __len__(self):
        self.t.add_(1)
        return 1

    def __enter__(self):
        self.t.add_(1)

    def __exit__(self, *error):
        return True


class Pair(NamedTuple):
    t: torch.Tensor

    def clone(self):
        return self.t


@dataclass
class Default:
    t: torch.Tensor = field(default_factory=lambda: TABLE)


OBJECT = Box()
PARTIAL = functools.partial(partly)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        # counts
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        # held
        self.lin = nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=True)
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.ReLU(inplace=True)])
        self.box, self.seen, self.queue = Box(), set(), deque([torch.zeros(3)])
        self.cfg, self.cfgs, self.fs = {"on": False}, [{"on": False}], []

    @functools.cached_property
    def made(self):
        return torch.zeros(3)

"""
# Each overwrites `h` or `y` while another name is read later, or perhaps is.
PROGRAMS = {
    "break": """
        for i in range(3):
            if x.sum() > -99:
                y = h
                break
            h = self.lin(x)
        """,
    "continue": """
        for i in range(2):
            y = h
            if x.sum() > -99:
                continue
            h = self.lin(x)
        """,
    "a block that swallows": """
        with suppress(ValueError):
            y = h
            int('a')
            h = self.lin(x)
        """,
    "a plus": "y = +h",
    "a set": "s = set()\ns.add(h)\ny = next(iter(s))",
    "a set of the model": "self.seen.clear()\nself.seen.add(h)\ny = next(iter(self.seen))",
    "a set outside": "SEEN.clear()\nSEEN.add(h)\ny = next(iter(SEEN))",
    "all names": "y = locals()['h']",
    "an evaluated name": "y = eval('h')",
    "a hook": """
        self.lin.register_forward_hook(lambda m, a, o: KEPT.append(o))
        h = self.lin(x)
        y = KEPT[-1]
        """,
    "between two statements": """
        try:
            y = h
            int('a')
            y = x
        except ValueError:
            pass
        """,
    "raised at once": "try:\n    y = h\n    raise ValueError\nexcept ValueError:\n    pass",
    "raised by a function": """
        b = [x]
        try:
            perhaps(b, h, True)
        except ValueError:
            pass
        y = b[0]
        """,
    "held by an exception": """
        try:
            raise ValueError(h)
        except ValueError as e:
            y = e.args[0]
        """,
    "a block of the user's": """
        with Box(x * 1):
            y = h
            if x.sum() > -99:
                raise ValueError
            y = x
        """,
    "finally": """
        outs = []

        def run():
            try:
                return h
            finally:
                outs.append(h)

        run()
        y = outs[0]
        """,
    "finally behind a break": """
        for i in range(2):
            try:
                if x.sum() > -99:
                    break
            finally:
                y = h
        """,
    "the default of a dict": "y = self.cfg.get('nope', h)",
    "the default of an attribute": "y = getattr(self, 'missing', h)",
    "the default of next": "y = next(iter(()), h)",
    "a filter": """
        y = h
        for m in [b for b in self.blocks if isinstance(b, nn.Conv2d)]:
            y = m(x)
        """,
    "a name that is perhaps bound": """
        y = h
        if x.sum() > 99 and (y := x * 1).sum() > 0:
            pass
        """,
    "bound in a comparison": "y = h\nx.sum() > 99 > (y := x * 1).sum()",
    "bound in a comprehension": "y = h\n[(y := b(x)) for b in self.blocks if x.sum() > 99]",
    "a lazy generator": "g = (t * 2 for t in [h])\nh += 1\nreturn next(g) + h",
    "a lazy generator of a name": """
        t = h
        g = (t * i for i in range(2))
        h += 1
        return sum(g) + h
        """,
    "an iterator that is used up": """
        y = h
        z = enumerate(self.blocks)
        list(z)
        for i, b in z:
            y = b(x)
        """,
    "a zip that is shorter": """
        y = h
        for b, t in zip(self.blocks, [x][len(x):]):
            y = b(t)
        """,
    "an operator of an object": "y = OBJECT + h",
    "an item of an object": "y = OBJECT[h]",
    "a comparison of an object": "OBJECT < h\ny = OBJECT.t",
    "membership in an object": "h in OBJECT\ny = OBJECT.t",
    "the length of an object": "y = h\nOBJECT.t = y\nh += 1\nlen(OBJECT)\nreturn h",
    "an object of the model": "self.box.t = h\ny = self.box.t",
    "methods of an object of the model": "self.box.put(h)\ny = self.box.get()",
    "a property of an object of the model": "self.box.put(h)\ny = self.box.value",
    "an attribute by its name": "setattr(self, 'kept', h)\ny = self.kept",
    "an attribute of a child that is chosen": """
        self.blocks[len(x) % 2].kept = h
        y = self.blocks[len(x) % 2].kept
        """,
    "an attribute of a function": "bump.t = h\ny = bump.t",
    "a flag through a table": "z = ACTS['relu'](h, inplace=True)\nz += 1\nreturn h",
    "a flag by position": "z = ACTS['relu'](h, True)\nz += 1\nreturn h",
    "a flag handed on": """
        def act(t, **kw):
            return F.relu(t, **kw)

        z = act(h, inplace=True)
        z += 1
        return h
        """,
    "out, handed on": """
        y = torch.empty_like(h)
        z = getattr(torch, 'add')(x, x, out=y)
        z += 1
        return y
        """,
    "a list that grows": "n = list(range(2))\nn.append(5)\ny = h if len(n) == 3 else x",
    "a list of modules that shrinks": """
        fs = list(self.blocks)
        fs.clear()
        y = x if len(fs) else h
        """,
    "a chain of lists": """
        a, b, c, d = [x], [x], [x], [x]
        while x.sum() < 99:
            a[0] = b[0]
            b[0] = c[0]
            c[0] = d[0]
            d[0] = h
            x = x.abs() + 9
        y = a[0]
        """,
    "a counter in a tuple": """
        s, y, z = (0,), x, x * 1
        while z.sum() < 99:
            s = (s[0] + 1,)
            if s[0] == 3:
                y = h
            z = z.abs() + 3
        """,
    "a nested function of two paths": """
        def make(a, b):
            u = a

            def g():
                return u

            if x.sum() > -99:
                return g
            u = b
            return g

        g = make(h, x)
        h += 1
        return g() + h
        """,
    "identity": "y = h\nh += 1\nreturn h * 2 if y is h else h",
    "identity by number": "y = h\nh += 1\nreturn h * 2 if id(y) == id(h) else h",
    "identity by place": "y = h\nh += 1\nreturn h * 2 if y.data_ptr() == h.data_ptr() else h",
    "its version": "h += 1\nreturn h * h._version",
    "an object in a list": "y = [Box(h)][0].get()",
    "a method like an operator": "y = [Box()][0].view(h)",
    "a method like a container's": "y = h[:1]\ny += 1\n[Box()][0].update(h)\nreturn h",
    "a named tuple with methods": "y = Pair(h).clone()",
    "a setter": "y = h\nb = Box()\nh += 1\nb.value = y\nreturn h",
    "an attribute of a class": "bump(Box().shared)\nbump(self.lin(x))\nreturn x + Box.shared",
    "what a factory makes": "bump(Default().t)\nbump(self.lin(x))\nreturn x + TABLE",
    "an attribute of a tensor": "h.tag = x\nbump(h)\nbump(self.lin(x))\nreturn h",
    "a tensor or a list": """
        z = h if x.sum() > -99 else []
        bump(z)
        bump(self.lin(x))
        return h
        """,
    "a dict of a library": "bump(OrderedDict(a=h)['a'])\nbump(self.lin(x))\nreturn h",
    "a queue": "bump(deque([h])[0])\nbump(self.lin(x))\nreturn h",
    "a queue of the model": """
        bump(self.queue[0])
        bump(self.lin(x))
        return x + self.queue[0]
        """,
    "a list of the model that grows": "fs = self.fs\nfs += [h]\ny = self.fs[-1]",
    "a method of a type": "hs = [h]\ny = list.copy(hs)[0]",
    "a key": "[h].sort(key=score)\nbump(self.lin(x))\nreturn h",
    "a partial": "bump(PARTIAL())\nbump(self.lin(x))\nreturn x + TABLE",
    "a setting through an or": """
        d = self.cfg or {}
        y = h if self.cfg['on'] else x
        d['on'] = True
        """,
    "a setting in a list": """
        y = h if self.cfgs[0]['on'] else x
        self.cfgs[len(x) - 3]['on'] = True
        """,
    "a module that is exchanged": """
        y = h
        self.blocks[0](y)
        h += 1
        self.relu(y)
        self.relu = nn.Identity()
        return h + y
        """,
    "a flag that is read": "h = self.relu(h)\nreturn h * 2 if self.relu.inplace else h",
    "a cached property": """
        a, b = self.made, self.made
        bump(a)
        bump(self.lin(x))
        return x + b
        """,
}
