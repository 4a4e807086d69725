"""The script that runs the tests on several Pythons: its parts, and none of its environments."""

from __future__ import annotations

import importlib.util
import stat
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "matrix.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="runs in a checkout only")

PYPROJECT = """
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.10",
    "Programming Language :: Python :: 3.11",
    "torch>=2.14,<3",
    "torchvision>=0.29,<1",
"""


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "matrix", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def fake_python(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_pythons_are_those_of_the_classifiers(matrix: ModuleType) -> None:
    assert matrix.supported_pythons(PYPROJECT) == ["3.10", "3.11"]


def test_the_torches_are_the_bounds_of_the_dependencies(matrix: ModuleType) -> None:
    assert matrix.requirements(PYPROJECT, "oldest") == ("torch==2.14", "torchvision==0.29")
    assert matrix.requirements(PYPROJECT, "newest") == ("torch>=2.14,<3", "torchvision>=0.29,<1")


def test_a_dependency_without_bounds_is_named(matrix: ModuleType) -> None:
    with pytest.raises(ValueError, match="torch>=A,<B"):
        matrix.requirements('"torch"', "oldest")


def test_the_latest_patch_of_pyenv_is_found_where_path_has_a_broken_shim(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = fake_python(tmp_path / "shims" / "python3.11", "not found")
    fake_python(tmp_path / "versions/3.11.9/bin/python", "3.11")
    latest = fake_python(tmp_path / "versions/3.11.10/bin/python", "3.11")
    monkeypatch.setenv("PATH", f"{shim.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    # /usr/bin may hold a real one, which comes first
    real = matrix.shutil.which("python3.11", path="/usr/bin:/bin")
    assert matrix.find_interpreters(["3.11"]) == {"3.11": real or str(latest)}


def test_a_python_that_is_not_installed_is_left_out(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert matrix.find_interpreters(["3.10", "3.11"]) == {}


def test_listing_prints_the_commands_and_runs_none(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "find_interpreters", lambda versions: {"3.12": "/some/python"})
    monkeypatch.setattr(matrix, "run", lambda *_: pytest.fail("an environment was made"))
    assert matrix.main(["--list", "--torch", "oldest", "--", "tests/test_trees.py"]) == 0
    printed = capsys.readouterr().out
    assert "==> Python 3.12, oldest torch" in printed
    assert "/some/python -m venv VENV" in printed
    assert "torch==" in printed
    assert "-m pytest -n 2 tests/test_trees.py" in printed
    assert "Python 3.10: not installed, left out" in printed


def test_a_python_that_was_asked_for_must_be_there(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "find_interpreters", lambda versions: {})
    assert matrix.main(["--list", "--python", "3.12"]) == 2


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_tells_whether_all_have_passed(
    passed: bool, status: int, matrix: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "find_interpreters", lambda versions: {"3.12": "/some/python"})
    monkeypatch.setattr(matrix, "run", lambda *_: passed)
    assert matrix.main([]) == status


def test_no_environment_is_made_on_a_full_disk(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "NEEDED_BYTES", 1 << 80)
    pair = matrix.Pair("3.12", "/some/python", "oldest", ())
    assert not matrix.run(pair, [], tmp_path)
    assert list(tmp_path.iterdir()) == []
