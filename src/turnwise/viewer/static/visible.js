/** Visible marks for invisible characters: escapes, direction overrides, zero-width characters. */

const CONTROLS = (
  "NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI " +
  "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US"
).split(" ");
const NAMES = {
  0x7f: "DEL",
  0x61c: "ALM",
  0x200b: "ZWSP",
  0x200e: "LRM",
  0x200f: "RLM",
  0x2028: "LS",
  0x2029: "PS",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x2060: "WJ",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0xfeff: "BOM",
};

// Keeps newline, tab and the joiner U+200D, which emoji use. Replaces unpaired surrogates and tag characters.
const INVISIBLE = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]" +
    "|\\udb40[\\udc00-\\udc7f]|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]",
  "g",
);

function mark(character) {
  const code = character.codePointAt(0);
  return `⟦${CONTROLS[code] ?? NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`}⟧`;
}

/** Return the text with marks as one string. */
export function marked(text) {
  return text.replace(INVISIBLE, mark);
}

/** Return the text as nodes, with each mark in a span of its own. */
export function textNodes(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INVISIBLE)) {
    if (found.index > end) nodes.push(document.createTextNode(text.slice(end, found.index)));
    const span = document.createElement("span");
    span.className = "invisible";
    span.textContent = mark(found[0]);
    nodes.push(span);
    end = found.index + found[0].length;
  }
  if (end < text.length) nodes.push(document.createTextNode(text.slice(end)));
  return nodes;
}
