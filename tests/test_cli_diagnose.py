"""`safemodules diagnose`: what it prints and writes, and its exit codes."""

import json
import re
from pathlib import Path

import pytest

from safemodules.cli import main

GOLDEN = Path(__file__).parent / "golden"
NETS = """\
import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        h = torch.sigmoid(x)
        h += x
        return h


class Faulty(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.ReLU(inplace=True), Gate())


class Clean(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.ReLU(inplace=True))


class Silent(nn.Module):
    def forward(self, x):
        h = torch.sigmoid(x)
        h.data.zero_()
        return h


class Raises(nn.Module):
    def forward(self, x):
        raise KeyError("no such key")
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    (tmp_path / "diagnosed_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")  # the length of the path must not break lines
    return tmp_path


def run(*arguments):
    return main(["diagnose", *arguments])


@pytest.mark.parametrize(("name", "code"), [("Faulty", 1), ("Clean", 0), ("Silent", 1)])
def test_the_report_is_the_golden_one(name, code, nets, capsys):
    assert run(f"diagnosed_nets.py:{name}", "--input", "2x4") == code
    printed = capsys.readouterr().out.replace(f"{nets}/", "")
    printed = re.sub(r"\S*site-packages/torch/(\S+):\d+", r"torch/\1:N", printed)
    assert printed == (GOLDEN / f"diagnose_{name.lower()}.txt").read_text()


def test_a_forward_that_raises_is_a_finding(nets, capsys):
    assert run("diagnosed_nets.py:Raises", "--input", "2x4") == 1
    assert "the forward raised KeyError" in capsys.readouterr().out


def test_json_is_one_document(nets, capsys):
    assert run("diagnosed_nets.py:Faulty", "--input", "2x4", "--json") == 1
    [clash] = json.loads(capsys.readouterr().out)["clashes"]
    assert clash["saved_at"]["source"] == "h = torch.sigmoid(x)"
    assert clash["mutated_at"] == {
        "filename": str(nets / "diagnosed_nets.py"),
        "lineno": 8,
        "source": "h += x",
        "module": "2",
        "op": "add_",
        "kind": "augmented assignment",
    }


def test_the_page_holds_tree_sites_and_excerpts(nets, capsys):
    assert run("diagnosed_nets.py:Faulty", "--input", "2x4", "--html", "page.html") == 1
    page = (nets / "page.html").read_text()
    for text in ("Diagnosis of diagnosed_nets.py:Faulty", "h += x", "<details", "Gate", "relu_"):
        assert text in page
    assert "src=" not in page


@pytest.mark.parametrize(
    "arguments",
    [
        ("diagnosed_nets.py:Faulty",),
        ("diagnosed_nets.py:Missing", "--input", "2x4"),
        ("diagnosed_nets.py:Faulty", "--input", "2by4"),
        ("diagnosed_nets.py:Faulty", "--input", "2x4", "--html", "no/such/folder.html"),
    ],
)
def test_wrong_use_ends_with_two(arguments, nets, capsys):
    assert run(*arguments) == 2
    assert "safemodules: error:" in capsys.readouterr().err
