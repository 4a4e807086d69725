"""The scripts under examples/ run, and what they compare is equal."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
# Run by torchrun, in tests/test_distributed.py.
LAUNCHED = {"train_distributed.py"}

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="runs in a checkout only")


@pytest.mark.parametrize(
    "path",
    [path for path in SCRIPTS if path.name not in LAUNCHED],
    ids=lambda path: path.stem,
)
def test_an_example_trains_to_the_same_parameters(path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}`" in listed for path in SCRIPTS)
