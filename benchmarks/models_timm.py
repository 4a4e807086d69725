"""timm: the smallest model of every file, and more until every module class is covered."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import timm
from torch import nn

from benchmarks.cases import DATA, Case, images


def cases() -> list[Case]:
    """One case for every row of the committed table (see ``benchmarks.choose_timm``)."""
    table = json.loads((DATA / "timm_models.json").read_text())
    return [_case(row) for row in table["models"]]


def _case(row: dict[str, Any]) -> Case:
    return Case(
        name=f"timm/{row['name']}",
        factory=partial(_build, row["name"], row["arguments"]),
        inputs=images(2, 3, row["side"], row["side"]),
        note=row["reason"],
    )


def _build(name: str, arguments: dict[str, Any]) -> nn.Module:
    model: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    return model
