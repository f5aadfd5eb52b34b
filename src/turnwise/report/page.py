"""A page of HTML in one file: its look, and the parts that every report is made of. All text goes through `escaped`.

The page forbids itself scripts, fonts, frames and the network (its Content-Security-Policy), so that nothing in a
model's output can do anything, whatever it is.
"""

from collections.abc import Iterable, Sequence
from html import escape

from turnwise.report.formatting import show_invisible

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; --ink: #1d232a; --soft: #5c6670; --paper: #fbfbfa; --card: #ffffff; --edge: #dde1e5;
  --good: #0a6b47; --bad: #a03423; --mark: #b85a00; --quote: #f2f4f6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #98a2ac; --paper: #14181c; --card: #1b2026;
  --edge: #333b44; --good: #5cc79a; --bad: #f08b78; --mark: #f0a253; --quote: #232a31; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 64px; max-width: 1180px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif, "Noto Color Emoji"; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 2px; } h2 { font-size: 1.15rem; margin: 36px 0 10px; }
h3 { font-size: 1rem; margin: 0 0 4px; } .soft, th, dt { color: var(--soft); font-weight: 400; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0 0; padding: 0; }
.cards div { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 8px 14px; }
.cards dt { font-size: .82rem; } .cards dd { margin: 0; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(330px, 100%), 1fr)); gap: 12px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 8px; }
figure svg { display: block; width: 100%; height: auto; } figure.wide { max-width: 760px; margin-bottom: 12px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 18px 3px 0; vertical-align: top; white-space: nowrap; }
td.n, th.n { text-align: right; }
.keys td { white-space: pre-wrap; font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .86rem; }
ul.alarms { margin: 0; padding: 0 0 0 2px; list-style: none; }
.alarms li::before { content: "\\25B2  "; color: var(--mark); }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); }
summary:focus-visible { outline: 2px solid #4c8fd6; outline-offset: 3px; }
.episode { background: var(--card); border: 1px solid var(--edge); border-left: 5px solid var(--soft);
  border-radius: 8px; padding: 14px 16px; margin: 0 0 16px; }
.episode.won { border-left-color: var(--good); } .episode.lost { border-left: 5px dashed var(--bad); }
.won .status { color: var(--good); } .lost .status { color: var(--bad); } .status { font-weight: 600; }
.turns { margin-top: 10px; } .turn > * { min-width: 0; } .picture svg { display: block; max-width: 100%; height: auto; }
.brief { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(190px, 100%), 1fr)); gap: 18px; }
.brief .turn { display: flex; flex-direction: column; gap: 6px; } .brief .picture { max-width: 200px; }
.long .turn { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 6px 18px; padding: 12px 0;
  border-top: 1px solid var(--edge); } .long .picture { max-width: 300px; }
pre { margin: 4px 0; padding: 8px 10px; background: var(--quote); border-radius: 6px; white-space: pre-wrap;
  font: 13px/1.2 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, "Noto Sans Mono CJK SC", monospace,
  "Noto Color Emoji"; }
pre.said { border-left: 3px solid #4c8fd6; } .think { color: var(--soft); font-style: italic; }
@media (max-width: 640px) { body { padding: 14px 10px 40px; } .long .turn { grid-template-columns: minmax(0, 1fr); } }
@media print { details { display: none; } .episode { break-inside: avoid; } }
"""


def escaped(text: str, at_most: int | None = None) -> str:
    """Any text as text of the page: nothing in it is markup, and what would hide is seen."""
    kept = text if at_most is None else text[:at_most]
    more = f" … ({len(text) - len(kept):,} characters more)" if len(kept) < len(text) else ""
    return escape(show_invisible(kept), quote=True) + more


def page(title: str, subtitle: str, parts: Iterable[str]) -> str:
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>"
    )
    opening = f'<body><header><h1>{escaped(title)}</h1><div class="soft">{escaped(subtitle)}</div></header><main>'
    return "".join([head, opening, *parts, "</main></body></html>\n"])


def section(heading: str, *parts: str) -> str:
    return f"<section><h2>{escaped(heading)}</h2>{''.join(parts)}</section>"


def cards(pairs: Iterable[tuple[str, str]]) -> str:
    """The few numbers that come first."""
    listed = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="cards">{listed}</dl>'


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """The first column is text, the others are numbers; of `kind` "keys" all are text."""
    side = "" if kind == "keys" else ' class="n"'
    top = "".join(f"<th{side if place else ''}>{escaped(name)}</th>" for place, name in enumerate(headers))
    body = "".join(
        "<tr>" + "".join(f"<td{side if place else ''}>{escaped(cell)}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def folded(label: str, content: str) -> str:
    return f"<details><summary>{escaped(label)}</summary>{content}</details>"


def figure(svg: str, *, wide: bool = False) -> str:
    return f'<figure class="wide">{svg}</figure>' if wide else f"<figure>{svg}</figure>"


def settings_table(settings: Iterable[tuple[str, str]]) -> str:
    return table(("setting", "value"), settings, kind="keys")
