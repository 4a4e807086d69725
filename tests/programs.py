"""Small forwards as text, with what they need around them."""

import textwrap
from typing import NamedTuple

from sources import load_source

HEAD = """
import array
import collections
import contextvars
import copy
import dataclasses
import functools
import itertools
import gc
import io
import math
import operator
import pickle
import queue
import sys
import random
import threading
import types
import typing
import weakref
from collections import OrderedDict, defaultdict, deque
from contextlib import contextmanager, suppress

import numpy
import numpy as np
import torch
import torch.nn.functional as F
import torch.nn.modules.module as M
from torch import nn
from torch.utils.checkpoint import checkpoint


def shift(t):
    t += 1
    return t


def bump(t):
    t += 1
    return t


def other(t):
    return t * 1


class Adds(nn.Module):
    def forward(self, t):
        t += 1
        return t


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, t):
        self.kept = t
        return t * 1


class Control(nn.Module):
    mode = "a"

    def forward(self, t):
        return t * 1

    def choose(self):
        self.mode = "b"


def choose(m):
    m.mode = "b"


class Leaves:
    def __init__(self, m):
        self.m = m

    def __enter__(self):
        return self

    def __exit__(self, *a):
        self.m.mode = "b"


class Enters:
    def __init__(self, m):
        self.m = m

    def __enter__(self):
        self.m.mode = "b"

    def __exit__(self, *a):
        pass


@contextmanager
def chosen(m):
    m.mode = "b"
    yield


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.lin(x))
"""


LOOP = """
for b in self.blocks:
    x = b(x)
return x
"""


class Program(NamedTuple):
    """The body of a forward, which takes ``x`` and perhaps more, and what stands around it."""

    body: str
    definitions: str = ""
    init: str = ""
    methods: str = ""
    parameters: str = "x"

    @property
    def text(self):
        """A module with a class ``Net``."""
        parts = (
            (self.init, 8),
            (f"def forward(self, {self.parameters}):", 4),
            (self.body, 8),
            (self.methods, 4),
        )
        inner = (textwrap.indent(text.strip(), " " * depth) for text, depth in parts)
        return "\n".join([HEAD, self.definitions, NET, *inner, ""])

    def load(self, directory):
        """A new module."""
        return load_source(directory, self.text)


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=True)
        self.adds = Adds()
        self.holder = Holder()
        self.none = None
        self.count = 0
        self.on = True
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])"""
