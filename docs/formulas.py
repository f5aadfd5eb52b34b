"""Render the formulas of the built pages as MathML, which browsers show without a script or a network.

pymdownx.arithmatex marks `$x$` and `$$x$$` in a page as \\(x\\) and \\[x\\]; GitHub renders them in Markdown too.
"""

import re
from functools import partial
from html import unescape
from pathlib import Path

from math_core import LatexError, LatexToMathML

FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)
SCROLL = '<div style="overflow-x: auto">'
"""Around a formula of its own line: on a phone it may be wider than the page."""


def render_formulas(site: Path) -> None:
    """Replace the LaTeX in every page of a site. A formula that is not valid stops the build."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if "arithmatex" in text:
            page.write_text(FORMULA.sub(partial(to_mathml, page.name), text), encoding="utf-8")


def to_mathml(page: str, formula: re.Match[str]) -> str:
    """Return the MathML of one formula, inline or on a line of its own."""
    is_block, latex = formula["tag"] == "div", unescape(formula["latex"]).strip()
    try:
        mathml = LatexToMathML(fancy_error=False).convert_with_local_state(latex, displaystyle=is_block)
    except LatexError as error:
        raise SystemExit(f"{page}: {latex}: {error}. The site was not built: fix the formula.") from None
    return f"{SCROLL}{mathml}</div>" if is_block else mathml
