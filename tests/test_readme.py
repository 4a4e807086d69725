"""README.md: its Python runs, and its commands are the ones that are tested."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from safemodules.cli import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"

pytestmark = pytest.mark.skipif(not README.exists(), reason="runs in a checkout only")


def code_blocks(language: str) -> list[tuple[int, str]]:
    """Return (line number, text) of each fenced block of ``language``."""
    text = README.read_text(encoding="utf-8") if README.exists() else ""
    return [
        (text.count("\n", 0, match.start(1)) + 1, match.group(1))
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def between(marker: str) -> str:
    """Return what stands between ``<!-- marker -->`` and ``<!-- /marker -->``."""
    text = README.read_text(encoding="utf-8")
    found = re.findall(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", text, re.DOTALL)
    assert len(found) == 1, f"expected one pair of {marker} markers, found {len(found)}"
    return str(found[0])


@pytest.mark.parametrize(
    ("line", "code"),
    [pytest.param(*block, id=f"line {block[0]}") for block in code_blocks("python")],
)
def test_a_python_block_of_the_readme_runs(
    line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From a file: a conversion reads the source of the classes that the block defines.
    path = tmp_path / f"readme_line_{line}.py"
    path.write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": path.stem}
    exec(compile(code, str(path), "exec"), namespace)


@pytest.mark.parametrize("marker", ["test-command", "demo-command"])
def test_a_readme_command_is_one_line_that_sets_itself_up(marker: str) -> None:
    lines = [line for line in between(marker).splitlines() if line.startswith("python3 ")]
    assert len(lines) == 1
    assert lines[0].startswith("python3 -m venv .venv && ")
    assert subprocess.run(["bash", "-n", "-c", lines[0]], check=False).returncode == 0


def test_ci_takes_its_test_command_from_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "<!-- test-command -->" in script
    assert "-m pytest" not in script


def test_every_file_that_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_the_shown_demo_output_has_the_parts_that_the_demo_prints() -> None:
    shown = between("demo-output")
    for part in ("before", "mend", "proof", "saved", "Every fault was raised, mended and proven"):
        assert part in shown
    assert "FAILED" not in shown


def test_lint_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [code for _, code in code_blocks("python") if "sm.diagnose(" in code]
    (tmp_path / "net.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    assert main(["lint", "net.py"]) == 1
    assert f"```text\n{capsys.readouterr().out}```\n" == between("lint-output").lstrip("\n")
