"""docs/: its code runs and prints what the pages show, and its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from documents import Block, Program, blocks_of, programs_of

import safemodules as sm
import safemodules.testing
from safemodules.cli import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="runs in a checkout only")


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


def matches(printed: str, shown: str, *, numbers: bool) -> bool:
    """Whether a text is what a page shows, where ``...`` stands for anything.

    Spaces and ends of lines do not count: paths are of different lengths, and wrap the text.
    """
    if not numbers:
        shown, printed = (re.sub(r"\d+([.,]\d+)*", "0", text) for text in (shown, printed))
    wanted, found = (" ".join(text.split()) for text in (shown, printed))
    return re.fullmatch(".*?".join(map(re.escape, wanted.split("..."))), found) is not None


def run_python(block: Block, namespace: dict[str, object], folder: Path) -> None:
    # From a file: a conversion reads the source of the classes that the block defines.
    path = folder / f"{namespace['__name__']}.py"
    path.write_text(block.source, encoding="utf-8")
    code = compile(block.source, str(path), "exec")
    if block.marker == "raises":
        with pytest.raises(Exception, match=re.escape(block.value)):
            exec(code, namespace)
    else:
        with warnings.catch_warnings():
            if block.marker == "needs":
                warnings.simplefilter("ignore")  # other people's
            exec(code, namespace)


def run_commands(block: Block, folder: Path) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        assert not words or words[0] == "safemodules", f"say why this is not run: {line}"
        if words:
            assert main(words[1:]) in (0, 1), line


@pytest.fixture
def _own_process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # no address is looked up
    yield
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("_own_process_group")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=f"{name_of(page)} line {program.line}")
        for page in PAGES
        for program in programs_of(page)
    ],
)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")  # test runners set others
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": f"page_line_{program.line}"}
    monkeypatch.syspath_prepend(str(tmp_path))
    for file in program.files:
        (tmp_path / file.value).parent.mkdir(exist_ok=True)
        (tmp_path / file.value).write_text(file.text, encoding="utf-8")
        sys.modules.pop(Path(file.value).stem, None)  # another page's
    for block in program.blocks:
        if block.marker == "not run":
            if block.language == "python":
                compile(block.source, str(block.page), "exec")
            continue
        if block.marker == "needs" and importlib.util.find_spec(block.value) is None:
            pytest.skip(f"{block.value} is not installed")
        if block.marker.startswith("prints"):
            printed = capsys.readouterr().out
            assert matches(printed, block.text, numbers=block.marker == "prints"), printed
        elif block.language == "python":
            capsys.readouterr()
            run_python(block, namespace, tmp_path)
        elif block.language == "console":
            capsys.readouterr()
            run_commands(block, tmp_path)


def test_code_that_is_not_run_is_rare_and_says_why() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language != "text"]
    left_out = [block for block in blocks if block.marker == "not run"]
    assert all(block.value for block in left_out)
    assert len(left_out) <= len(blocks) / 5


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_text_above_a_file_names_it(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in blocks_of(page):
        if block.marker == "file":
            assert f"`{block.value}`" in "\n".join(lines[max(0, block.line - 8) : block.line])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_to_a_page(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_page_stands_in_a_table_of_contents() -> None:
    listed = set()
    for page in PAGES:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            entries = [line for line in tree.splitlines() if line and not line.startswith(":")]
            names = [entry.rpartition("<")[2].rstrip(">") for entry in entries]
            listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    assert {page.resolve() for page in PAGES} - listed == {(DOCS / "index.md").resolve()}


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    documented = re.findall(r"auto(?:function|class|exception):: ([\w.]+)", text)
    assert len(documented) == len(set(documented))
    public = {f"safemodules.{name}" for name in sm.__all__ if not name.startswith("__")}
    public |= {f"safemodules.testing.{name}" for name in safemodules.testing.__all__}
    assert public - set(documented) == set()


def test_no_page_names_a_place_of_one_machine() -> None:
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(?:work|home|tmp|root|Users)\b", page.read_text()), page
