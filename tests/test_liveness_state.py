"""A forward that changes what it branches on: the next call may read what this one does not."""

import textwrap
import warnings

import pytest
import torch
from sources import load_source

import safemodules as sm

HEAD = """
import torch
from torch import nn

CALLS = [0]
NUMBER = 0
KEPT = None


class Settings:
    number = 0
    shared = 0

    def __init__(self):
        self.calls = []

    def __len__(self):
        return len(self.calls)

    def step(self):
        self.number += 1


def append(where):
    where.append(1)


class Net(nn.Module):
    names = {"a": 0}

    def __init__(self):
        super().__init__()
        self.list, self.counts, self.table, self.names = [], [0], {}, {"a": 0}
        self.set, self.nothing, self.number = set(), None, 0
        self.settings = Settings()
        self.children_ = nn.ModuleList()

    def forward(self, x):
        h = x * 2
        first = h.view(-1)
        y = h.relu_() * 2
"""
# condition that is false in the first call -> what makes it true in the second
CHANGES = {
    "the length of a list": ("len(self.list) > 0", "self.list.append(1)"),
    "an entry of a list": ("self.counts[0]", "self.counts[0] += 1"),
    "an entry that is bound": ("self.counts[0]", "self.counts[0] = 1"),
    "an unpacked list": ("sum(n for n in self.counts) > 0", "self.counts[0] = 1"),
    "a list under another name": ("len(self.list) > 0", "other = self.list\nother += [1]"),
    "a list handed to a function": ("len(self.list) > 0", "append(self.list)"),
    "a list handed to a library": (
        "len(self.list) > 0",
        "import heapq\nheapq.heappush(self.list, 1)",
    ),
    "a table's key": ("'a' in self.table", "self.table['a'] = 1"),
    "a table's value": ("self.table.get('a')", "self.table['a'] = 1"),
    "a table under another name": ("self.table.get('a')", "other = self.table\nother['a'] = 1"),
    "a table that is updated": ("self.table.get('a')", "self.table.update(a=1)"),
    "a key that is deleted": (
        "'a' not in self.names",
        "if 'a' in self.names:\n    del self.names['a']",
    ),
    "a key that is popped": ("'a' not in self.names", "self.names.pop('a', None)"),
    "a set": ("'a' in self.set", "self.set.add('a')"),
    "a number": ("self.number > 0", "self.number += 1"),
    "an attribute that is set by name": ("self.number > 0", "setattr(self, 'number', 1)"),
    "an attribute that is set by a name in parts": (
        "self.number > 0",
        "setattr(self, 'num' + 'ber', 1)",
    ),
    "an attribute that is set in the dict": ("self.number > 0", "self.__dict__['number'] = 1"),
    "an attribute that was none": ("self.nothing is not None", "self.nothing = 1"),
    "an attribute that was not there": ("hasattr(self, 'kept')", "self.kept = 1"),
    "an attribute of any name that was not there": (
        "hasattr(self, 'kept')",
        "setattr(self, 'ke' + 'pt', 1)",
    ),
    "an object's attribute": ("self.settings.number > 0", "self.settings.number += 1"),
    "an object that changes itself": ("self.settings.number > 0", "self.settings.step()"),
    "the length of an object": ("len(self.settings)", "self.settings.calls.append(1)"),
    "an attribute of a class": ("Settings.shared", "Settings.shared = 1"),
    "a list of modules": ("len(self.children_)", "self.children_.append(nn.Identity())"),
    "a list outside": ("CALLS[0]", "CALLS[0] += 1"),
    "a global number": ("NUMBER > 0", "global NUMBER\nNUMBER += 1"),
}
# What no model holds is not put back between two runs.
OUTSIDE = ("an attribute of a class", "a list outside", "a global number")


def both(tmp_path, lines):
    """A model and the same from the same text again: neither sees the other's globals."""
    text = HEAD + textwrap.indent(textwrap.dedent(lines).strip(), " " * 8) + "\n"
    return [load_source(tmp_path, text).Net() for _ in range(2)]


def convert(model, example):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sm.ConversionWarning)
        sm.convert_model(model, example)


@pytest.mark.parametrize("given", [False, True], ids=["without inputs", "with inputs"])
@pytest.mark.parametrize("name", CHANGES)
def test_the_second_call_reads_what_the_first_does_not(tmp_path, name, given):
    condition, change = CHANGES[name]
    declared = [line for line in change.splitlines() if line.startswith("global")]
    body = [*declared, f"if {condition}:", "    y = y + first.view_as(y)"]
    body += [line for line in change.splitlines() if line not in declared]
    original, model = both(tmp_path, "\n".join([*body, "return y"]))
    x = torch.linspace(-1, 1, 5)
    if given and name in OUTSIDE:
        with pytest.raises(sm.MismatchError, match="the same twice"):
            convert(model, x)
        return
    convert(model, x if given else None)
    [site] = [s for s in sm.conversion_plan(model).sites if s.site.op == "relu_"]
    assert site.decision == "keep"
    for _ in range(3):
        assert torch.equal(model(x), original(x))


KEEPS = {
    "a global": "global KEPT\nKEPT = first\nreturn y",
    "a global of a nested function": """
        def keep():
            global KEPT
            KEPT = first

        keep()
        return y
        """,
    "a global in a tuple": "global KEPT\nKEPT, _ = first, 1\nreturn y",
    "a global of a loop": "global KEPT\nfor KEPT in (first,):\n    pass\nreturn y",
}


@pytest.mark.parametrize("body", KEEPS.values(), ids=KEEPS)
def test_a_global_may_be_read_by_anyone(tmp_path, body):
    [original, _] = both(tmp_path, body)
    plan = sm.plan_conversion(original)
    [site] = [s for s in plan.sites if s.site.op == "relu_"]
    assert site.decision == "keep"


def test_a_table_that_stays_as_it_is_decides_a_branch(tmp_path):
    body = """
        if 'b' in self.names:
            y = y + first.view_as(y)
        if 'a' in self.names:
            y = y * 2
        return y
        """
    [model, _] = both(tmp_path, body)
    [site] = [s for s in sm.plan_conversion(model).sites if s.site.op == "relu_"]
    assert site.decision == "swap"
