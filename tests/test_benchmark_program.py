"""``python -m benchmarks``: its registry, what it reads from pages, and what it calls worse."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

program = pytest.importorskip("benchmarks.__main__", reason="runs in a checkout only")

from benchmarks import pages, registry, summary  # noqa: E402
from benchmarks.charts import bar_chart  # noqa: E402
from benchmarks.pages import PageRatio  # noqa: E402
from benchmarks.registry import Measure, Program  # noqa: E402
from benchmarks.regressions import regressions  # noqa: E402
from benchmarks.summary import Run  # noqa: E402

PAGE = """# A page

Command: `python -m benchmarks.tiny --rounds 3 --output somewhere.md`

Versions: python 3.12.1, torch 2.14.1; CPU.

## a case

| way | time | peak MB | exact |
| --- | --- | --- | --- |
| plain | 12.0 ms | 20.0 | yes |
| plain again | 1.010 ±0.020 | 20.0 | yes |
| ours | 1.100 ±0.050 | 25.0 | **no** |

| other | table |
| --- | --- |
| 1 | 2 |
"""
MEASURES = (
    Measure("time", ("way", "exact"), "time", own="ours"),
    Measure("peak MB", ("way",), "memory", base="plain", own="ours"),
)


def run(**changes):
    plain = Run("tiny", "A page", "python -m benchmarks.tiny", True, 0, 1.0, "a machine", {}, ())
    return replace(plain, ratios=tuple(pages.ratios(PAGE, MEASURES)), **changes)


def changed(name, **changes):
    ratios = [replace(r, **changes) if r.name == name else r for r in run().ratios]
    return replace(run(), ratios=tuple(ratios))


def test_every_program_in_the_folder_is_in_the_registry():
    runnable = {
        path.stem
        for path in registry.FOLDER.glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text("utf-8") and path.stem != "__main__"
    }
    registered = [entry.name for entry in registry.PROGRAMS]
    assert len(registered) == len(set(registered))
    assert set(registered) == runnable - set(registry.NOT_MEASURING)


@pytest.mark.parametrize("entry", registry.PROGRAMS, ids=lambda entry: entry.name)
def test_the_committed_page_holds_every_ratio_of_the_registry(entry: Program):
    assert entry.title.endswith(".")
    text = (registry.FOLDER / "results" / f"{entry.name}.md").read_text("utf-8")
    for measure in entry.measures:
        found = pages.ratios(text, [measure])
        assert found, measure
        names = [ratio.name for ratio in found]
        assert len(names) == len(set(names)), "a name stands for two ratios"


def test_ratios_are_read_with_their_heading_spread_and_base():
    assert pages.ratios(PAGE, MEASURES) == [
        PageRatio("a case / plain again / time", "time", 1.01, 0.02, own=False),
        PageRatio("a case / ours / time", "time", 1.1, 0.05),
        PageRatio("a case / plain again / peak", "memory", 1.0, own=False),
        PageRatio("a case / ours / peak", "memory", 1.25),
    ]


def test_a_column_can_be_divided_by_another():
    page = "| model | step | warm |\n| --- | --- | --- |\n| a | 0.5 | 0.1 |\n| b | 0 | 0.1 |\n"
    found = pages.ratios(page, [Measure("warm", ("model",), "time", over="step")])
    assert found == [PageRatio("a / warm", "time", 0.2)]


def test_command_and_versions_are_read_without_the_place_of_the_output():
    assert pages.command_of(PAGE) == "python -m benchmarks.tiny --rounds 3"
    assert pages.command_of("# nothing") == ""
    assert pages.versions_of(PAGE) == {"python": "3.12.1", "torch": "2.14.1"}


def test_a_run_is_no_regression_of_itself():
    assert list(regressions([run()], [run()], 0.0)) == []


@pytest.mark.parametrize(
    ("name", "value", "worse"),
    [
        ("a case / ours / time", 1.30, False),  # 1.1 * 1.1 + 0.05 + 0.05 is 1.31
        ("a case / ours / time", 1.32, True),
        ("a case / ours / time", 0.5, False),
        ("a case / ours / peak", 1.26, False),
        ("a case / ours / peak", 1.27, True),
        ("a case / plain again / time", 9.0, False),  # not ours
    ],
)
def test_a_ratio_of_ours_may_grow_by_the_tolerance_and_the_spreads(name, value, worse):
    found = list(regressions([run()], [changed(name, value=value)], 0.1))
    assert [f"{value:.3f} now" in str(one) for one in found] == ([True] if worse else [])


def test_a_ratio_that_is_gone_is_a_regression():
    found = list(regressions([run()], [run(), replace(run(), program="other")], 0.1))
    assert found == []
    (gone, _) = regressions([run()], [replace(run(), ratios=())], 0.1)
    assert "no such ratio any more" in str(gone)


@pytest.mark.parametrize(
    ("exact", "status", "fault"),
    [(True, 0, False), (True, 1, True), (False, 1, False), (False, 70, True), (True, None, False)],
)
def test_an_exit_status_is_a_fault_unless_it_depends_on_time(exact, status, fault):
    assert bool(list(regressions([run()], [run(exact=exact, status=status)], 0.1))) is fault
    assert program.failed(run(exact=exact, status=status)) is fault


def test_what_is_written_can_be_read_and_shows_commands_machine_and_versions(tmp_path: Path):
    runs = [run(versions={"torch": "2.14.1"}), replace(run(), program="no_ratios", ratios=())]
    summary.write(runs, tmp_path / "found.json", "A title")
    assert summary.read(tmp_path / "found.json") == runs
    page = (tmp_path / "found.md").read_text("utf-8")
    assert page.startswith("# A title\n")
    assert "Machine: a machine." in page and "torch 2.14.1" in page
    assert "`python -m benchmarks.tiny`" in page
    assert "| **a case / ours / time** | time | 1.100 | ±0.050 |" in page
    assert "![A page](found_tiny.svg)" in page
    assert {path.name for path in tmp_path.iterdir()} == {
        "found.json",
        "found.md",
        "found_tiny.svg",
    }


def test_a_file_of_another_format_is_refused(tmp_path: Path):
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="no summary of format"):
        summary.read(tmp_path / "other.json")


def test_a_chart_is_well_formed_and_has_a_bar_for_each_ratio():
    ratios = (*run().ratios, PageRatio("<b> & " + "long " * 30, "time", 0.5))
    root = ElementTree.fromstring(bar_chart("A < B", ratios))
    bars = [node for node in root.iter() if node.tag.endswith("rect")]
    widths = [float(bar.get("width", "nan")) for bar in bars]
    assert len(widths) == len(ratios)
    assert widths[1] / widths[0] == pytest.approx(1.1 / 1.01, rel=1e-2)
    assert root[0].text == "A < B"


def test_listing_shows_the_commands_and_runs_none(capsys, monkeypatch):
    monkeypatch.setattr(program, "run_program", lambda *_, **__: pytest.fail("something ran"))
    assert program.main(["--list", "--quick", "residual"]) == 0
    assert "python -m benchmarks.residual --rounds 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["no_such"], ["--quick", "lint"], ["--found", "x.json"], ["--collect", "--quick"]],
)
def test_wrong_use_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        program.main(arguments)
    assert stop.value.code == 2


def test_the_committed_pages_are_collected_without_a_run(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(program, "run_program", lambda *_, **__: pytest.fail("something ran"))
    path = tmp_path / "all.json"
    assert program.main(["--collect", "--output", str(path)]) == 0
    assert program.main(["--check", str(path), "--found", str(path)]) == 0
    assert len(summary.read(path)) == len(registry.PROGRAMS)


def test_the_check_fails_on_a_regression_and_writes_nothing(tmp_path: Path, capsys):
    summary.write([run()], tmp_path / "before.json", "Before")
    summary.write([changed("a case / ours / time", value=2.0)], tmp_path / "after.json", "After")
    files = sorted(tmp_path.iterdir())
    arguments = ["--check", str(tmp_path / "before.json"), "--found", str(tmp_path / "after.json")]
    assert program.main(arguments) == 1
    assert "1.100 before, 2.000 now, at most" in capsys.readouterr().out
    assert program.main([*arguments, "--tolerance", "1"]) == 0
    assert sorted(tmp_path.iterdir()) == files


def test_the_check_says_what_it_has_nothing_to_compare_with(tmp_path: Path, capsys):
    summary.write([run()], tmp_path / "before.json", "Before")
    summary.write([run(program="new")], tmp_path / "after.json", "After")
    arguments = ["--check", str(tmp_path / "before.json"), "--found", str(tmp_path / "after.json")]
    assert program.main(arguments) == 0
    assert "not in before.json, so not compared: new" in capsys.readouterr().out


def test_an_update_keeps_the_remark_and_the_other_programs_in_order(tmp_path, monkeypatch):
    def fake(entry, *, quick, timeout):
        return run(program=entry.name)

    monkeypatch.setattr(program, "run_program", fake)
    path = str(tmp_path / "found.json")
    for name, note in (("zoo", ["--note", "A remark."]), ("residual", [])):
        assert program.main(["--quick", "--update", "--output", path, *note, name]) == 0
    assert "\nA remark.\n" in Path(path).with_suffix(".md").read_text("utf-8")
    assert [one.program for one in summary.read(Path(path))] == ["residual", "zoo"]


def test_a_program_that_ends_without_its_page_has_crashed(monkeypatch):
    class Done:
        returncode = 1

    monkeypatch.setattr(program.subprocess, "run", lambda *_, **__: Done())
    entry = registry.chosen(["residual"], quick=True)[0]
    found = program.run_program(entry, quick=True, timeout=None)
    assert found.status == program.CRASHED and not found.ratios
    assert program.failed(found)


def test_a_run_reads_the_page_that_the_program_has_written(monkeypatch):
    class Done:
        returncode = 1  # over a limit of time

    def fake(command, **_):
        Path(command[command.index("--output") + 1]).write_text(PAGE)
        return Done()

    monkeypatch.setattr(program.subprocess, "run", fake)
    entry = replace(registry.chosen(["residual"], quick=True)[0], measures=MEASURES)
    found = program.run_program(entry, quick=True, timeout=None)
    assert found.ratios == run().ratios and found.versions["torch"] == "2.14.1"
    assert found.command == "python -m benchmarks.residual --rounds 2"
    assert not program.failed(found)


def test_committed_summaries_can_be_read():
    found = sorted((registry.FOLDER / "results").glob("summary*.json"))
    assert found
    for path in found:
        data = json.loads(path.read_text("utf-8"))
        assert [one.program for one in summary.read(path)] == [r["program"] for r in data["runs"]]
