"""Render formulas as MathML, which browsers display without scripts, fonts or network."""

import html
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

# LaTeX that docutils does not support, and equivalents that it does.
SPELLINGS = {
    r"\\dots\b": r"\\ldots",
    r"\\[Bb]ig(?=/)": "",
    r"(\\hat\s*\w)_": r"{\1{}}_",  # otherwise the index is placed below the letter
    r"\\([td]?frac)(\d)": r"\\\1{\2}",
    r"\\([td]?frac\{\d\})(\d)": r"\\\1{\2}",
}


def to_mathml(latex: str, block: bool = False) -> str:
    """Convert a formula; raise a `MathError` if docutils does not support it."""
    for pattern, spelling in SPELLINGS.items():
        latex = re.sub(pattern, spelling, latex)
    return tex2mathml(latex, as_block=block)


def _render(node: nodes.Element, block: bool) -> str:
    try:
        return to_mathml(node.astext(), block)
    except MathError as error:
        message = "%s in the formula %r: see docs/_ext/mathml.py"
        logging.getLogger(__name__).warning(message, error, node.astext(), location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def _visit_inline(self, node: nodes.math) -> None:
    self.body.append(_render(node, block=False))
    raise nodes.SkipNode


def _visit_block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_render(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
