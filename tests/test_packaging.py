"""What the package is made of, and what importing it does and does not do."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import metadata, requires, version
from pathlib import Path

import pytest

import safemodules as sm

ROOT = Path(__file__).parents[1]
PACKAGE = Path(sm.__file__).parent

# What later parts add is appended here as it lands.
PUBLIC = [
    "AccumulatingLoop",
    "ConversionPlan",
    "Equivalence",
    "SafeModulesError",
    "SafeResidual",
    "conversion_plan",
    "convert_model",
    "is_converted",
    "plan_conversion",
    "revert_model",
    "verify",
]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def submodules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(sm.__path__, "safemodules.")]
    return [name for name in names if not name.endswith("__main__")]


def test_importing_safemodules_loads_neither_torchvision_nor_the_command_line() -> None:
    loaded = run_python(
        "import sys, safemodules\n"
        "print(*(m for m in sys.modules if m.split('.')[0] == 'torchvision'\n"
        "        or m.startswith(('safemodules.cli', 'safemodules.integrations'))))"
    )
    assert loaded.split() == []


def test_importing_safemodules_changes_nothing_global() -> None:
    run_python(
        "import logging, os, random, warnings, torch\n"
        "def state():\n"
        "    return (dict(os.environ), logging.root.level, logging.root.handlers[:],\n"
        "            random.getstate(), torch.get_num_threads(), torch.get_default_dtype(),\n"
        "            torch.random.get_rng_state().tolist(), torch.cuda.is_initialized(),\n"
        # sympy adds a filter of its own as soon as some part of torch loads it
        "            [f for f in warnings.filters if not f[2].__module__.startswith('sympy')])\n"
        "before = state()\n"
        "import safemodules\n"
        "assert state() == before"
    )


@pytest.mark.parametrize("name", submodules())
def test_every_module_says_what_it_is_for(name: str) -> None:
    assert importlib.import_module(name).__doc__


def test_all_is_sorted_and_complete() -> None:
    assert list(sm.__all__) == sorted(sm.__all__)
    assert len(set(sm.__all__)) == len(sm.__all__)
    for name in sm.__all__:
        assert getattr(sm, name).__doc__, name
    assert set(PUBLIC) <= set(sm.__all__)


def test_nothing_public_is_left_out_of_all() -> None:
    modules = {name.rpartition(".")[2] for name in submodules()}
    public = {name for name in vars(sm) if not name.startswith("_")} - modules
    assert public - {"annotations"} <= set(sm.__all__)


@pytest.mark.parametrize("name", ["safemodules", *submodules()])
def test_the_names_in_all_exist_once(name: str) -> None:
    module = importlib.import_module(name)
    names = list(getattr(module, "__all__", []))  # ruff keeps them sorted
    assert len(names) == len(set(names))
    assert all(hasattr(module, public) for public in names)


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_a_file_has_under_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


def test_the_installed_metadata_is_the_one_promised() -> None:
    assert metadata("safemodules")["License-Expression"] == "BSD-3-Clause"
    runtime = [line for line in requires("safemodules") or [] if "extra ==" not in line]
    assert sorted(re.split(r"[<>=!~ ;]", line)[0] for line in runtime) == [
        "torch",
        "torchvision",
        "typing-extensions",
    ]
    assert all("<" in line or line.startswith("typing") for line in runtime)
    extras = set(metadata("safemodules").get_all("Provides-Extra") or [])
    assert {"test", "dev", "zoo", "docs", "bench"} <= extras


GITHUB = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "a/b"}


@pytest.mark.parametrize(
    ("environment", "homepage"),
    [
        ({}, None),
        (GITHUB, "https://example.org/a/b"),
        ({**GITHUB, "PROJECT_URL": "https://example.com/c/"}, "https://example.com/c"),
        ({"GITHUB_SERVER_URL": "https://example.org"}, None),
    ],
)
def test_links_lead_to_where_the_build_says_the_project_is(
    environment: dict[str, str], homepage: str | None
) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the package; the extra dev has it")
    others = {
        key: value for key, value in os.environ.items() if key not in (*GITHUB, "PROJECT_URL")
    }
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "metadata"],
        cwd=ROOT,
        env=others | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout).get("urls", {})
    assert found.get("Homepage") == homepage
    assert set(found) == (
        {"Homepage", "Documentation", "Issues", "Changelog"} if homepage else set()
    )
    assert all(url.startswith(homepage) for url in found.values())


def test_the_changelog_names_the_version() -> None:
    changelog = ROOT / "CHANGELOG.md"
    if not changelog.exists():
        pytest.skip("runs in a checkout only")
    text = changelog.read_text(encoding="utf-8")
    assert "## [Unreleased]" in text or f"## [{version('safemodules')}]" in text


def test_each_tool_has_one_home() -> None:
    if not (ROOT / "setup.cfg").exists():
        pytest.skip("runs in a checkout only")
    ini = configparser.ConfigParser()
    ini.read(ROOT / "setup.cfg", encoding="utf-8")
    assert not ini.has_section("metadata")
    assert not ini.has_section("options")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for tool in ("mypy", "coverage", "importlinter"):
        assert f"[tool.{tool}" not in pyproject
