"""Without inputs a model computes what it did, whatever of Python its forward is written in."""

import copy
import textwrap

import pytest
import torch
from liveness_programs import HEAD, PROGRAMS
from sources import load_source

import safemodules as sm


@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_two_calls_compute_the_same(tmp_path, body):
    lines = f"h = self.lin(x)\n{textwrap.dedent(body).strip()}"
    if "\nreturn" not in lines:
        lines += "\nh += 1\nreturn y + h"
    text = HEAD + "    def forward(self, x):\n" + textwrap.indent(lines, " " * 8) + "\n"
    models = [load_source(tmp_path, text).Net() for _ in range(2)]  # each with its own globals
    models[1].load_state_dict(copy.deepcopy(models[0].state_dict()))
    sm.convert_model(models[1])
    x = torch.linspace(-1, 2, 9).view(3, 3)
    for _ in range(2):
        expected, found = (model(x.clone()).detach().clone() for model in models)
        assert torch.equal(expected, found)


COUNTED = {
    "a function": """
        bump.n = getattr(bump, 'n', 0) + 1
        return torch.tanh(self.lin(x) * bump.n)
        """,
    "a class": """
        type(self).n = getattr(type(self), 'n', 0) + 1
        return torch.tanh(self.lin(x) * self.n)
        """,
}


@pytest.mark.filterwarnings("ignore::safemodules.ConversionWarning")
@pytest.mark.parametrize("body", COUNTED.values(), ids=COUNTED)
def test_a_loop_that_changes_what_no_module_holds_is_not_checkpointed(tmp_path, body):
    body = textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip()
    loop = "for b in (self.counts, self.counts):\n            x = b(x)"
    forward = f"    def forward(self, x):\n        {loop}\n        return x\n"
    text = HEAD.replace("# counts", body).replace("# held", "self.counts = Counts()") + forward
    models = [load_source(tmp_path, text).Net() for _ in range(2)]
    models[1].load_state_dict(copy.deepcopy(models[0].state_dict()))
    sm.convert_model(models[1])
    for _ in range(2):
        for model in models:
            model.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
        for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert (one.grad is None and other.grad is None) or torch.equal(one.grad, other.grad)
