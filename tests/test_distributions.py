"""What the wheel and the source distribution hold, and what the files of a release say."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

import safemodules as sm

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="runs in a checkout only"
)


def build(kind: str, folder: Path) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed (extra dev)")
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def wheel_metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_string(wheel.read(name).decode())


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "safemodules"
    source = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == source
    assert "safemodules/py.typed" in held


def test_the_wheel_carries_the_licence_and_the_entry_points(wheel: zipfile.ZipFile) -> None:
    info = f"safemodules-{sm.__version__}.dist-info"
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert "safemodules = safemodules.cli:main" in entry_points
    assert "SM = safemodules.integrations.flake8:Plugin" in entry_points
    tag = wheel.read(f"{info}/WHEEL").decode()
    assert "Tag: py3-none-any" in tag


def test_the_metadata_of_the_wheel_is_what_pyproject_promises(wheel_metadata: Message) -> None:
    assert wheel_metadata["Version"] == sm.__version__
    assert wheel_metadata["License-Expression"] == "BSD-3-Clause"
    assert wheel_metadata["Requires-Python"] == ">=3.10"
    assert wheel_metadata["Description-Content-Type"] == "text/markdown"
    body = wheel_metadata.get_payload()
    assert isinstance(body, str) and body.startswith("# safemodules")
    needed = [line for line in wheel_metadata.get_all("Requires-Dist", []) if "extra" not in line]
    assert sorted(re.split(r"[<>=]", line)[0] for line in needed) == [
        "torch",
        "torchvision",
        "typing-extensions",
    ]


def test_the_classifiers_exist_and_name_the_pythons_that_ci_runs(wheel_metadata: Message) -> None:
    classifiers = wheel_metadata.get_all("Classifier", [])
    known = pytest.importorskip("trove_classifiers", reason="comes with hatchling (extra dev)")
    assert set(classifiers) <= known.classifiers
    assert not [line for line in classifiers if line.startswith("License ::")]  # PEP 639
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    path = ROOT / ".github/workflows/ci.yml"
    if not path.exists():
        pytest.skip("runs in a checkout only")
    workflow = path.read_text(encoding="utf-8")
    assert promised == re.findall(r'"(3\.\d+)"', workflow)


def test_the_source_distribution_holds_what_is_needed_to_build_and_test(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "SECURITY.md",
        "pyproject.toml",
        "safemodules/__init__.py",
        "safemodules/py.typed",
        "setup.cfg",
        "tests/test_distributions.py",
    }
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".github")]


def test_the_citation_names_the_version_and_the_licence() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (extra dev)")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == sm.__version__
    assert citation["license"] == "BSD-3-Clause"
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name
)
def test_a_workflow_or_template_is_whole(path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (extra dev)")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "workflows":
        assert content["permissions"] == {"contents": "read"}
        assert all(job["timeout-minutes"] for job in content["jobs"].values())
    elif path.name != "config.yml":
        assert {"name", "description", "body"} <= set(content)
        ids = [field["id"] for field in content["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids))
        labels = [field["attributes"].get("label", "") for field in content["body"]]
        assert any("safemodules diagnose" in label for label in labels)
