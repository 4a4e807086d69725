"""A plan shows what a conversion does, and touches nothing."""

import copy
import json
import pickle
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import cases
import pytest
import torch
from torch import nn

import safemodules as sm

CASES = sorted(cases.BUILDERS)


def everything(model: nn.Module):
    """All that a plan must leave: classes, attributes, versions, gradients, flags, streams."""
    tensors = [*model.parameters(), *model.buffers()]
    return (
        [
            (n, type(m), m.training, {k: id(v) for k, v in vars(m).items()})
            for n, m in model.named_modules()
        ],
        [(id(t), t._version, id(t.grad), t.requires_grad) for t in tensors],
        [t.detach().clone().tolist() for t in tensors],
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_touched(name):
    model = cases.build(name)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    next(model.children()).eval()
    x = cases.example().requires_grad_()
    given = x.detach().clone()
    before, version = everything(model), x._version
    sm.plan_conversion(model)
    sm.plan_conversion(model, x)
    after = everything(model)
    assert after[0] == before[0]
    assert [t[2:] + t[:1] for t in after[1]] == [t[2:] + t[:1] for t in before[1]]
    assert after[2:] == before[2:]
    for now, then in zip(after[1], before[1], strict=True):
        if now[3]:  # buffers that a run writes are put back, which counts as a write
            assert now == then
    assert x._version == version
    assert torch.equal(x, given)
    assert x.grad is None


def test_sites_name_every_module_that_runs_them():
    plan = sm.plan_conversion(cases.build("shared"), cases.example())
    by_op = {site.site.op: site for site in plan.sites}
    assert set(by_op["iadd"].modules) == {"first", "second", "rest.0", "rest.1"}
    flags = [site for site in plan.sites if site.site.kind is sm.SiteKind.MODULE_FLAG]
    assert [set(flag.modules) for flag in flags] == [
        {"first.act", "second.act", "rest.1.act"},
        {"rest.0.act"},
    ]


def test_sites_in_plain_functions_name_the_modules_that_call_them():
    model = nn.Sequential(cases.Helpers(), nn.Identity(), cases.Helpers())
    plan = sm.plan_conversion(model, cases.example())
    assert len(plan.sites) == 4
    assert {site.modules for site in plan.sites} == {("0", "2")}
    files = {Path(site.site.filename).name for site in plan.sites}
    assert files == {"cases.py", "cases_helpers.py"}


def test_sites_say_where_they_are():
    (site, flag) = sorted(
        sm.plan_conversion(cases.build("residual"), cases.example()).sites,
        key=lambda planned: str(planned.site.kind),
    )
    assert (site.site.source, site.site.op, site.site.module) == ("y += x", "iadd", "")
    lines = Path(cases.__file__).read_text().splitlines()
    assert lines[site.site.lineno - 1].strip() == "y += x"
    assert flag.site.module == "act"
    assert flag.site.op == "relu_"


def test_the_table_says_it_all():
    text = str(sm.plan_conversion(cases.build("residual"), cases.example()))
    assert "2 in-place sites: 2 swapped for out-of-place ones, 0 kept as they are" in text
    assert re.search(r"swap +act +module flag +ReLU\(inplace=True\)", text)
    assert re.search(r"swap +\(the model itself\) +tests/cases.py:\d+ +augmented assignment", text)
    assert "compared with the original" in text


_NAMESPACE = {}
exec("def without_source(tensor):\n    return tensor", _NAMESPACE)
without_source = _NAMESPACE["without_source"]


class HandsOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        h = self.lin(x)
        y = without_source(h)
        h += 1
        return h + y


def test_what_is_undecided_is_listed_with_what_to_do():
    model = HandsOn()
    plan = sm.plan_conversion(model)
    (site,) = plan.sites
    assert site.decision == "keep"
    assert site.reason.startswith("not decided")
    assert "example_inputs may decide it" in site.reason
    assert plan.equivalence is None
    with pytest.warns(sm.ConversionWarning, match=r"(?s)example_inputs would decide.*h \+= 1"):
        plan.apply()


def patched(before: str, diff: str) -> str:
    """Apply one file's unified diff by hand."""
    lines, out, position = before.splitlines(keepends=True), [], 0
    for hunk in re.split(r"(?m)^@@ ", diff)[1:]:
        head, *body = hunk.splitlines(keepends=True)
        start = int(re.match(r"-(\d+)", head)[1]) - 1
        out += lines[position:start]
        position = start
        for line in body:
            if line.startswith((" ", "-")):
                assert lines[position] == line[1:]
                position += 1
            if line.startswith((" ", "+")):
                out.append(line[1:])
    return "".join(out + lines[position:])


@pytest.mark.parametrize("name", ["child", "decorated", "private", "residual"])
def test_the_diff_applies_as_a_patch(name):
    plan = sm.plan_conversion(cases.build(name), cases.example())
    diff, path = plan.diff(), cases.__file__
    assert diff.startswith(f"--- a/{path.lstrip('/')}\n+++ b/{path.lstrip('/')}\n@@")
    before = Path(path).read_text()
    after = patched(before, diff)
    assert after != before
    assert after.count("\n") == before.count("\n")
    compile(after, path, "exec")
    model = plan.apply()
    (file,) = type(model)._safemodules_rewriting.files.values()
    assert after == file.text


def test_the_diff_of_flags_alone_is_empty():
    assert sm.plan_conversion(cases.build("flags"), cases.example()).diff() == ""


@pytest.mark.parametrize("name", CASES)
def test_json_round_trips(name):
    plan = sm.plan_conversion(cases.build(name), cases.example())
    data = json.loads(plan.to_json())
    assert set(data) == {"sites", "skipped", "equivalence", "memory", "diff", "copies", "regions"}
    assert len(data["sites"]) == len(plan.sites)
    for entry, planned in zip(data["sites"], plan.sites, strict=True):
        assert entry["decision"] == planned.decision
        assert entry["reason"] == planned.reason
        assert tuple(entry["modules"]) == planned.modules
        assert entry["site"] == {**vars(planned.site), "kind": str(planned.site.kind)}
    assert data["diff"] == plan.diff()
    assert data["equivalence"] is not None
    assert json.loads(json.dumps(data)) == data


@pytest.mark.parametrize("name", ["residual", "helpers", "nothing"])
def test_html_is_well_formed_and_escaped(name):
    model = nn.Sequential(nn.Linear(4, 4)) if name == "nothing" else cases.build(name)
    plan = sm.plan_conversion(model, cases.example())
    tree = ElementTree.fromstring(f"<div>{plan._repr_html_()}</div>")
    rows = tree.findall("table/tr")
    assert len(rows) == (len(plan.sites) + 1 if plan.sites else 0)
    for row, planned in zip(rows[1:], plan.sites, strict=False):
        assert row[0].text == planned.decision
        assert row[4].text == planned.site.source
    assert "compared with the original" in tree.findtext("pre")


def test_apply_converts_the_model_and_returns_it():
    model = cases.build("residual")
    plan = sm.plan_conversion(model, cases.example())
    assert plan.model is model
    assert plan.apply() is model
    assert sm.is_converted(model)
    assert plan.apply() is model  # again: nothing to do
    sm.revert_model(model)
    assert plan.apply() is model
    model(cases.example()).sum().backward()


def test_the_plan_of_a_converted_model_is_kept_in_copies_and_pickles():
    model = cases.build("helpers")
    plan = sm.plan_conversion(model, cases.example())
    plan.apply()
    copies = [model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for each in copies:
        found = sm.conversion_plan(each)
        assert found.model is each
        assert found.sites == plan.sites
        assert found.diff() == plan.diff()
        assert str(found) == str(plan)
        with pytest.raises(sm.ConversionError, match="made already"):
            found.apply()


def test_a_plan_of_a_converted_model_says_so():
    model = sm.convert_model(cases.build("residual"), cases.example())
    plan = sm.plan_conversion(model, cases.example())
    assert {(s.decision, s.reason) for s in plan.sites} == {("swap", "converted already")}


def test_the_plan_of_parts_that_were_converted_one_by_one():
    model = cases.build("container")
    for name in ("0", "2"):
        sm.convert_model(model[int(name)], cases.example())
    found = sm.conversion_plan(model)
    assert {path for site in found.sites for path in site.modules} == {"0", "0.act", "2", "2.act"}
    with pytest.raises(sm.ConversionError, match="was not converted"):
        sm.conversion_plan(model[1])
    whole = sm.convert_model(cases.build("container"), cases.example())
    with pytest.raises(sm.ConversionError, match="a part of another model"):
        sm.conversion_plan(whole[0])


def test_a_plan_that_is_out_of_date_is_refused_or_harmless():
    model = cases.build("container")
    plan = sm.plan_conversion(model, cases.example())
    model[1] = nn.Identity()
    with pytest.raises(sm.ConversionError, match="changed since"):
        plan.apply()
    assert not sm.is_converted(model)


def test_progress_is_reported():
    seen = []
    sm.plan_conversion(
        cases.build("residual"), cases.example(), progress=lambda *step: seen.append(step)
    )
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert all(text and done <= total for text, done, total in seen)
