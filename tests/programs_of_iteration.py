"""Forwards that change lists while a loop goes through them, and generators that run later."""

from programs import Program

PROGRAMS = {
    "chain noise 5": Program(
        body="""
P = []
c1 = [x]
c2 = [x]
c3 = [x]
c4 = [x]
c5 = [x]
for i in range(x.shape[0] + 6):
    s = x * 2
    P.append(s)
    c5.append(x * 1)
    c5.append(c4[-1])
    c4.append(x * 1)
    c4.append(c3[-1])
    c3.append(x * 1)
    c3.append(c2[-1])
    c2.append(x * 1)
    c2.append(c1[-1])
    c1.append(x * 1)
    c1.append(P[0])
e = P[0]
e += 1
return c5[-1] * 1
"""
    ),
    "chain noise 7": Program(
        body="""
P = []
c1 = [x]
c2 = [x]
c3 = [x]
c4 = [x]
c5 = [x]
c6 = [x]
c7 = [x]
for i in range(x.shape[0] + 6):
    s = x * 2
    P.append(s)
    c7.append(x * 1)
    c7.append(c6[-1])
    c6.append(x * 1)
    c6.append(c5[-1])
    c5.append(x * 1)
    c5.append(c4[-1])
    c4.append(x * 1)
    c4.append(c3[-1])
    c3.append(x * 1)
    c3.append(c2[-1])
    c2.append(x * 1)
    c2.append(c1[-1])
    c1.append(x * 1)
    c1.append(P[0])
e = P[0]
e += 1
return c7[-1] * 1
"""
    ),
    "escape chain": Program(
        body="""
P, c1, c2, c3, c4, c5, out = ([], [x], [x], [x], [x], [x], [])
for i in range(x.shape[0] + 6):
    P.append(torch.relu(x))
    c5.append(torch.relu(x))
    c5.append(c4[-1])
    c4.append(torch.relu(x))
    c4.append(c3[-1])
    c3.append(torch.relu(x))
    c3.append(c2[-1])
    c2.append(torch.relu(x))
    c2.append(c1[-1])
    c1.append(torch.relu(x))
    c1.append(P[0])
    functools.partial(out.append)(c5[-1])
e = P[0]
e += 1
return out[-1] * 1
"""
    ),
    "tuples in chain": Program(
        body="""
P, c1, c2, c3, c4, c5 = ([], [(x, x)], [(x, x)], [(x, x)], [(x, x)], [(x, x)])
for i in range(x.shape[0] + 6):
    P.append((torch.relu(x), torch.relu(x)))
    c5.append((torch.relu(x), c4[-1][1]))
    c4.append((torch.relu(x), c3[-1][1]))
    c3.append((torch.relu(x), c2[-1][1]))
    c2.append((torch.relu(x), c1[-1][1]))
    c1.append((torch.relu(x), P[0][1]))
e = P[0][1]
e += 1
return c5[-1][1] * 1
"""
    ),
    "alias list ahead": Program(
        body="""
h = x * 1
L = [x, x]
M = L
r = x
for t in L:
    r = t
    M[1] = h
h += 1
return r
"""
    ),
    "enum unpack late": Program(
        body="""
h = x * 1
L = [x, x]
g = enumerate(L)
L[0] = h
(i, a), b = g
h += 1
return a
"""
    ),
    "fn ahead": Program(
        body="""
h = x * 1
L = [x, x]
r = x
for t in L:
    r = t
    put(L, h)
h += 1
return r
""",
        definitions="""
def put(L, h):
    L[1] = h
""",
    ),
    "for dict items ahead": Program(
        body="""
h = x * 1
L = {'a': x, 'b': x}
r = x
for k, t in L.items():
    r = t
    L['b'] = h
h += 1
return r
"""
    ),
    "for dict values ahead": Program(
        body="""
h = x * 1
L = dict(a=x, b=x)
r = x
for t in L.values():
    r = t
    L['b'] = h
h += 1
return r
"""
    ),
    "for grows always": Program(
        body="""
h = x * 1
L = [x, x]
r = []
for t in L:
    r.append(t)
    if len(r) < 3:
        L.append(h)
h += 1
return r[-1]
"""
    ),
    "for insert": Program(
        body="""
h = x * 1
L = [x, x]
r = x
for t in L:
    r = t
    if len(L) < 3:
        L.insert(2, h)
h += 1
return r
"""
    ),
    "for modules ahead": Program(
        body="""
h = x * 1
L = [x, x]
r = x
for b, t in zip(self.blocks, L):
    r = t
    L[1] = h
h += 1
return r
"""
    ),
    "for rebind": Program(
        body="""
h = x * 1
L = [x, x * 2]
r = x
for i, t in enumerate(L):
    r = t
    if i == 0:
        L[1] = h
h += 1
return r
"""
    ),
    "for setitem ahead": Program(
        body="""
h = x * 1
L = [x, x]
r = []
for t in L:
    r.append(t)
    L[1] = h
h += 1
return r[-1]
"""
    ),
    "for zip ahead": Program(
        body="""
h = x * 1
L = [x, x]
r = x
for a, t in zip((1, 2), L):
    r = t
    L[1] = h
h += 1
return r
"""
    ),
    "reversed for": Program(
        body="""
h = x * 1
L = [x, x]
r = x
for t in reversed(L):
    r = t
    L[0] = h
h += 1
return r
"""
    ),
    "zip arg": Program(
        body="""
h = x * 1
L = [x, x]
g = zip(L)
L[0] = h
r = use(g)
h += 1
return r
""",
        definitions="""
def use(g):
    for t, in g:
        return t
""",
    ),
    "enumerate grows": Program(
        body="""
h = x * 1
L = [x]
g = enumerate(L)
L.append(h)
r = list(g)
h += 1
return r[1][1]
"""
    ),
    "for grows": Program(
        body="""
h = x * 1
L = [x]
r = []
for t in L:
    if len(L) < 2:
        L.append(h)
    r.append(t)
h += 1
return r[1]
"""
    ),
    "genexp late write2": Program(
        body="""
h = x * 1
y = h
g = (y.add_(1) for _ in range(1))
h += 1
list(g)
return h * 1
"""
    ),
    "genexp name later": Program(
        body="""
y = x
h = x * 1
g = (y for _ in range(x.shape[0]))
y = h
r = next(g)
h += 1
return r
"""
    ),
    "genexp name later2": Program(
        body="""
y = x
h = x * 1
g = (y * 1 for _ in range(1))
y = h
h += 1
return next(g)
"""
    ),
    "reversed changes": Program(
        body="""
h = x * 1
L = [x]
g = reversed(L)
L[0] = h
r = list(g)
h += 1
return r[0]
"""
    ),
    "zip grows": Program(
        body="""
h = x * 1
L = [x]
g = zip(L, range(9))
L.append(h)
r = list(g)
h += 1
return r[1][0]
"""
    ),
}
