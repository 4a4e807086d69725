"""Bar charts of ratios as SVG: text and rectangles, readable on light and on dark ground."""

from __future__ import annotations

from collections.abc import Sequence
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
