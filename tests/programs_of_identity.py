"""Forwards that ask which tensor it is, and tables of operators that were wrong."""

from programs import Program

PROGRAMS = {
    "12 lists chain": Program(
        body="""
h = self.lin(x)
a, b, c, d, e, f, g, i, j, k, l, m = ([x], [x], [x], [x], [x], [x], [x], [x], [x], [x], [x], [x])
n = 16
while n > x.shape[1] - 3:
    n -= 1
    a[0] = b[0]
    b[0] = c[0]
    c[0] = d[0]
    d[0] = e[0]
    e[0] = f[0]
    f[0] = g[0]
    g[0] = i[0]
    i[0] = j[0]
    j[0] = k[0]
    k[0] = l[0]
    l[0] = m[0]
    m[0] = h
h += 1
return a[0]
"""
    ),
    "Queue put": Program(
        body="""
h = self.lin(x)
q = queue.Queue()
q.put(h)
h += 1
return q.get()
"""
    ),
    "SimpleQueue put": Program(
        body="""
h = self.lin(x)
q = queue.SimpleQueue()
q.put(h)
h += 1
return q.get()
"""
    ),
    "base": Program(
        body="""
h = self.lin(x)[1:]
h += 1
return h * 1 if h._base is None else h * 2
"""
    ),
    "is view": Program(
        body="""
h = self.lin(x)[1:]
h += 1
return h * 2 if h._is_view() else h
"""
    ),
    "as strided base": Program(
        body="""
h = self.lin(x)[1:]
h += 1
return h.as_strided((4, 3), (3, 1), 0) * 1
"""
    ),
    "comprehension chain": Program(
        body="""
h = self.lin(x)
a, b, c, d = ([x], [x], [x], [x])
[go(a, b, c, d, h) for t in x.unbind(0)]
h += 1
return a[0]
""",
        definitions="""
def go(a, b, c, d, h):
    a[0] = b[0]
    b[0] = c[0]
    c[0] = d[0]
    d[0] = h
""",
    ),
    "comprehension chain chunk": Program(
        body="""
h = self.lin(x)
a, b, c = ([x], [x], [x])
ys = [go(a, b, c, h) for t in x]
h += 1
return a[0]
""",
        definitions="""
def go(a, b, c, h):
    a[0] = b[0]
    b[0] = c[0]
    c[0] = h
""",
    ),
    "data ptr before after": Program(
        body="""
h = self.lin(x)
k = h.data_ptr()
h += 1
return h * 2 if h.data_ptr() == k else h
"""
    ),
    "dict tensor key": Program(
        body="""
h = self.lin(x)
d = {h: 2}
h += 1
return h * d[h]
"""
    ),
    "dict tensor key get": Program(
        body="""
h = self.lin(x)
d = {}
d[h] = 2
h += 1
return h * d.get(h, 1)
"""
    ),
    "dict tensor key in": Program(
        body="""
h = self.lin(x)
d = {h: 2}
h += 1
return h * 2 if h in d else h
"""
    ),
    "grad fn name": Program(
        body="""
h = self.lin(x)
z = h
h += 1
return h * 2 if z.grad_fn is not None and z.grad_fn.name() == 'AddBackward0' else h
"""
    ),
    "hash before": Program(
        body="""
h = self.lin(x)
k = hash(h)
h += 1
return h * 2 if hash(h) == k else h
"""
    ),
    "id before after": Program(
        body="""
h = self.lin(x)
k = id(h)
h += 1
return h * 2 if id(h) == k else h
"""
    ),
    "id dict": Program(
        body="""
h = self.lin(x)
d = {id(h): 2}
h += 1
return h * d.get(id(h), 1)
"""
    ),
    "init eye": Program(
        body="""
w = torch.zeros(3, 3)
y = nn.init.eye(w)
y += 1
return w
"""
    ),
    "init normal": Program(
        body="""
w = torch.zeros(3, 3)
y = nn.init.normal(w)
y += 1
return w
"""
    ),
    "is leaf alias acc": Program(
        body="""
acc = torch.zeros(3)
z = acc
acc += self.lin(x).sum(0)
return acc * 2 if z.is_leaf else acc
"""
    ),
    "list remove identity": Program(
        body="""
h = self.lin(x)
y = h
h += 1
L = [h, x]
L.remove(y)
return h * len(L)
"""
    ),
    "nested list chain": Program(
        body="""
h = self.lin(x)
a, b, c, d, e = ([[x]], [[x]], [[x]], [[x]], [[x]])
n = 16
while n > x.shape[1] - 3:
    n -= 1
    a[0][0] = b[0][0]
    b[0][0] = c[0][0]
    c[0][0] = d[0][0]
    d[0][0] = e[0][0]
    e[0][0] = h
h += 1
return a[0][0]
"""
    ),
    "nested list for range T": Program(
        body="""
h = self.lin(x)
a, b, c, d, e = ([[x]], [[x]], [[x]], [[x]], [[x]])
for t in x.unbind(0) + x.unbind(0):
    a[0][0] = b[0][0]
    b[0][0] = c[0][0]
    c[0][0] = d[0][0]
    d[0][0] = e[0][0]
    e[0][0] = h
h += 1
return a[0][0]
"""
    ),
    "requires grad alias acc": Program(
        body="""
acc = torch.zeros(3)
z = acc
acc += self.lin(x).sum(0)
return acc * 2 if z.requires_grad else acc
"""
    ),
    "resize as deprecated": Program(
        body="""
h = self.lin(x).detach()
y = h.resize_as(x)
y += 1
return h * 1
"""
    ),
    "resize deprecated": Program(
        body="""
h = self.lin(x).detach()
y = h.resize(12)
y += 1
return h * 1
"""
    ),
    "self dict tensor key": Program(
        body="""
h = self.lin(x)
self.d[h] = 2
h += 1
n = self.d.get(h, 1)
self.d.clear()
return h * n
""",
        init="self.d = {}",
    ),
    "set remove identity": Program(
        body="""
h = self.lin(x)
y = h
h += 1
s = {h, x}
s.discard(y)
return h * len(s)
"""
    ),
    "slice holds": Program(
        body="""
h = self.lin(x)
o = slice(h, None)
h += 1
return o.start
"""
    ),
    "storage offset": Program(
        body="""
h = self.lin(x)[1:]
h += 1
return h * (1 + h.storage_offset())
"""
    ),
    "str format len": Program(
        body="""
h = self.lin(x)
y = h
h *= 100000
n = len('{}'.format(y))
return h * n
"""
    ),
    "type 3 args": Program(
        body="""
h = self.lin(x)
o = type('O', (), {'t': h})
h += 1
return o.t
"""
    ),
}
