"""Formulas as MathML, which browsers show without a script from elsewhere."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def _show(translator: Any, node: nodes.Element) -> None:
    is_block = isinstance(node, nodes.math_block)
    translator.body.append(tex2mathml(node.astext(), as_block=is_block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the way to show formulas."""
    app.add_html_math_renderer("mathml", (_show, None), (_show, None))
    return {"parallel_read_safe": True}
