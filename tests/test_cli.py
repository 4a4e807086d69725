"""The command line: targets, inputs, progress, convert and demo."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import safemodules as sm
from safemodules.cli import application, demo, main
from safemodules.cli.command import ExitCode, UsageError
from safemodules.cli.console import Console
from safemodules.cli.inputs import make_inputs, parse_dtype, parse_input
from safemodules.cli.progress import ProgressBar
from safemodules.cli.saved_memory import measure_saved
from safemodules.cli.targets import TargetError, load_target

GOLDEN = Path(__file__).parent / "golden"

NETS = """\
import torch
from torch import nn


class Faulty(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        h = torch.sigmoid(self.linear(x))
        h += x
        return h


class Clean(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.sigmoid(self.linear(x)) + x


class Flags(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Dropout(0.5, inplace=True), nn.ReLU(inplace=True))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(2, 4)

    def forward(self, index, x):
        return self.embedding(index) * x


class NeedsWidth(nn.Module):
    def __init__(self, width, *, depth):
        super().__init__()


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        raise KeyError("no such setting")


def build(width=4):
    return Faulty()


def build_none():
    return None


ready = Clean()
number = 3


class space:
    Inner = Clean
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of models, in the current folder."""
    folder = tmp_path / "models"  # a plan shows a file with its folder
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = folder / "nets_for_cli.py"
    path.write_text(NETS)
    return path


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


# --- targets -----------------------------------------------------------------------------


def test_a_class_in_a_file_is_built(nets: Path) -> None:
    assert type(load_target("nets_for_cli.py:Faulty")).__name__ == "Faulty"


def test_an_absolute_path_is_accepted(nets: Path) -> None:
    assert type(load_target(f"{nets}:Faulty")).__name__ == "Faulty"


def test_a_factory_with_defaults_is_called(nets: Path) -> None:
    assert type(load_target("nets_for_cli.py:build")).__name__ == "Faulty"


def test_a_model_in_a_file_is_taken_as_it_is(nets: Path) -> None:
    assert type(load_target("nets_for_cli.py:ready")).__name__ == "Clean"


def test_a_dotted_name_is_followed(nets: Path) -> None:
    assert type(load_target("nets_for_cli.py:space.Inner")).__name__ == "Clean"


def test_a_module_in_the_current_folder_is_imported(nets: Path) -> None:
    assert type(load_target("nets_for_cli:Faulty")).__name__ == "Faulty"
    del sys.modules["nets_for_cli"]


def test_a_file_may_import_its_siblings(nets: Path) -> None:
    (nets.parent / "uses_sibling.py").write_text("from nets_for_cli import Clean as Model\n")
    assert type(load_target("uses_sibling.py:Model")).__name__ == "Clean"
    del sys.modules["nets_for_cli"]


def test_a_torchvision_name_is_built_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights must not be downloaded")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    name = "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn"
    assert type(load_target(name)).__name__ == "FasterRCNN"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nets_for_cli.py", "has no colon with a name on either side; expected package.module"),
        ("nets_for_cli.py:", "has no colon with a name on either side"),
        (":Faulty", "has no colon with a name on either side"),
        ("absent.py:Net", "there is no file 'absent.py' (current folder: "),
        ("some/folder:Net", "is a path but not one of a .py file"),
        ("nets_for_cli.py:Fault", "has no 'Fault' (did you mean Faulty?)"),
        ("nets_for_cli.py:NeedsWidth", "needs arguments (width, depth); name a function"),
        ("nets_for_cli.py:Raises", "building the model raised KeyError: 'no such setting'"),
        ("nets_for_cli.py:build_none", "returned a NoneType; expected a torch.nn.Module"),
        ("nets_for_cli.py:number", "is a int; expected a class, a function"),
        ("no_such_package.nets:Net", "there is no module 'no_such_package'"),
        ("broken.py:Net", "raised ZeroDivisionError: division by zero"),
        ("broken:Net", "importing 'broken' raised ZeroDivisionError: division by zero"),
        ("needs_absent:Net", "raised ModuleNotFoundError: No module named 'absent_dependency'"),
        ("relative.py:Net", "a file of a package is named package.module:Class"),
        ("torchvision:resnet51", "no model 'resnet51' (did you mean resnet50"),
    ],
)
def test_a_bad_target_is_wrong_use_and_says_why(
    nets: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.py").write_text("1 / 0\n")
    Path("needs_absent.py").write_text("import absent_dependency\n")
    Path("relative.py").write_text("from .other import Net\n")
    with pytest.raises(TargetError, match=re.escape(message)):
        load_target(target)
    assert main(["convert", target]) == ExitCode.WRONG_USE
    assert message in capsys.readouterr().err


# --- inputs ------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5), st.sampled_from("x,"))
def test_a_printed_shape_reads_back(sizes: list[int], separator: str) -> None:
    assert parse_input(separator.join(map(str, sizes))).shape == tuple(sizes)


@pytest.mark.parametrize("text", ["", "2x", "x2", "2xx3", "2.5", "-1x3", "2 x 3", "2x3:", "a"])
def test_what_is_no_shape_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="is not a"):
        parse_input(text)


@pytest.mark.parametrize("text", ["float33", "nn", "", "float64 "])
def test_what_is_no_dtype_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="is not a dtype"):
        parse_dtype(text)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64", "int64", "bool"])
def test_inputs_have_their_shape_and_dtype_and_repeat(dtype: str) -> None:
    specs = [parse_input(f"3x2:{dtype}"), parse_input("0x4")]
    state = torch.get_rng_state()
    first, empty = make_inputs(specs, torch.float64)
    again, _ = make_inputs(specs, torch.float64)
    assert first.shape == (3, 2)
    assert first.dtype == parse_dtype(dtype)
    assert torch.equal(first, again)
    assert empty.shape == (0, 4)
    assert empty.dtype == torch.float64
    assert torch.equal(torch.get_rng_state(), state)


# --- progress ----------------------------------------------------------------------------


def test_the_bar_is_drawn_over_itself_and_wiped() -> None:
    terminal = Terminal()
    bar = ProgressBar(terminal, width=4, clock=lambda: 0.0)
    bar("reading", 1, 2)
    bar("reading", 2, 2)
    bar("run", 0, 0)
    bar.clear()
    drawings = terminal.getvalue().split("\r")
    assert drawings[1:4] == ["reading [##--] 1/2", "reading [####] 2/2", "run …".ljust(18)]
    assert drawings[4].strip() == ""


def test_the_bar_is_not_drawn_more_often_than_its_interval() -> None:
    terminal = Terminal()
    seconds = iter([0.0, 0.01, 0.02, 0.2, 0.21])
    bar = ProgressBar(terminal, interval=0.1, clock=lambda: next(seconds))
    for done in (1, 2, 3, 4, 5):
        bar("sites", done, 5)
    drawn = re.findall(r"(\d)/5", terminal.getvalue())
    assert drawn == ["1", "4", "5"]


@pytest.mark.parametrize(
    "console",
    [
        Console(io.StringIO(), io.StringIO()),
        Console(io.StringIO(), Terminal(), json=True),
        Console(io.StringIO(), Terminal(), quiet=True),
    ],
    ids=["no terminal", "json", "quiet"],
)
def test_no_bar_is_drawn_where_none_is_wanted(console: Console) -> None:
    with console.progress() as progress:
        assert progress is None


def test_a_bar_is_drawn_on_a_terminal() -> None:
    console = Console(io.StringIO(), Terminal())
    with console.progress() as progress:
        assert progress is not None
        progress("work", 1, 2)
    assert "1/2" in console.stderr.getvalue()  # type: ignore[attr-defined]


# --- the whole line ----------------------------------------------------------------------


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.CLEAN
    out = " ".join(capsys.readouterr().out.split())
    for command in application.COMMANDS:
        assert f" {command.name} {command.summary}" in out


@pytest.mark.parametrize("arguments", [[], ["no-such"], ["convert"], ["convert", "a:b", "--no"]])
def test_a_wrong_line_exits_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.WRONG_USE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: safemodules" in captured.err


def test_a_wrong_line_with_json_prints_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "nowhere", "--json"]) == ExitCode.WRONG_USE
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["type"] == "TargetError"
    assert "'nowhere'" in document["error"]["message"]


def test_command_names_are_unique() -> None:
    names = [command.name for command in application.COMMANDS]
    assert len(names) == len(set(names))


def test_python_m_safemodules_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "safemodules", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("safemodules ")


def test_a_reader_that_leaves_causes_no_traceback(nets: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "safemodules", "convert", "nets_for_cli.py:Faulty"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


# --- convert -----------------------------------------------------------------------------


def test_convert_reports_sites_and_exits_with_one(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "nets_for_cli.py:Faulty"]) == ExitCode.FINDINGS
    out = capsys.readouterr().out
    assert "h += x" in out
    assert "nets_for_cli.py:12" in out


def test_convert_of_a_clean_model_exits_with_zero(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "nets_for_cli.py:Clean", "--input", "2x4"]) == ExitCode.CLEAN
    assert capsys.readouterr().out


def test_convert_prints_a_diff_only_when_asked(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["convert", "nets_for_cli.py:Faulty", "--input", "2x4"]
    main(line)
    assert "\n-        h += x" not in capsys.readouterr().out
    assert main([*line, "--diff"]) == ExitCode.FINDINGS
    assert "\n-        h += x" in capsys.readouterr().out


def test_convert_leaves_the_file_alone(nets: Path) -> None:
    main(["convert", "nets_for_cli.py:Faulty", "--input", "2x4", "--diff"])
    assert nets.read_text() == NETS


def test_convert_with_inputs_prints_the_equivalence(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["convert", "nets_for_cli.py:Faulty", "--input", "2x4", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["equivalence"]["equivalent"] is True
    assert document["sites"][0]["decision"] == "swap"
    assert "h += x" in document["diff"]


def test_convert_without_inputs_runs_nothing(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["convert", "nets_for_cli.py:Faulty", "--json"])
    assert json.loads(capsys.readouterr().out)["equivalence"] is None


def test_convert_takes_several_inputs_of_their_own_dtype(nets: Path) -> None:
    line = ["convert", "nets_for_cli.py:TwoInputs", "--dtype", "float64"]
    assert main([*line, "--input", "3:int64", "--input", "3,4"]) == ExitCode.CLEAN


def test_convert_says_when_forward_does_not_take_the_inputs(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "nets_for_cli.py:Faulty", "--input", "2x5"]) == ExitCode.WRONG_USE
    captured = capsys.readouterr()
    assert "shapes cannot be multiplied" in captured.err
    assert "Traceback" not in captured.err


def test_a_refused_conversion_is_a_finding(
    nets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise sm.MismatchError("refused because")

    monkeypatch.setattr(sm, "plan_conversion", refuse)
    assert main(["convert", "nets_for_cli.py:Clean"]) == ExitCode.FINDINGS
    assert "refused because" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("golden", "arguments"),
    [
        # Without inputs: what the original raises is worded differently by each torch.
        ("convert_diff.txt", ["nets_for_cli.py:Faulty", "--diff"]),
        ("convert_inputs.txt", ["nets_for_cli.py:Flags", "--input", "2x4"]),
        ("convert_clean.txt", ["nets_for_cli.py:Clean", "--input", "2x4", "--diff"]),
    ],
)
def test_convert_prints_what_the_golden_file_shows(
    golden: str, arguments: list[str], nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["convert", *arguments])
    printed = capsys.readouterr().out.replace(str(nets.parent.parent), "")
    assert printed == (GOLDEN / golden).read_text()


# --- demo --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def acts() -> dict[str, demo.Act]:
    with demo._one_thread():
        return {name: play(None) for name, play in demo.ACTS.items()}


def test_the_unet_fault_is_the_one_people_search_for(acts: dict[str, demo.Act]) -> None:
    assert "modified by an inplace operation" in acts["unet"].fault


def test_the_resnet_fault_is_raised_by_its_hooks(acts: dict[str, demo.Act]) -> None:
    assert "is a view and is being modified inplace" in acts["resnet"].fault


@pytest.mark.parametrize("name", sorted(demo.ACTS))
def test_every_proof_of_the_demo_holds(acts: dict[str, demo.Act], name: str) -> None:
    failed = [proof for proof in acts[name].proofs if not proof.holds]
    assert failed == []
    assert acts[name].holds


@pytest.mark.parametrize("name", sorted(demo.ACTS))
def test_the_demo_reports_memory(acts: dict[str, demo.Act], name: str) -> None:
    assert acts[name].saved_before.nbytes > 0
    assert acts[name].saved_after.nbytes > 0


def _act(holds: bool) -> demo.Act:
    memory = measure_saved(nn.ReLU(), torch.ones(2, requires_grad=True))
    proof = demo.Proof("it holds", holds, "two equals two")
    return demo.Act(
        "A net", "mend(net)", "RuntimeError: broken", 2, 1, (proof,), memory, memory, "n"
    )


@pytest.mark.parametrize(("holds", "code"), [(True, ExitCode.CLEAN), (False, ExitCode.FINDINGS)])
def test_the_demo_exits_with_one_when_a_proof_fails(
    holds: bool,
    code: ExitCode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "ACTS", {"unet": lambda progress: _act(holds)})
    assert main(["demo"]) == code
    assert ("[ok] it holds" if holds else "[FAILED] it holds") in capsys.readouterr().out
    assert main(["demo", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["proven"] is holds


def test_the_rendering_of_an_act_is_the_golden_one() -> None:
    assert demo.render(_act(True), 1) == (GOLDEN / "demo_act.txt").read_text()


def test_saved_memory_counts_a_storage_once_and_leaves_parameters_out() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.weight  # keeps x and the weight
            y = y.exp()  # keeps its result
            return y * y  # keeps that result, twice

    saved = measure_saved(Twice(), torch.ones(5, requires_grad=True))
    assert saved.storages == 2
    assert saved.nbytes == 2 * 5 * 4


def test_modules_are_chosen_by_name(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{nets}:Clean"
    main(["convert", target, "--checkpoint", "linear", "--checkpoint", "loops"])
    assert "asked for" in capsys.readouterr().out
    main(["convert", target, "--checkpoint", "none"])
    assert "asked for" not in capsys.readouterr().out
    assert main(["convert", target, "--checkpoint", "none", "--checkpoint", "linear"]) == 2
    assert main(["convert", target, "--checkpoint", "linaer"]) != 0
    assert "'linear'" in capsys.readouterr().err
