"""Choose the timm models of the zoo, and the smallest input each accepts.

The choice is the smallest model (by number of parameters, built on the meta device) of every
module file of timm, and then, smallest first, further models until every module class that
any timm model instantiates is in one of the chosen. The result is committed, so that the
choice stays fixed; to make it anew::

    python -m benchmarks.choose_timm
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import timm
import torch
from timm.models import is_model_in_modules, list_modules
from torch import nn

from benchmarks.cases import DATA, seed_everything

TABLE = DATA / "timm_models.json"
SIDES = (64, 96, 128, 160, 192, 224, 256)
# Larger models are built with fewer blocks.
LARGEST = 400e6
SHALLOW = {"depth": 4}


@dataclass(frozen=True)
class Member:
    """One timm model: its file, its size, the module classes in it."""

    name: str
    family: str
    parameters: int
    classes: frozenset[str]


@dataclass(frozen=True)
class Choice:
    """One row of the table: what to build and which image to feed."""

    name: str
    family: str
    parameters: int
    side: int
    arguments: dict[str, Any]
    reason: str


def survey() -> list[Member]:
    """Build every timm model on the meta device; smallest first."""
    files = list_modules()
    members = []
    for name in timm.list_models():
        if name.startswith("test_"):  # cut down for timm's own tests
            continue
        model = _build_on_meta(name)
        if model is not None:
            family = next(file for file in files if is_model_in_modules(name, [file]))
            classes = frozenset(
                f"{type(m).__module__}.{type(m).__qualname__}"
                for m in model.modules()
                if type(m).__module__.startswith("timm.")
            )
            parameters = sum(p.numel() for p in model.parameters())
            members.append(Member(name, family, parameters, classes))
        del model
        gc.collect()
    return sorted(members, key=lambda member: (member.parameters, member.name))


def _build_on_meta(name: str) -> nn.Module | None:
    for device in ("meta", "cpu"):
        try:
            with torch.device(device):
                model: nn.Module = timm.create_model(name, pretrained=False)
            return model
        except Exception as error:
            print(f"{name} on {device}: {type(error).__name__} {str(error)[:100]}", flush=True)
    return None


def choose(members: list[Member]) -> list[tuple[Member, str]]:
    """The smallest of each family, then what is needed to cover every class."""
    chosen: dict[str, tuple[Member, str]] = {}
    for member in members:
        if member.family not in {m.family for m, _ in chosen.values()}:
            chosen[member.name] = member, "smallest of its file"
    covered = frozenset[str]().union(*(m.classes for m, _ in chosen.values()))
    holders: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        for name in member.classes - covered:
            holders[name].append(member)
    for name in sorted(holders, key=lambda n: (holders[n][0].parameters, n)):
        if name not in covered:
            member = holders[name][0]
            chosen[member.name] = member, f"has {name.removeprefix('timm.')}"
            covered |= member.classes
    return [chosen[name] for name in sorted(chosen)]


def find_input(name: str, fixed: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The smallest side of an image that the model trains on, and the builder's arguments."""
    size = timm.get_pretrained_cfg(name, allow_unregistered=True)
    default = size.input_size[-1] if size else 224
    problems = []
    for side in sorted({*SIDES, default}):
        for arguments in (fixed, fixed | {"img_size": side}):
            try:
                seed_everything(0)
                model = timm.create_model(name, pretrained=False, **arguments)
                image = torch.randn(2, 3, side, side)
                model.train()(image)
                model.eval()(image)
            except Exception as error:
                problems.append(f"{side} {arguments}: {type(error).__name__} {str(error)[:80]}")
            else:
                return side, arguments
    raise RuntimeError("\n".join(problems))


def main() -> int:
    """Write the table; models of which no input is found are printed and left out."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    members = survey()
    rows = []
    for member, reason in choose(members):
        try:
            side, arguments = find_input(
                member.name, SHALLOW if member.parameters > LARGEST else {}
            )
        except RuntimeError as error:
            print(f"left out: {member.name}\n{error}", flush=True)
            continue
        rows.append(Choice(member.name, member.family, member.parameters, side, arguments, reason))
        print(f"{member.name:40} {member.parameters / 1e6:7.2f} M {side} {reason}", flush=True)
    table = {"timm": timm.__version__, "models": [asdict(row) for row in rows]}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
