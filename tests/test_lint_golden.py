"""Every code on a file of its own: what is reported, what is written, what that computes.

For each code ``tests/golden/lint`` has ``CODE.in.py``, what ``lint`` prints of it (``CODE.txt``),
and what ``fix --unsafe-fixes`` makes of it (``CODE.out.py``). Set UPDATE_GOLDEN=1 to write the
latter two anew; look at the difference before you commit it.
"""

from __future__ import annotations

import copy
import inspect
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from safemodules.cli import main
from safemodules.linting.codes import CODES, TABLE

GOLDEN = Path(__file__).parent / "golden" / "lint"
NAMES = sorted(path.name.removesuffix(".in.py") for path in GOLDEN.glob("*.in.py"))
# Fixtures without a model, or whose original has no gradients to compare with.
NO_MODEL = {"SM001", "SM302", "SM303"}
WRITES_DATA = {"SM108", "SM110"}
# The unsafe edit changes what is computed: a skip reads the old values, a list keeps them, each
# recomputation sees its own loop variable, a tensor loses the graph that it had before `out=`.
CHANGED = {"SM106", "SM107", "SM109", "SM203"}
# The original raises in backward, as the finding tells.
CLASHES = {"SM101", "SM103", "SM105", "SM106"}
# Backward of elu_ computes from the result what that of elu computes from the input; gradients of a
# module that several reentrant regions call are added in another order. Equal but for a rounding
# of each element, and of its sums over 3 rows, 4 columns and 3 regions.
ROUNDED = {"SM104", "SM201"}


def lint(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(path.parent)
    main(["lint", path.name])
    return capsys.readouterr().out


def check(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def load(text: str, name: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def fixed(path: Path, folder: Path, *options: str) -> str:
    copied = folder / path.name
    shutil.copy(path, copied)
    main(["fix", *options, str(copied)])
    return copied.read_text(encoding="utf-8")


def test_every_code_has_a_golden_file() -> None:
    assert NAMES == sorted(CODES)


def test_no_code_is_used_twice() -> None:
    codes = [row.code for row in TABLE]
    assert len(set(codes)) == len(codes) and codes == sorted(codes)
    assert len({row.name for row in TABLE}) == len(TABLE)
    for row in TABLE:
        assert row.code[:3] in ("SM0", "SM1", "SM2", "SM3") and len(row.code) == 5


@pytest.mark.parametrize("name", NAMES)
def test_lint_prints_what_is_expected(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = lint(GOLDEN / f"{name}.in.py", capsys, monkeypatch)
    assert f" {name} " in text
    check(GOLDEN / f"{name}.txt", text)


@pytest.mark.parametrize("name", NAMES)
def test_fix_writes_what_is_expected_and_nothing_more_the_second_time(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = GOLDEN / f"{name}.in.py"
    once = fixed(source, tmp_path, "--unsafe-fixes")
    check(GOLDEN / f"{name}.out.py", once)
    main(["fix", "--unsafe-fixes", str(tmp_path / source.name)])
    assert (tmp_path / source.name).read_text(encoding="utf-8") == once
    assert once.count("\n") == source.read_text(encoding="utf-8").count("\n")


def run(module: ModuleType, *, gradients: bool) -> tuple[list[Tensor], list[Tensor | None]]:
    torch.manual_seed(0)
    net = module.Model().double()
    x = module.inputs().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        out = net(x.clone())
        results = list(out) if isinstance(out, tuple) else [out]
        if not gradients:
            return [*results, *net.buffers()], []
        parameters = [p for p in (x, *net.parameters()) if p.requires_grad]
        # not torch.autograd.grad, which reentrant checkpoints refuse
        torch.autograd.backward([value.sum() for value in results])
        return results, [p.grad for p in parameters]


def same(first: list[Tensor | None], second: list[Tensor | None]) -> bool:
    return len(first) == len(second) and all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("options", [(), ("--unsafe-fixes",)], ids=["safe", "unsafe"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in NO_MODEL])
def test_a_fixed_file_computes_the_same(
    name: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if options and name in CHANGED:
        pytest.skip("the unsafe edit is meant to change the function")
    source = GOLDEN / f"{name}.in.py"
    before = load(source.read_text(encoding="utf-8"), f"{name}_in")
    after = load(fixed(source, tmp_path, *options), f"{name}_out")
    if name not in WRITES_DATA:
        assert same(run(before, gradients=False)[0], run(after, gradients=False)[0])
    if name in CLASHES:
        with pytest.raises(RuntimeError, match="inplace operation"):
            run(before, gradients=True)
        return
    expected, found = run(before, gradients=True), run(after, gradients=True)
    assert same(expected[0], found[0])
    if options and name in ROUNDED:
        for a, b in zip(expected[1], found[1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-14)
    else:
        assert same(expected[1], found[1])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", [n for n in NAMES if n not in NO_MODEL | WRITES_DATA | {"SM107"}])
def test_a_fixed_file_passes_gradcheck(name: str) -> None:
    path = GOLDEN / f"{name}.out.py"
    module = load(path.read_text(encoding="utf-8"), name)
    torch.manual_seed(0)
    net = module.Model().double()

    def forward(x: Tensor) -> Tensor:
        # a copy each time: buffers are updated
        value: Tensor = copy.deepcopy(net)(x.clone())
        return value

    if name == "SM103":  # it has no edit, and raises in backward
        with pytest.raises(RuntimeError, match="inplace operation"):
            forward(module.inputs().requires_grad_()).backward()
        return
    assert torch.autograd.gradcheck(forward, module.inputs().requires_grad_())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.code)
def test_the_examples_of_the_table_are_found_before_and_not_after(
    row: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = row.code  # type: ignore[attr-defined]
    for text, expected in ((row.before, True), (row.after, False)):  # type: ignore[attr-defined]
        path = tmp_path / "example.py"
        path.write_text(in_context(code, text), encoding="utf-8")
        main(["lint", str(path)])
        printed = capsys.readouterr().out
        assert (f" {code} " in printed) is expected, printed
        assert expected or "SM001" not in printed


def in_context(code: str, text: str) -> str:
    head = (
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        "from torch.utils.checkpoint import checkpoint\nimport safemodules\n\n\n"
    )
    if code == "SM001":
        return text
    if code in ("SM302", "SM303"):
        return head + "def train(net, batches):\n" + indented(text, 4)
    init = "self.net = nn.Linear(4, 4)\n" + (text if code == "SM106" else "")
    body = "return self.net(x)" if code == "SM106" else text
    return (
        f"{head}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"{indented(init, 8)}\n    def forward(self, x):\n{indented(body, 8)}"
    )


def indented(text: str, width: int) -> str:
    return "".join(f"{' ' * width}{line}\n" for line in text.splitlines())


def test_models_of_the_fixtures_are_modules() -> None:
    for name in NAMES:
        if name not in NO_MODEL:
            module = load((GOLDEN / f"{name}.in.py").read_text(encoding="utf-8"), name)
            assert issubclass(module.Model, nn.Module) and inspect.isfunction(module.inputs)
