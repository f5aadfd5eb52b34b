/** What the model was told, with the chat's own marks set apart from what anybody wrote. */

import { h } from "./dom.js";

/** [{special, text}] of a turn's context, exact by its ids; null where their texts do not make up the stored text. */
export function contextParts(turn, vocabulary) {
  const parts = [];
  let whole = "";
  for (const id of turn.context_ids) {
    const token = vocabulary[id];
    if (!token) return null;
    whole += token.text;
    const last = parts.at(-1);
    if (last && last.special === Boolean(token.special)) last.text += token.special ? ` ${token.text}` : token.text;
    else parts.push({ special: Boolean(token.special), text: token.text });
  }
  return whole === turn.context && parts.some((part) => part.special) ? parts : null;
}

/** The context as elements; `room` is how many letters are shown at once, the latest ones: the rest is folded. */
export function contextElements(turn, vocabulary, room) {
  const parts = contextParts(turn, vocabulary) ?? [{ special: false, text: turn.context ?? "" }];
  const [early, late] = foldAt(parts, room);
  const letters = early.reduce((sum, part) => sum + part.text.length, 0);
  if (!letters) return late.map(element);
  const fold = h("details", { class: "earlier" }, h("summary", {}, `${letters} letters before this`));
  fold.addEventListener("toggle", () => fold.append(...early.map(element)), { once: true });
  return [fold, ...late.map(element)];
}

/** The parts that fit from the end, and those before; of a last text that alone is too long, its last lines. */
function foldAt(parts, room) {
  let start = parts.length;
  for (let letters = 0; start > 0 && letters + parts[start - 1].text.length <= room; start--)
    letters += parts[start - 1].text.length;
  const before = parts[start - 1];
  if (!before || parts.slice(start).some((part) => !part.special)) return [parts.slice(0, start), parts.slice(start)];
  const newline = before.text.indexOf("\n", before.text.length - room);
  const cut = newline < 0 || newline === before.text.length - 1 ? before.text.length - room : newline + 1;
  const [head, tail] = [before.text.slice(0, cut), before.text.slice(cut)].map((text) => ({ ...before, text }));
  return [
    [...parts.slice(0, start - 1), head],
    [tail, ...parts.slice(start)],
  ];
}

function element({ special, text }) {
  return special ? h("div", { class: "marks" }, text) : h("pre", { class: "text", dir: "auto" }, text);
}
