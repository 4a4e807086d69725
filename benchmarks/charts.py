"""Charts of ratios as SVG: text and simple shapes, readable on light and on dark ground."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.pages import PageRatio

WIDTH, LABEL, RIGHT = 860, 430, 110
ROW, TOP, BOTTOM = 20, 40, 24
SHOWN_LABEL = 66
COLOURS = {"time": "#4477aa", "memory": "#cc7733"}  # tell them apart without red and green
GREY = "#808080"
PALE = 0.35


def bar_chart(title: str, ratios: Sequence[PageRatio]) -> str:
    """One bar for each ratio, with its spread, and a line at 1.

    Args:
        title: The heading, also the description for those who do not see it.
        ratios: What to draw, at least one.
    """
    longest = max(1.2, *(ratio.value + ratio.spread for ratio in ratios))
    scale = (WIDTH - LABEL - RIGHT) / longest
    height = TOP + ROW * len(ratios) + BOTTOM
    one = LABEL + scale
    rows = [line for at, ratio in enumerate(ratios) for line in _bar(TOP + ROW * at, ratio, scale)]
    kinds = dict.fromkeys(ratio.kind for ratio in ratios)
    legend = "; ".join(f"{kind} over the base" for kind in kinds)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" font-family="sans-serif" '
            f'font-size="11" fill="{GREY}">',
            f"<title>{escape(title)}</title>",
            f'<text x="8" y="20" font-size="13">{escape(title)}</text>',
            *rows,
            f'<line x1="{one:.1f}" y1="{TOP - 6}" x2="{one:.1f}" y2="{height - BOTTOM}" '
            f'stroke="{GREY}" stroke-dasharray="3 3"/>',
            f'<text x="{one:.1f}" y="{height - 8}" text-anchor="middle">1</text>',
            f'<text x="8" y="{height - 8}">{escape(legend)}; less is better; '
            "pale: what safemodules is compared with</text>",
            "</svg>",
            "",
        ]
    )


def _bar(top: int, ratio: PageRatio, scale: float) -> list[str]:
    label = ratio.name
    if len(label) > SHOWN_LABEL:
        label = f"…{label[1 - SHOWN_LABEL :]}"
    end, middle = LABEL + scale * ratio.value, top + ROW / 2
    low, high = end - scale * ratio.spread, end + scale * ratio.spread
    lines = [
        f'<text x="{LABEL - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>',
        f'<rect x="{LABEL}" y="{top + 3}" width="{scale * ratio.value:.1f}" height="{ROW - 6}" '
        f'fill="{COLOURS[ratio.kind]}" fill-opacity="{1 if ratio.own else PALE}">'
        f"<title>{escape(ratio.name)}</title></rect>",
        f'<text x="{high + 6:.1f}" y="{middle + 4:.1f}">{ratio.value:.3f}</text>',
    ]
    if ratio.spread:
        lines.append(
            f'<line x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}" '
            f'stroke="{GREY}" stroke-width="2"/>'
        )
    return lines


PANEL, MARGIN = 260, 40
OWN, PEER = COLOURS["time"], COLOURS["memory"]


@dataclass(frozen=True)
class Point:
    """One way of running a step.

    Attributes:
        panel: What is run.
        name: How.
        x: Its peak memory, as a share of the plain step's.
        y: Its time, as a ratio to the plain step's.
        own: Whether it is safemodules' own.
    """

    panel: str
    name: str
    x: float
    y: float
    own: bool


def front_chart(title: str, points: Sequence[Point]) -> str:
    """A panel for each model, its own points joined by a line.

    Args:
        title: The heading, also the description for those who do not see it.
        points: What to draw, at least one.
    """
    panels = list(dict.fromkeys(point.panel for point in points))
    highest = max(point.y for point in points) + 0.05
    columns = 3
    height = 30 + -(-len(panels) // columns) * (PANEL + MARGIN) + 36
    body = [
        line
        for number, panel in enumerate(panels)
        for line in _panel(
            MARGIN + number % columns * (PANEL + MARGIN),
            40 + number // columns * (PANEL + MARGIN),
            [point for point in points if point.panel == panel],
            highest,
        )
    ]
    width = MARGIN + columns * (PANEL + MARGIN)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="sans-serif" '
            f'font-size="11" fill="{GREY}">',
            f"<title>{escape(title)}</title>",
            f'<text x="8" y="18" font-size="13">{escape(title)}</text>',
            *body,
            f'<text x="8" y="{height - 22}">across: peak of the activations, up: step time, both '
            "over the plain step's; lower and further left is better</text>",
            f'<text x="8" y="{height - 6}">line and dots: memory budgets; squares: checkpoints '
            "chosen by hand</text>",
            "</svg>",
            "",
        ]
    )


def _panel(left: int, top: int, points: Sequence[Point], highest: float) -> list[str]:
    def at(x: float, y: float) -> tuple[float, float]:
        return left + PANEL * x, top + PANEL * (highest - y) / (highest - 0.95)

    lines = [
        f'<text x="{left}" y="{top - 4}" font-size="12">{escape(points[0].panel)}</text>',
        f'<rect x="{left}" y="{top}" width="{PANEL}" height="{PANEL}" fill="none" '
        f'stroke="{GREY}" stroke-opacity="0.5"/>',
    ]
    for x in (0.25, 0.5, 0.75, 1.0):
        across, _ = at(x, 1)
        lines += [
            f'<line x1="{across}" y1="{top}" x2="{across}" y2="{top + PANEL}" stroke="{GREY}" '
            'stroke-opacity="0.25"/>',
            f'<text x="{across}" y="{top + PANEL + 14}" text-anchor="middle">{x:g}</text>',
        ]
    for step in range(10, int(10 * highest) + 1):
        _, up = at(0, step / 10)
        lines += [
            f'<line x1="{left}" y1="{up:.1f}" x2="{left + PANEL}" y2="{up:.1f}" stroke="{GREY}" '
            'stroke-opacity="0.25"/>',
            f'<text x="{left - 6}" y="{up + 4:.1f}" text-anchor="end">{step / 10:g}</text>',
        ]
    own = sorted((point for point in points if point.own), key=lambda point: point.x)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [at(p.x, p.y) for p in own] + [at(1, 1)])
    lines.append(f'<polyline points="{path}" fill="none" stroke="{OWN}" stroke-width="1.5"/>')
    for point in points:
        x, y = at(point.x, point.y)
        told = f"<title>{escape(f'{point.name}: {point.x:.2f}, {point.y:.3f}')}</title>"
        if point.own:
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{OWN}">{told}</circle>')
        else:
            lines.append(
                f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{PEER}">'
                f"{told}</rect>"
            )
    return lines
