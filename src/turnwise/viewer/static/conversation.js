/** A trajectory as a conversation: what the model was told, what it said, what came of it. */

import { contextElements } from "./context_parts.js";
import { h } from "./dom.js";
import { mean, short, signed } from "./format.js";
import { messageParts } from "./message_parts.js";

const ROOM = 900;

/** `shown(number)` is called when the turn is chosen; `look`: {vocabulary, room}, see `contextElements`. */
export function turnCard(turn, index, shown, look = {}) {
  const head = h(
    "header",
    {},
    h(
      "button",
      { type: "button", class: "turn-number", title: "Show the state after this turn", onclick: () => shown?.(index) },
      `Turn ${index + 1}`,
    ),
    turn.extends === false &&
      index > 0 &&
      h(
        "span",
        { class: "badge", title: "A new context starts here: earlier turns are no longer seen" },
        "new segment",
      ),
    chips(turn),
  );
  return h(
    "article",
    { class: "turn", dataset: { turn: index } },
    head,
    context(turn, look),
    message(turn),
    outcome(turn),
  );
}

function chips(turn) {
  const reward = turn.turn_reward ?? turn.reward;
  const advantage = mean(turn.advantages);
  return h(
    "span",
    { class: "chips" },
    h("span", { class: `chip ${tone(reward)}`, title: "reward of this turn" }, "reward ", h("b", {}, signed(reward))),
    h(
      "span",
      { class: `chip ${advantage === null ? "" : tone(advantage)}`, title: "mean advantage of its tokens" },
      "advantage ",
      h("b", {}, advantage === null ? "not trained" : signed(advantage)),
    ),
    h("span", { class: "chip" }, `${turn.action_ids.length} tokens`),
    turn.stop !== "eos" && h("span", { class: "chip" }, `stop: ${turn.stop}`),
    turn.invalid && h("span", { class: "chip bad" }, "✗ invalid"),
  );
}

export function tone(value) {
  const number = Number(value);
  return number > 0 ? "good" : number < 0 ? "bad" : "";
}

/** What was appended before the model spoke. */
function context(turn, { vocabulary = {}, room = ROOM }) {
  return h(
    "div",
    { class: "said context" },
    h("h4", {}, "context"),
    h("div", { class: "told" }, contextElements(turn, vocabulary, room)),
  );
}

function message(turn) {
  const { content, tool_calls: calls = [], parts: contentParts = [] } = turn.message;
  const images = contentParts.filter((part) => part.type === "image");
  const parts = messageParts(content).map(({ kind, text }) =>
    h(
      "span",
      { class: `part ${kind}`, title: kind === "think" ? "thinking" : kind === "answer" ? "answer" : null },
      text,
    ),
  );
  return h(
    "div",
    { class: "said model" },
    h("h4", {}, "model"),
    h("pre", { class: "text", dir: "auto" }, parts.length ? parts : h("span", { class: "faint" }, "(said nothing)")),
    calls.map((call) => h("pre", { class: "text call" }, h("b", {}, call.name), ` ${call.arguments}`)),
    images.length > 0 && h("p", { class: "note" }, `${images.length} images`),
  );
}

/** What the environment noted: the actions it read, and whatever else is short. */
function outcome(turn) {
  const entries = Object.entries(turn.info ?? {}).filter(([name]) => name !== "state" && name !== "messages");
  if (!entries.length) return null;
  const items = entries.map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return h("span", { class: "info" }, h("i", {}, name), " ", text.length > 160 ? `${text.slice(0, 160)}…` : text);
  });
  return h("footer", {}, items);
}

/** What is known of a trajectory, in one line each. */
export function facts(row) {
  const rewards = Object.entries(row.rewards ?? {})
    .map(([name, value]) => `${name} ${signed(value)}`)
    .join(", ");
  const pairs = [
    ["status", statusBadge(row.status)],
    ["reward", h("b", { class: tone(row.reward) }, signed(row.reward))],
    ["rewards", rewards],
    ["step", row.step],
    ["group", row.group],
    ["member", row.member],
    ["environment", row.task?.env],
    ["seed", row.task?.seed],
    ["split", row.task?.split],
    ["turns", row.turns.length],
    ["tokens", row.tokens],
    ["time", row.timings?.wall_s === undefined ? null : `${short(row.timings.wall_s)} s`],
  ];
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

const STATUS_SIGNS = { succeeded: "✓", failed: "✗", env_error: "⚠", infra_error: "⚠" };

export function statusBadge(status) {
  const kind = status === "succeeded" ? "good" : status === "failed" ? "bad" : "";
  return h(
    "span",
    { class: `state ${kind}` },
    h("i", { "aria-hidden": "true" }, STATUS_SIGNS[status] ?? "…"),
    ` ${String(status).replaceAll("_", " ")}`,
  );
}
