"""What lint reports and what it passes over, its options and its output."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import safemodules as sm
from safemodules.cli import main
from safemodules.linting.config import Config, ConfigError, load_config
from safemodules.linting.findings import Severity, Verdict
from safemodules.linting.run import lint_file, lint_paths

ROOT = Path(__file__).parents[1]
HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
"""
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
{body}
"""


def findings(body: str, *, head: str = HEAD, net: str = NET) -> list[str]:
    """Code and verdict of each finding in a forward, the flag in ``__init__`` left out."""
    text = head + net.format(body=textwrap.indent(textwrap.dedent(body), " " * 8))
    return [
        f"{found.code} {found.verdict}".strip()
        for found in lint_file("net.py", text.encode())
        if (found.code, found.line) != ("SM106", head.count("\n") + 6)
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # who holds the tensor
        ("h = self.net(x)\nh += 1\nreturn h", ["SM101 neutral"]),
        ("x += 1\nreturn x", ["SM101 unknown"]),
        ("h = x.view(-1)\nh += 1\nreturn h", ["SM101 unknown"]),
        ("h = self.net(x)\ng = h\nh += 1\nreturn h, g", ["SM101 unknown"]),
        ("h = torch.empty_like(x)\nh.zero_()\nreturn h", ["SM102 harmless"]),
        ("h = torch.zeros(3)\nfor i in range(3):\n    h[i] = 1\nreturn h", ["SM103 harmless"]),
        ("self.count = torch.zeros(1)\nself.count += 1\nreturn x", ["SM101 state"]),
        # what backward needs
        ("h = torch.exp(self.net(x))\nh -= 1\nreturn h", ["SM101 clash"]),
        ("h = self.net(x).softmax(-1)\nh *= 2\nreturn h", ["SM101 clash"]),
        ("h = self.act(self.net(x))\nh += x\nreturn h", ["SM101 clash"]),
        ("h = self.net(x)\ny = self.net(h)\nh.mul_(2)\nreturn y", ["SM102 clash"]),
        ("h = torch.exp(x)\nh -= 1\nreturn h", ["SM101 neutral"]),
        ("h = self.net(x).exp()\nh = h + 1\nh -= 1\nreturn h", ["SM101 neutral"]),
        ("with torch.no_grad():\n    h = self.net(x).exp()\n    h -= 1\nreturn h",
         ["SM101 neutral"]),
        ("h = self.net(x).exp().detach()\nh -= 1\nreturn h", ["SM101 unknown"]),
        # what is no tensor
        ("n = 0\nfor _ in x:\n    n += 1\nreturn n", []),
        ("b, c = x.shape\nb *= 2\nc //= 2\nreturn b", []),
        ("n = len(x)\nn -= 1\nreturn n", []),
        ("out = []\nout += [x]\nreturn out", []),
        ("out = ()\nout += (x,)\nreturn out", []),
        ("d = {}\nd['x'] = x\nd[0] = x\nreturn d", []),
        ("d = dict(a=1)\nd[x] = x\nreturn d", []),
        ("if x is None:\n    x = [x]\nx[0] = 1\nreturn x", []),
        ("if x is None:\n    x = [x]\nx[:, 0] = 1\nreturn x", ["SM103 unknown"]),
        ("name = 'a'\nname += 'b'\nreturn name", []),
        ("import numpy as np\na = np.zeros(3)\na[:] = 1\na += 1\nreturn x", []),
        ("self.calls += 1\nreturn x", []),
        ("nn.init.normal_(self.net.weight)\nreturn x", []),
        ("m = set()\nm |= {1}\nreturn x", []),
        ("x @= self.net.weight\nreturn x", []),
        # forms
        ("return torch.relu_(x)", ["SM104 unknown"]),
        ("return F.relu(x, True)", ["SM105 unknown"]),
        ("return F.relu(x, inplace=False)", []),
        ("return F.dropout(x, 0.5, True, True)", ["SM105 unknown"]),
        ("return F.dropout(x, 0.5, True)", []),
        ("y = x.add(1)\nreturn y", []),
        ("f = lambda t: t.relu_()\nreturn f(x)", ["SM102 unknown"]),
        ("return [t.relu_() for t in x]", ["SM102 unknown"]),
        ("def inner(t):\n    t += 1\n    return t\nreturn inner(x * 2)", []),
        ("def inner(t):\n    t.add_(1)\n    return t\nreturn inner(x * 2)", ["SM102 unknown"]),
        ("x[0], x[1] = x[1].clone(), x[0].clone()\nreturn x", ["SM103 unknown"] * 2),
        ("for x[0] in (1.0,):\n    pass\nreturn x", ["SM103 unknown"]),
        # the others of category SM1
        ("x.data.add_(1)\nreturn x", ["SM108"]),
        ("x.grad.zero_()\nreturn x", []),
        ("kept = [x]\nkept.append(x)\nx += 1\nreturn kept", ["SM109 clash"]),
        ("kept = []\nkept.append(x.clone())\nx += 1\nreturn kept", ["SM101 unknown"]),
        ("kept = []\nfor _ in range(2):\n    x += 1\n    kept.append(x)\nreturn kept",
         ["SM109 clash"]),
        ("kept = []\nfor _ in x:\n    x = x + 1\n    x += 1\n    kept.append(x)\nreturn kept",
         ["SM101 unknown"]),
        ("x.requires_grad_()\nreturn x", ["SM110"]),
        ("y = x.detach()\ny.requires_grad_()\nreturn y", []),
        # checkpoints
        ("return checkpoint(self.net, x)", ["SM202"]),
        ("return checkpoint(self.net, x, use_reentrant=True)", ["SM201"]),
        ("return checkpoint(self.net, x, use_reentrant=self.training)", []),
        ("return checkpoint(self.net, x, **self.options)", []),
        ("return sm.checkpoint(self.net, x)", []),
        # loops
        ("return [self.net(row) for row in x]", ["SM301"]),
        ("return [checkpoint(self.net, row, use_reentrant=False) for row in x]", []),
        ("return [self.net(row).item() for row in x]", []),
        ("return [self.act(row) for row in x]", []),
    ],
)  # fmt: skip
def test_each_form_has_its_verdict(body: str, expected: list[str]) -> None:
    assert findings(body) == expected


@pytest.mark.parametrize(
    ("body", "safe"),
    [
        ("h = self.net(x)\nh *= 2\nreturn h", True),
        ("h = self.net(x)\nh *= len(x)\nreturn h", True),
        ("h = self.net(x)\nh *= x\nreturn h", False),  # another dtype may promote
        ("h = self.net(x)\nh *= self.scale\nreturn h", False),
        ("h = self.net(x)\ng = h\nh *= 2\nreturn g", False),  # a second name
        # an overwritten tensor keeps its graph, the result of another operator has none
        ("h = self.net(x)\nwith torch.no_grad():\n    h *= 2\nreturn h", False),
        ("h = self.net(x)\nwith mine():\n    h *= 2\nreturn h", False),
        ("h = self.net(x)\ntorch.set_grad_enabled(False)\nh *= 2\nreturn h", False),
        ("with torch.autocast('cpu'):\n    h = self.net(x)\n    h *= 2\nreturn h", True),
        ("return F.elu(self.net(x), 1.0, True)", False),  # backward rounds otherwise
        ("return F.dropout(self.net(x), 0.5, True, True)", False),  # other random numbers
        ("h = self.net(x)\nh.masked_fill_(x > 0, 0.0)\nreturn h", True),
        ("h = self.net(x)\nh.add_(1, alpha=2)\nreturn h", True),
        ("h = self.net(x)\nh.add_(x)\nreturn h", False),
    ],
)
def test_a_fix_is_safe_only_if_the_function_stays(body: str, safe: bool) -> None:
    text = HEAD + NET.format(body=textwrap.indent(body, " " * 8))
    found = [f for f in lint_file("net.py", text.encode()) if f.code in ("SM101", "SM102", "SM105")]
    assert [f.fix is not None and f.fix.safe for f in found] == [safe]


def test_a_method_named_like_a_functions_alias_is_resolved() -> None:
    head = HEAD + "from torch import relu_ as act\nrelu6 = F.relu6\nF2 = F\n"
    assert findings("return act(x)", head=head) == ["SM104 unknown"]
    assert findings("return relu6(x, True)", head=head) == ["SM105 unknown"]
    assert findings("return F2.relu(x, True)", head=head) == ["SM105 unknown"]


def test_what_torch_names_mean_elsewhere_is_not_taken_for_torchs() -> None:
    head = "from mine import F, torch, nn, checkpoint\n"
    assert findings("torch.relu_(x)\nreturn F.relu(x, True)", head=head) == []
    assert findings("return checkpoint(self.net, x)", head=head) == []


# -- which functions ------------------------------------------------------------------------


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def reached(folder: Path) -> list[str]:
    result = lint_paths([str(folder)], jobs=1)
    return [f"{Path(found.path).name}:{found.function}" for found in result.findings]


def test_functions_are_reached_through_imports_methods_and_classes(tmp_path: Path) -> None:
    write(tmp_path, {
        "pkg/__init__.py": "",
        "pkg/net.py": """\
            from torch import nn
            from . import ops
            from .base import Base
            from .sub import exported
            from pkg.sub.deep import direct as renamed


            class Net(Base):
                def step(self, x):
                    return ops.called(x) + exported(x) + renamed(x) + self.inherited(x)

                def unused(self, x):
                    x.add_(1)

            class Other(nn.Module):
                def forward(self, x):
                    return super().forward(x)
            """,
        "pkg/base.py": """\
            from torch import nn


            class Base(nn.Module):
                def __init__(self):
                    self.weight.mul_(2)

                def forward(self, x):
                    return self.step(x)

                def step(self, x):
                    raise NotImplementedError

                def inherited(self, x):
                    return x.add_(1)

                def reset_parameters(self):
                    self.weight.zero_()
            """,
        "pkg/ops.py": "def called(x):\n    return helper(x)\n\n\ndef helper(x):\n"
                      "    return x.mul_(2)\n\n\ndef not_called(x):\n    return x.mul_(2)\n",
        "pkg/sub/__init__.py": "from .deep import *\n",
        "pkg/sub/deep.py": "def exported(x):\n    return x.sub_(1)\n\n\ndef direct(x):\n"
                           "    x.div_(2)\n    return x\n",
    })  # fmt: skip
    expected = ["base.py:Base.inherited", "ops.py:helper", "deep.py:exported", "deep.py:direct"]
    assert sorted(reached(tmp_path)) == sorted(expected)


def test_a_class_with_a_forward_and_an_unknown_base_is_a_module(tmp_path: Path) -> None:
    write(tmp_path, {
        "a.py": "import torch\nfrom elsewhere import Layer\n\n\nclass Net(Layer):\n"
                "    def forward(self, x):\n        return x.relu_()\n",
        "b.py": "import torch\n\n\nclass Fn(torch.autograd.Function):\n    @staticmethod\n"
                "    def forward(ctx, x):\n        return x.relu_()\n",
        "c.py": "import torch\n\n\nclass Plain:\n    def forward(self, x):\n"
                "        return x.relu_()\n",
        "d.py": "import torch\n\n\ndef loose(x):\n    return x.relu_()\n",
    })  # fmt: skip
    assert reached(tmp_path) == ["a.py:Net.forward"]


def test_classes_inside_functions_are_seen(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": """\
        from torch import nn


        def make():
            class Net(nn.Module):
                def forward(self, x):
                    return x.relu_()

            return Net()
        """})  # fmt: skip
    assert reached(tmp_path) == ["a.py:make.<locals>.Net.forward"]


def test_the_linted_code_never_runs(tmp_path: Path) -> None:
    write(tmp_path, {"evil.py": "import torch\nopen('ran', 'w')\nraise SystemExit(3)\n"})
    done = subprocess.run(
        [sys.executable, "-m", "safemodules", "lint", "."],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not (tmp_path / "ran").exists()


def test_linting_loads_no_other_library_and_none_of_the_linted_files() -> None:
    code = (
        "import sys; from safemodules.linting.run import lint_paths; "
        f"lint_paths([{str(ROOT / 'benchmarks')!r}], jobs=1); "
        "print(*(m for m in sys.modules if m.split('.')[0] in "
        "('torchvision', 'timm', 'transformers', 'benchmarks', 'flake8')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_safemodules_itself_has_no_findings() -> None:
    assert lint_paths([str(ROOT / "safemodules")]).findings == ()


# -- silencing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("# noqa", True),
        ("# NOQA", True),
        ("#noqa:SM101", True),
        ("# noqa: E501, SM101", True),
        ("# noqa: SM1", True),
        ("# noqa: SM102", False),
        ("# noqa: E501", False),
        ("# why: noqa-like words", False),
        ("# type: ignore  # noqa: SM101", True),
    ],
)
def test_comments_silence_their_codes(comment: str, silent: bool) -> None:
    assert findings(f"h = self.net(x)\nh += 1  {comment}\nreturn h") == (
        [] if silent else ["SM101 neutral"]
    )


def test_a_comment_on_the_last_line_silences_too() -> None:
    assert findings("h = self.net(x)\nh += (\n    1\n)  # noqa: SM101\nreturn h") == []


def test_the_longest_beginning_decides() -> None:
    config = Config(select=("SM1", "SM301"), ignore=("SM10", "SM3"))
    wanted = [code for code in ("SM101", "SM110", "SM201", "SM301", "SM302")
              if config.wants_code(code)]  # fmt: skip
    assert wanted == ["SM110", "SM301"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[tool.safemodules.lint]\nselect = ['SM1']\nbaseline = 'b.json'\n"),
        ("setup.cfg", "[safemodules:lint]\nselect = SM1\nbaseline = b.json\n"),
    ],
)
def test_options_stand_in_files(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    config = load_config(inner, {"select": (), "severity": "error"})
    assert config == Config(select=("SM1",), severity="error", baseline=str(tmp_path / "b.json"))
    assert load_config(inner, {"select": ("SM2",)}).select == ("SM2",)


@pytest.mark.parametrize(
    "text",
    [
        "select = ['XX1']",
        "select = ['']",
        "select = 'SM1'",
        "severity = 'loud'",
        "colour = 'red'",
        "ignore = [1]",
        "select = ",
    ],
)
def test_wrong_options_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.safemodules.lint]\n{text}\n")
    with pytest.raises(ConfigError):
        load_config(tmp_path, {})


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    body = "h = self.net(x)\nh += 1\nx.data = h\nreturn checkpoint(self.net, h)"
    (tmp_path / "net.py").write_text(HEAD + NET.format(body=textwrap.indent(body, " " * 8)))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "net.py"


def test_exit_codes(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "net.py"]) == 1
    assert main(["lint", "net.py", "--select", "SM3"]) == 0
    assert main(["lint", "net.py", "--ignore", "SM1,SM2"]) == 0
    assert main(["lint", "net.py", "--severity", "error"]) == 0
    assert main(["lint", "."]) == 1
    assert main(["lint", ".", "--exclude", "net.py"]) == 0
    capsys.readouterr()
    for wrong in (["lint"], ["lint", "gone.py"], ["lint", ".", "--select", "X"],
                  ["lint", ".", "--jobs", "0"], ["lint", "--explain", "SM999"],
                  ["lint", ".", "--baseline", "gone.json"], ["lint", ".", "--format", "xml"],
                  ["fix"], ["fix", "gone.py"]):  # fmt: skip
        assert main(wrong) == 2, wrong
        assert "safemodules: error: " in capsys.readouterr().err


def test_a_baseline_hides_what_it_lists_and_nothing_else(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", ".", "--write-baseline", "known.json"]) == 0
    assert main(["lint", ".", "--baseline", "known.json"]) == 0
    net.write_text("# a line\n\n" + net.read_text())  # moved
    assert main(["lint", ".", "--baseline", "known.json"]) == 0
    text = net.read_text().replace("        h += 1\n", "        h += 1\n        h += 1\n")
    net.write_text(text)
    capsys.readouterr()
    assert main(["lint", ".", "--baseline", "known.json"]) == 1
    assert capsys.readouterr().out.count("SM101") == 1
    (net.parent / "known.json").write_text("{}")
    assert main(["lint", ".", "--baseline", "known.json"]) == 2


def test_json_holds_every_field(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "net.py", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    found = next(f for f in document["findings"] if f["code"] == "SM101")
    assert document["version"] == sm.__version__
    assert found == {
        "path": "net.py", "cell": None, "line": 14, "column": 9, "end_line": 14, "end_column": 15,
        "code": "SM101", "name": "augmented assignment", "severity": "note", "verdict": "neutral",
        "message": "`+=` overwrites `h`, which nobody else holds: the same out of place",
        "source": "h += 1", "function": "Net.forward", "fix": "safe",
    }  # fmt: skip


def test_sarif_names_rules_and_places(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "net.py", "--format", "sarif", "--output", "out.sarif"]) == 1
    assert capsys.readouterr().out == ""
    log = json.loads((net.parent / "out.sarif").read_text())
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0" and len(run["results"]) == 4
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "net.py"
        region = place["region"]
        assert (region["endLine"], region["endColumn"]) > (region["startLine"], 0)


def test_annotations_of_github_are_escaped(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net.rename(net.parent / "a,b%.py")
    assert main(["lint", ".", "--format", "github", "--select", "SM202"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "::warning file=a%2Cb%25.py,line=16,endLine=16,col=16,"
        "title=SM202 checkpoint without use_reentrant::`checkpoint` without"
    )


def test_explain_prints_why_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--explain", "sm101"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("SM101", "Before:", "    h += x", "After:", "Fix: "))
    assert main(["lint", "--explain", "all"]) == 0
    assert capsys.readouterr().out.count("Before:") == 17


def test_fix_prints_a_difference_or_writes(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = net.read_text()
    assert main(["fix", ".", "--diff"]) == 1
    printed = capsys.readouterr().out
    assert "-        h += 1\n+        h = h + 1\n" in printed and net.read_text() == before
    assert main(["fix", ".", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["mended"][0]["code"] == "SM101"
    assert net.read_text() == before.replace("h += 1", "h = h + 1")
    assert main(["fix", ".", "--diff"]) == 0
    assert main(["fix", ".", "--unsafe-fixes", "--select", "SM106"]) == 0
    assert "nn.ReLU()" in net.read_text() and "use_reentrant" not in net.read_text()


def test_a_finding_says_how_sure_it_is(net: Path) -> None:
    found = {f.code: (f.severity, f.verdict) for f in lint_paths([str(net)]).findings}
    assert found["SM101"] == (Severity.NOTE, Verdict.NEUTRAL)
    assert found["SM108"][0] is Severity.WARNING


# -- as a plugin ----------------------------------------------------------------------------


def test_flake8_reports_the_codes(net: Path) -> None:
    pytest.importorskip("flake8", reason="flake8 is installed with the dev extra")
    (net.parent / "setup.cfg").write_text(
        "[flake8:local-plugins]\nextension =\n    SM = safemodules.integrations.flake8:Plugin\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "flake8", "--select", "SM", "net.py"],
        capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    lines = sorted(set(done.stdout.splitlines()))
    assert [line.split()[1] for line in lines] == ["SM106", "SM101", "SM108", "SM202"], done
    assert lines[1].startswith("net.py:14:9: SM101 `+=` overwrites `h`")


def test_hooks_are_declared() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    for name in ("lint", "fix"):
        assert f"- id: safemodules-{name}\n" in text
        assert f"entry: safemodules {name}" in text
    assert 'SM = "safemodules.integrations.flake8:Plugin"' in (ROOT / "pyproject.toml").read_text()


def test_without_a_reader_of_toml_a_section_is_an_error_and_none_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Python 3.10, where tomli may be missing."""
    from safemodules.linting import config

    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "pyproject.toml"
    path.write_text("[project]\nname = 'net'\n")
    assert config._from_pyproject(path) is None
    path.write_text("[tool.safemodules.lint]\nselect = ['SM1']\n")
    with pytest.raises(config.ConfigError, match="Install tomli"):
        config._from_pyproject(path)
