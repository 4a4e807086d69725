"""Files as they come: encodings, line ends, notebooks, stubs, and what is no Python at all."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safemodules.cli import main
from safemodules.linting import fixer
from safemodules.linting.files import PathError, find_files
from safemodules.linting.fixer import fix_bytes, write_file
from safemodules.linting.run import lint_file, lint_paths

NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x):
        h = self.net(x)
        h *= 2
        return h
"""
FIXED = NET.replace("h *= 2", "h = h * 2")


def fix(path: str, data: bytes, *, unsafe: bool = False) -> bytes:
    reached = {(path, "Net.forward"), (path, "Net.helper")}
    return fix_bytes(path, data, is_wanted=lambda f: True, reached=reached, unsafe=unsafe).after


def codes(data: bytes, path: str = "net.py") -> list[str]:
    return [found.code for found in lint_file(path, data)]


@pytest.mark.parametrize(
    ("encoding", "head"),
    [
        ("utf-8", ""),
        ("utf-8", "# é, 漢 and 🙂 stand before the site\n"),
        ("utf-8-sig", "# a byte order mark\n"),
        ("latin-1", "# -*- coding: latin-1 -*-\nname = 'é'\n"),
        ("cp1252", "#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nname = '€'\n"),
        ("euc-jp", "# coding: euc-jp\nname = '漢字'\n"),
        ("utf-8-sig", "# coding: utf-8\n"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_file_keeps_its_encoding_and_line_ends(encoding: str, head: str, newline: str) -> None:
    data = (head + NET).replace("\n", newline).encode(encoding)
    assert codes(data) == ["SM101"]
    assert fix("net.py", data) == (head + FIXED).replace("\n", newline).encode(encoding)


def test_columns_count_characters() -> None:
    line = NET.replace("        h *= 2", "        é = '漢🙂'; h *= 2")
    (found,) = lint_file("net.py", line.encode())
    assert (found.line, found.column) == (12, 19)


@pytest.mark.parametrize("indent", ["\t", " ", "   "])
def test_tabs_and_odd_indents_stay(indent: str) -> None:
    data = NET.replace("    ", indent).encode()
    assert fix("net.py", data) == FIXED.replace("    ", indent).encode()


@pytest.mark.parametrize("end", ["", "\n\n\n", "\x0c\n", "  # the end"])
def test_what_follows_the_last_line_stays(end: str) -> None:
    assert fix("net.py", (NET.rstrip() + end).encode()) == (FIXED.rstrip() + end).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"def forward(self, x:\n",
        b"print 'Python 2 and torch'\n",
        b"# coding: no-such-encoding\nimport torch\n",
        b"import torch\nname = '\xff\xfe'\n",
        b"import torch\n\x00\n",
        b"import torch\nx = " + b"(" * 400 + b")" * 400 + b"\n",
        b"import torch\nx = " + b"-" * 200_000 + b"1\n",
        "import torch\n".encode("utf-16"),
    ],
)
def test_what_is_no_python_is_a_finding_and_no_crash(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(data)
    (found,) = lint_file(str(path), data)
    assert found.code == "SM001" and found.message.startswith("is not read: ")
    assert main(["lint", str(path)]) in (0, 1)
    assert main(["fix", "--unsafe-fixes", str(path)]) == 0
    assert path.read_bytes() == data


def test_deep_trees_are_no_crash() -> None:
    chain = "x" + " + 1" * 3000
    text = NET.replace("return h", f"return {chain}")
    assert set(codes(text.encode())) <= {"SM001", "SM101"}


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_linted_without_a_crash(data: bytes) -> None:
    lint_file("net.py", b"import torch\n" + data)
    lint_file("net.ipynb", data)


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("x h()[]{}:=+*_.,'\"#\n\t\\ "), max_size=120))
def test_any_text_behind_a_forward_is_linted_without_a_crash(text: str) -> None:
    data = f"{NET.rstrip()}\n        {text}".encode()
    lint_file("net.py", data)
    after = fix("net.py", data, unsafe=True)
    assert fix("net.py", after, unsafe=True) == after


def test_stubs_and_empty_files_have_no_findings() -> None:
    stub = b"from torch import Tensor, nn\nclass Net(nn.Module):\n    def forward(self, x: Tensor)"
    assert codes(stub + b" -> Tensor: ...\n", "net.pyi") == []
    assert codes(b"") == [] and codes(b"\n\n# torch\n") == []


def test_warnings_about_the_linted_code_are_not_raised() -> None:
    assert codes(b"import torch\nx = '\\d'\nassert (1, 2)\nx is 1\n") == []


# -- notebooks ------------------------------------------------------------------------------


def notebook(*sources: object, indent: int | None = 1, escaped: bool = True) -> bytes:
    cells = [
        {"cell_type": "code", "source": source, "outputs": [{"text": "h *= 2 {[\"\\"}],
         "execution_count": 1.50, "metadata": {}}
        for source in sources
    ]  # fmt: skip
    markdown = {"cell_type": "markdown", "source": ["h *= 2\n"], "metadata": {}}
    document = {"cells": [markdown, *cells], "metadata": {"é": 1}, "nbformat": 4}
    return (json.dumps(document, indent=indent, ensure_ascii=escaped) + "\n").encode()


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("as_list", [True, False])
def test_a_notebook_changes_in_the_edited_line_alone(
    indent: int | None, escaped: bool, as_list: bool
) -> None:
    text = NET.replace("h *= 2", "h *= 2  # é").rstrip()
    source = text.splitlines(keepends=True) if as_list else text
    data = notebook(["import torch\n", "%matplotlib inline\n", "!pip list\n"], source,
                    indent=indent, escaped=escaped)  # fmt: skip
    (found,) = lint_file("net.ipynb", data)
    assert (found.code, found.cell, found.line) == ("SM101", 3, 12)
    expected = data.replace(b"        h *= 2  #", b"        h = h * 2  #")
    assert fix("net.ipynb", data) == expected


def test_cells_that_are_no_python_are_passed_over() -> None:
    cells = ["%%bash\nls *.py", "def broken(:", "x = ?", NET, "net?"]
    (found,) = lint_file("net.ipynb", notebook(*cells))
    assert (found.code, found.cell, found.line) == ("SM101", 5, 12)


def test_names_are_shared_by_the_cells() -> None:
    head, body = NET.split("\n\n\n")
    assert codes(notebook(head, body), "net.ipynb") == ["SM101"]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"{", b'{"cells": [1]}', b"\xff", b"null"])
def test_what_is_no_notebook_is_a_finding(data: bytes) -> None:
    assert codes(data, "net.ipynb") == ["SM001"]


# -- files on disk --------------------------------------------------------------------------


def test_files_are_found_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "a.pyi", "c.ipynb", "d.txt", ".hidden/e.py", "sub/f.py",
                 "venv/g.py", "sub/__pycache__/h.py"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    found = find_files([str(tmp_path), str(tmp_path / "a.py"), str(tmp_path / "d.txt")])
    names = [os.path.relpath(path, tmp_path) for path in found]
    assert names == ["a.py", "a.pyi", "b.py", "c.ipynb", "sub/f.py", "d.txt"]
    assert find_files([str(tmp_path)], ["sub", "*.ipynb", "b.py"]) == [
        str(tmp_path / name) for name in ("a.py", "a.pyi")
    ]
    with pytest.raises(PathError, match="there is no file or folder"):
        find_files([str(tmp_path / "missing")])


def test_a_file_that_cannot_be_written_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.py"
    path.write_text(NET)

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fixer.os, "replace", fail)
    assert main(["fix", str(path)]) == 2
    assert path.read_text() == NET
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "net.py", tmp_path / "link.py"
    path.write_text(NET)
    path.chmod(0o751)
    link.symlink_to(path)
    assert main(["fix", str(link)]) == 0
    assert path.read_text() == FIXED and link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o751


def test_writing_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_bytes(b"a longer text than the new one")
    write_file(str(path), b"short")
    assert path.read_bytes() == b"short"


def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    for number in range(12):
        text = NET.replace("Net", f"Net{number}") + f"# {'x' * 90}\n" * 900
        (tmp_path / f"net{number:02}.py").write_text(text)
    alone = lint_paths([str(tmp_path)], jobs=1)
    assert lint_paths([str(tmp_path)], jobs=2) == alone
    assert [found.code for found in alone.findings] == ["SM101"] * 12
    assert alone.files == 12 and alone.lines > 10_000


def test_a_file_that_vanishes_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.py"
    path.symlink_to(tmp_path / "gone.py")
    monkeypatch.setattr("safemodules.linting.run.find_files", lambda *args: [str(path)])
    (found,) = lint_paths([str(tmp_path)]).findings
    assert found.code == "SM001"
