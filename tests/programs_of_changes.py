"""Forwards that change what a branch looks at, other than by assigning it in plain sight."""

from programs import Program

PROGRAMS = {
    "apply after an assignment": Program(
        body="""
self.ctl.mode = 'a'
self.ctl.apply(choose)
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "bound append alias": Program(
        body="""
push = self.log.append
push(1)
h = self.lin(x)
y = h if len(self.log) == 1 else x
h += 1
return y
""",
        init="self.log = []",
    ),
    "bound append callback": Program(
        body="""
walk(self.log.append)
h = self.lin(x)
y = h if len(self.log) == 1 else x
h += 1
return y
""",
        definitions="""
def walk(cb):
    cb(1)
""",
        init="self.log = []",
    ),
    "bound update alias": Program(
        body="""
push = self.cfg.update
push(on=True)
h = self.lin(x)
y = h if self.cfg['on'] else x
h += 1
return y
""",
        init="self.cfg = {'on': False}",
    ),
    "children grows": Program(
        body="""
h = self.lin(x)
y = h
h += 1
for m in self.box.children():
    if isinstance(m, Adds):
        m(y)
self.box.late = Adds()
return h
""",
        definitions="""
class Id(nn.Module):

    def forward(self, t):
        return t * 1
""",
        init="self.box = Id()",
    ),
    "chosen after an assignment": Program(
        body="""
self.ctl.mode = 'a'
m = self.ctl if x.sum() > -99 else self.lin
m.mode = 'b'
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "chosen after an assignment dict": Program(
        body="""
self.ctl.mode = 'a'
d = {'m': self.ctl, 't': x}
d['m'].mode = 'b'
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "class attr after an assignment": Program(
        body="""
self.ctl.mode = 'a'
self.ctl.__class__.mode = 'b'
del self.ctl.mode
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "cm after an assignment": Program(
        body="""
self.ctl.mode = 'a'
with chosen(self.ctl):
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "ctx enter after an assignment": Program(
        body="""
self.ctl.mode = 'a'
with Enters(self.ctl):
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "ctx exit": Program(
        body="""
with Leaves(self.ctl):
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "ctx exit after an assignment": Program(
        body="""
self.ctl.mode = 'a'
with Leaves(self.ctl):
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "defaultdict autoviv": Program(
        body="""
self.dd['a']
h = self.lin(x)
y = x
for k in self.dd:
    y = h
h += 1
return y
""",
        init="self.dd = defaultdict(list)",
    ),
    "defaultdict autoviv len": Program(
        body="""
self.dd['a'].append(1)
h = self.lin(x)
y = h if len(self.dd) == 1 else x
h += 1
return y
""",
        init="self.dd = defaultdict(list)",
    ),
    "delattr after an assignment": Program(
        body="""
self.ctl.mode = 'c'
delattr(self.ctl, 'mode')
h = self.lin(x)
y = h if self.ctl.mode == 'a' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "dict None key": Program(
        body="""
h = self.lin(x)
y = x if D[x.shape[1]] else h
h += 1
return y
""",
        definitions="D = {None: 1, 3: 0}",
    ),
    "dict int key": Program(
        body="""
h = self.lin(x)
y = h if D[1] == 0 else x
h += 1
return y
""",
        definitions="D = {0: 1, 1: 0}",
    ),
    "dict int key self": Program(
        body="""
h = self.lin(x)
y = x if self.d[1] else h
h += 1
return y
""",
        init="self.d = {0: True, 1: False}",
    ),
    "dict int key truth": Program(
        body="""
h = self.lin(x)
y = x if D[1] else h
h += 1
return y
""",
        definitions="D = {0: 1, 1: 0}",
    ),
    "dict setitem flag": Program(
        body="""
h = self.lin(x)
self.fs.__setitem__('k', True)
y = h if 'k' in self.fs else x
h += 1
return y
""",
        init="self.fs = {}",
    ),
    "dict after an assignment": Program(
        body="""
self.ctl.mode = 'a'
self.ctl.__dict__['mode'] = 'b'
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "dict sub put": Program(
        body="""
h = self.lin(x)
self.stack.put('a', h)
h += 1
return self.stack['a']
""",
        definitions="""
class Stack(dict):

    def put(self, k, t):
        self[k] = t
""",
        init="self.stack = Stack()",
    ),
    "forward swapped on instance": Program(
        body="""
h = self.lin(x)
y = h
h += 1
self.act(y)
self.act.forward = self.adds.forward
return h
""",
        init="self.act = nn.Identity()",
    ),
    "getattr mode of child": Program(
        body="""
self.ctl.mode = 'a'
getattr(self.ctl, 'set_%d' % x.shape[0])()
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
class Control(nn.Module):
    mode = None

    def set_4(self):
        self.mode = 'b'

    def set_5(self):
        self.mode = 'c'
""",
        init="self.ctl = Control()",
    ),
    "hook after an assignment": Program(
        body="""
self.ctl.mode = 'a'
self.ctl(x)
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="""
self.ctl = Control()
self.ctl.register_forward_hook(lambda m, i, o: choose(m))
""",
    ),
    "hook weak": Program(
        body="""
self.ctl(x)
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        definitions="""
def hk(m, i, o):
    m.mode = 'b'
""",
        init="""
self.ctl = Control()
self.ctl.register_forward_hook(hk)
""",
    ),
    "list setitem": Program(
        body="""
h = self.lin(x)
self.fs.__setitem__(0, h)
h += 1
return self.fs[0]
""",
        init="self.fs = [None]",
    ),
    "list setitem flag": Program(
        body="""
h = self.lin(x)
self.fs.__setitem__(0, True)
y = h if self.fs[0] else x
h += 1
return y
""",
        init="self.fs = [False]",
    ),
    "made attr after an assignment": Program(
        body="""
self.ctl.mode = 'a'
o = Leaves(self.ctl)
o.m.mode = 'b'
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "method of chosen": Program(
        body="""
self.md[0].mode = 'a'
self.md[int(x.shape[0] > 99)].sb()
h = self.lin(x)
y = h if self.md[0].mode == 'b' else x
h += 1
return y
""",
        definitions="""
class C3(nn.Module):
    mode = 'a'

    def sb(self):
        self.mode = 'b'
""",
        init="self.md = nn.ModuleList([C3(), C3()])",
    ),
    "module del after an assignment": Program(
        body="""
self.ctl.mode = 'c'
del self.ctl.mode
h = self.lin(x)
y = h if self.ctl.mode == 'a' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "moduledict at run time": Program(
        body="""
self.md['c'].mode = 'a'
key = 'c' if x.sum() > -99 else 'd'
self.md[key].mode = 'b'
h = self.lin(x)
y = h if self.md['c'].mode == 'b' else x
h += 1
return y
""",
        init="self.md = nn.ModuleDict({'c': Control(), 'd': Control()})",
    ),
    "modulelist at run time": Program(
        body="""
self.md[0].mode = 'a'
self.md[int(x.shape[0] > 99)].mode = 'b'
h = self.lin(x)
y = h if self.md[0].mode == 'b' else x
h += 1
return y
""",
        init="self.md = nn.ModuleList([Control(), Control()])",
    ),
    "modules dict swap": Program(
        body="""
h = self.lin(x)
y = h
h += 1
for m in self.ml:
    m(y)
self.ml._modules['0'] = self.adds
return h
""",
        init="self.ml = nn.ModuleList([nn.Identity()])",
    ),
    "modules dict swap2": Program(
        body="""
h = self.lin(x)
y = h
h += 1
self.act(y)
self._modules['act'] = self.adds
return h
""",
        init="self.act = nn.Identity()",
    ),
    "modules values grows": Program(
        body="""
h = self.lin(x)
y = h
h += 1
for m in self.box._modules.values():
    m(y)
self.box.late = Adds()
return h
""",
        definitions="""
class Id(nn.Module):

    def forward(self, t):
        return t * 1
""",
        init="self.box = Id()",
    ),
    "partial after an assignment": Program(
        body="""
self.ctl.mode = 'a'
functools.partial(choose, self.ctl)()
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "property named attr after an assignment": Program(
        body="""
self.ctl.q = 'a'
h = self.lin(x)
y = h if self.ctl.q == 'b' else x
h += 1
return y
""",
        definitions="""
class Ctl2(nn.Module):

    @property
    def q(self):
        return 'b'

    @q.setter
    def q(self, v):
        pass
""",
        init="self.ctl = Ctl2()",
    ),
    "set difference update in": Program(
        body="""
self.s.difference_update((1,))
h = self.lin(x)
y = x if 1 in self.s else h
h += 1
return y
""",
        init="self.s = {1}",
    ),
    "set intersection update": Program(
        body="""
self.s.intersection_update(())
h = self.lin(x)
y = h if len(self.s) == 0 else x
h += 1
return y
""",
        init="self.s = {1}",
    ),
    "setattr alias": Program(
        body="""
s = setattr
s(self, 'on', False)
h = self.lin(x)
y = x if self.on else h
h += 1
return y
"""
    ),
    "setattr after an assignment": Program(
        body="""
self.ctl.mode = 'a'
setattr(self.ctl, 'mode', 'b')
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "stack push": Program(
        body="""
h = self.lin(x)
self.stack.push(h)
h += 1
return self.stack[-1]
""",
        definitions="""
class Stack(list):

    def push(self, t):
        self.append(t)
""",
        init="self.stack = Stack()",
    ),
    "stack push flag": Program(
        body="""
self.stack.push(1)
h = self.lin(x)
y = h if len(self.stack) == 1 else x
h += 1
return y
""",
        definitions="""
class Stack(list):

    def push(self, t):
        self.append(t)
""",
        init="self.stack = Stack()",
    ),
    "suppress after an assignment": Program(
        body="""
self.ctl.mode = 'a'
with suppress(ValueError):
    self.ctl.mode = 'b'
    int('q')
    self.ctl.mode = 'a'
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "sys modules self": Program(
        body="""
me = sys.modules[__name__]
me.N = 2
h = self.lin(x)
y = h if N == 2 else x
h += 1
return y
""",
        definitions="N = 1",
    ),
    "try after an assignment": Program(
        body="""
self.ctl.mode = 'a'
try:
    self.ctl.mode = 'b'
    int('q')
    self.ctl.mode = 'a'
except ValueError:
    pass
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="self.ctl = Control()",
    ),
    "weakref ctl": Program(
        body="""
self.ctl.mode = 'a'
self.w().mode = 'b'
h = self.lin(x)
y = h if self.ctl.mode == 'b' else x
h += 1
return y
""",
        init="""
self.ctl = Control()
self.w = weakref.ref(self.ctl)
""",
    ),
}
