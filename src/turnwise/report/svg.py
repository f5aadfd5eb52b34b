"""The parts of a drawing: self-contained SVG as text, in colours that read on light and on dark pages."""

from xml.sax.saxutils import escape

INK, GRID = "#7f8790", "#7f879040"
BLUE, ORANGE = "#4c8fd6", "#e0722a"


def opening(title: str, width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(printable(title), {chr(34): "&quot;"})}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-width="{width}" stroke-linecap="round"/>'
    )


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    size: int = 13,
    weight: str = "400",
    fill: str = INK,
    turned: bool = False,
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{fill}"{turn}>{escape(printable(content))}</text>'
    )


def printable(content: str) -> str:
    """XML has no place for control characters, escaped or not."""
    return "".join(letter if letter.isprintable() else " " for letter in content)
