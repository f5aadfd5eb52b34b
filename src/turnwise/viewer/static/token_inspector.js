/** The stored numbers of the token under the pointer or the focus. */

import { h, replace } from "./dom.js";
import { clickWord, short } from "./format.js";

const NUMBERS = [
  ["advantage", "advantage"],
  ["logprob", "log-prob. (sampler)"],
  ["learner_logprob", "log-prob. (learner)"],
  ["difference", "difference"],
  ["entropy", "entropy"],
  ["mask", "loss mask"],
];

export function inspector() {
  const element = h(
    "aside",
    { class: "inspector", "aria-live": "polite", "aria-label": "Token" },
    h("p", { class: "note" }, clickWord() === "Tap"
        ? "Tap a token to see its numbers."
        : "Point at a token, or press i and move with the arrow keys.",
    ),
  );
  return { element, show: (token) => replace(element, body(token)) };
}

function body(token) {
  const text = token.text === null ? h("span", { class: "faint" }, "text not recorded") : JSON.stringify(token.text);
  return [
    h("div", { class: "big" }, h("code", { dataset: { field: "text" } }, text)),
    table([
      ["id", token.id, "id"],
      ["type", token.kind === "context" ? "context (not sampled)" : "sampled", "kind"],
      token.special && ["special", "yes", "special"],
      token.span && ["part", token.span, "span"],
    ]),
    token.numbers && table(NUMBERS.map(([name, title]) => [title, token.numbers[name] ?? "not recorded", name])),
    token.numbers?.logprob !== null &&
      token.numbers &&
      table([["probability", short(Math.exp(Number(token.numbers.logprob))), "probability"]]),
    table([
      ["position", `turn ${token.turn}, token ${token.index}`, "position"],
      ["segment", token.segment, "segment"],
      ["policy version", token.version, "version"],
    ]),
  ];
}

function table(rows) {
  return h(
    "dl",
    {},
    rows
      .filter(Boolean)
      .map(([name, value, field]) => h("div", {}, h("dt", {}, name), h("dd", { dataset: { field } }, value))),
  );
}
