"""Memory as pictures: a timeline of a step, and one self-contained page."""

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from safemodules.memory.text import size_text

if TYPE_CHECKING:  # the data renders itself by these functions
    from safemodules.memory.plans import CheckpointPlan
    from safemodules.memory.profile import MemoryProfile

__all__ = ["document", "plan_fragment", "profile_fragment", "timeline"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 920, 260, 76, 12, 30
_POINTS: Final = 460
_STYLE: Final = """
:root { color-scheme: light dark }
.sm-memory { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem }
.sm-memory h1 { font-size: 1.5rem } .sm-memory h2 { font-size: 1.15rem; margin: 1.6rem 0 .5rem }
.sm-memory svg { width: 100%; height: auto; font: 12px system-ui, sans-serif }
.sm-memory .wide { overflow-x: auto }
.sm-memory table { border-collapse: collapse; width: 100%; font-size: 14px }
.sm-memory th, .sm-memory td { text-align: right; padding: .25rem .6rem; white-space: nowrap;
  border-bottom: 1px solid #8884 }
.sm-memory th:first-child, .sm-memory td:first-child { text-align: left }
.sm-memory td.name { font-family: ui-monospace, Menlo, Consolas, monospace }
.sm-memory i.bar { display: inline-block; height: .7em; background: #3b7dd8; border-radius: 2px }
"""
_BEFORE, _AFTER = "#9aa3ad", "#3b7dd8"


def timeline(
    curves: Sequence[tuple[str, Sequence[int], str]], forward: int, budget: int | None = None
) -> str:
    """Memory over a step as an SVG picture.

    Args:
        curves: their names, bytes by event, and colours.
        forward: number of events of the forward; the backward begins there.
        budget: bytes, drawn as a line.
    """
    count = max(len(live) for _, live, _ in curves)
    top = max(max(live, default=0) for _, live, _ in curves) or 1

    def x(event: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 8) * event / max(count, 1)

    def y(amount: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * amount / (1.08 * top)

    names = ", ".join(name for name, _, _ in curves)
    parts = [
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='Memory over one step: "
        f"{html.escape(names)}'>"
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        level = y(share * top)
        parts.append(
            f"<line x1='{_LEFT}' x2='{_WIDTH - 8}' y1='{level:.1f}' y2='{level:.1f}' "
            f"stroke='#8884'/><text x='{_LEFT - 8}' y='{level + 4:.1f}' text-anchor='end' "
            f"fill='currentColor'>{size_text(int(share * top))}</text>"
        )
    for _, live, colour in curves:
        points = " ".join(f"{x(event):.1f},{y(amount):.1f}" for event, amount in _thinned(live))
        parts.append(
            f"<polygon points='{x(0):.1f},{y(0):.1f} {points} {x(len(live)):.1f},{y(0):.1f}' "
            f"fill='{colour}' fill-opacity='.25' stroke='{colour}' stroke-width='1.5'/>"
        )
    if budget is not None:
        level = y(min(budget, 1.08 * top))
        parts.append(
            f"<line x1='{_LEFT}' x2='{_WIDTH - 8}' y1='{level:.1f}' y2='{level:.1f}' "
            f"stroke='#c0392b' stroke-dasharray='5 4'/><text x='{_LEFT + 6}' y='{level - 5:.1f}' "
            f"fill='#c0392b'>budget {size_text(budget)}</text>"
        )
    turn, base = x(forward), _HEIGHT - _BOTTOM
    parts.append(
        f"<line x1='{turn:.1f}' x2='{turn:.1f}' y1='{_TOP}' y2='{base}' stroke='#8888'/>"
        f"<text x='{turn - 6:.1f}' y='{base + 18}' text-anchor='end' fill='currentColor'>forward"
        f"</text><text x='{turn + 6:.1f}' y='{base + 18}' fill='currentColor'>backward</text>"
    )
    for place, (name, _, colour) in enumerate(curves):
        left = _WIDTH - 150 * (len(curves) - place)
        parts.append(
            f"<rect x='{left}' y='{base + 9}' width='12' height='10' fill='{colour}'/>"
            f"<text x='{left + 17}' y='{base + 18}' fill='currentColor'>{html.escape(name)}</text>"
        )
    return "".join(parts) + "</svg>"


def _thinned(live: Sequence[int]) -> Iterable[tuple[int, int]]:
    """At most so many points; of each group the largest, so that no peak is lost."""
    step = max(1, len(live) // _POINTS)
    for start in range(0, len(live), step):
        group = live[start : start + step]
        most = max(range(len(group)), key=group.__getitem__)
        yield start + most, group[most]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><td class='name'>{row[0]}</td>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    return f"<div class='wide'><table><tr>{cells}</tr>{body}</table></div>"


def plan_fragment(plan: "CheckpointPlan") -> str:
    """A plan, as a notebook shows it."""
    curves = [
        ("as it was", plan.live_before, _BEFORE),
        ("with the budget", plan.live, _AFTER),
    ]
    rows = [
        (
            html.escape(module or "(the model itself)"),
            size_text(sum(result.size for result in results)),
            f"{1000 * sum(result.seconds for result in results):.2f} ms",
            html.escape(", ".join(dict.fromkeys(result.operator for result in results))),
        )
        for module, results in plan.by_module().items()
    ]
    table = _table(("module", "forgotten", "computed again", "operators"), rows) if rows else ""
    return (
        f"<style>{_STYLE}</style><div class='sm-memory'><p>{html.escape(plan.summary())}</p>"
        f"{timeline(curves, plan.forward_events, plan.budget)}{table}</div>"
    )


def profile_fragment(profile: "MemoryProfile") -> str:
    """A profile, as a notebook shows it."""
    most = max((module.saved_bytes for module in profile.modules), default=0) or 1
    rows = []
    for module in profile.modules:
        calls, saved, *rest = module.cells()
        bar = f"<i class='bar' style='width: {6 * module.saved_bytes / most:.2f}em'></i> "
        name = "&nbsp;" * 2 * module.depth + html.escape(module.name)
        rows.append((name, calls, bar + saved, *rest))
    head = ("module", "calls", "saved", "share", "inputs", "outputs", "peak inside", "forward")
    return (
        f"<style>{_STYLE}</style><div class='sm-memory'><p>{html.escape(profile.summary())}</p>"
        f"{timeline([('one step', profile.live, _AFTER)], profile.forward_events)}"
        f"{_table((*head, 'GFLOP'), rows)}</div>"
    )


def document(title: str, fragments: Iterable[str]) -> str:
    """A whole page that needs no other file.

    Args:
        title: its title.
        fragments: its parts.
    """
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title></head><body style='margin: 2rem'>"
        f"<div class='sm-memory'><h1>{html.escape(title)}</h1></div>{''.join(fragments)}"
        "</body></html>\n"
    )
