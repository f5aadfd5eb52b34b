/** A trajectory as a conversation: context, message and outcome of each turn. */

import { imageAddress } from "./api.js";
import { h } from "./dom.js";
import { episodesText, mean, nameToken, short, signed, statusText } from "./format.js";

const CONTEXT_CHARACTERS = 900;
const HIDDEN_INFO = ["state", "messages", "by_hand"];
const TAG = /<(\/?)(think|answer|tool_call)>/g;

/** `onselect(index)`: called when the turn is selected; `options`: {vocabulary, maxCharacters} for `contextElements`,
    {run, missingImages} or {imageUrl} for its images, and `evaluation` for an episode that was not trained on. */
export function turnCard(turn, index, onselect, options = {}) {
  const head = h(
    "header",
    {},
    h(
      "button",
      {
        type: "button",
        class: "turn-number",
        title: "Show the state after this turn",
        onclick: () => onselect?.(index),
      },
      `Turn ${index + 1}`,
    ),
    turn.extends === false &&
      index > 0 &&
      h(
        "span",
        { class: "badge", title: "A new context starts here: the model no longer sees earlier turns" },
        "new segment",
      ),
    chips(turn, options),
  );
  return h(
    "article",
    { class: "turn", dataset: { turn: index } },
    head,
    context(turn, options),
    message(turn),
    outcome(turn),
  );
}

function chips(turn, { evaluation }) {
  const reward = turn.turn_reward ?? turn.reward ?? null;
  const advantage = mean(turn.advantages);
  return h(
    "span",
    { class: "chips" },
    reward !== null &&
      h("span", { class: `chip ${tone(reward)}`, title: "Reward of this turn" }, "reward ", h("b", {}, signed(reward))),
    !evaluation &&
      h(
        "span",
        { class: `chip ${advantage === null ? "" : tone(advantage)}`, title: "Mean advantage of its tokens" },
        "advantage ",
        h("b", {}, advantage === null ? "not trained" : signed(advantage)),
      ),
    h("span", { class: "chip" }, `${turn.action_ids.length} tokens`),
    turn.stop === "length" && h("span", { class: "chip bad" }, "cut at the token limit"),
    turn.stop === "string" && h("span", { class: "chip" }, "ended by a stop text"),
    turn.invalid && h("span", { class: "chip bad" }, "✗ invalid"),
  );
}

export function tone(value) {
  const number = Number(value);
  return number > 0 ? "good" : number < 0 ? "bad" : "";
}

/** The text that was appended before the model's message. */
export function context(turn, { vocabulary = {}, maxCharacters = CONTEXT_CHARACTERS, run, missingImages = [], imageUrl }) {
  return h(
    "div",
    { class: "speech context" },
    h("h4", {}, "context"),
    h(
      "div",
      { class: "context-text" },
      contextElements(turn, vocabulary, maxCharacters),
      images(turn, imageUrl ?? ((hash) => imageAddress(run, hash)), missingImages),
    ),
  );
}

/** The images in the context, in order. One whose file is missing or broken becomes a note. */
function images(turn, imageUrl, missing) {
  const spans = Array.isArray(turn.images) ? turn.images : [];
  if (!spans.length) return null;
  const elements = spans.map((span, index) => {
    const hash = String(span?.hash ?? "");
    const note = (problem) => h("span", { class: "note" }, `image ${hash.slice(0, 40)} ${problem}`);
    if (missing.includes(hash)) return note("is not in the run folder");
    const image = h("img", { src: imageUrl(hash), alt: `image ${index + 1} of the context`, title: hash });
    image.addEventListener("error", () => image.replaceWith(note("cannot be shown")));
    return image;
  });
  return h("div", { class: "context-images" }, elements);
}

function message(turn) {
  const { content, tool_calls: calls = [], parts: contentParts = [] } = turn.message;
  const numImages = contentParts.filter((part) => part.type === "image").length;
  const parts = messageParts(content).map(({ kind, text }) =>
    h(
      "span",
      { class: `part ${kind}`, title: kind === "think" ? "thinking" : kind === "answer" ? "answer" : null },
      text,
    ),
  );
  return h(
    "div",
    { class: "speech model" },
    h("h4", {}, turn.info?.by_hand ? "you" : "model"),
    h("pre", { class: "text", dir: "auto" }, parts.length ? parts : h("span", { class: "faint" }, "(empty message)")),
    calls.map((call) => h("pre", { class: "text call" }, h("b", {}, call.name), ` ${call.arguments}`)),
    numImages > 0 && h("p", { class: "note" }, `${numImages} images`),
  );
}

/** The environment's info, e.g. the actions that it parsed; long values are cut. */
function outcome(turn) {
  const entries = Object.entries(turn.info ?? {}).filter(([name]) => !HIDDEN_INFO.includes(name));
  if (!entries.length) return null;
  const items = entries.map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return h("span", { class: "info" }, h("i", {}, name), " ", text.length > 160 ? `${text.slice(0, 160)}…` : text);
  });
  return h("footer", {}, items);
}

/** Facts about a trajectory, one per line. */
export function facts(row) {
  const rewards = Object.entries(row.rewards ?? {})
    .map(([name, value]) => `${name} ${signed(value)}`)
    .join(", ");
  const pairs = [
    ["status", statusBadge(row.status)],
    ["reward", h("b", { class: tone(row.reward) }, signed(row.reward))],
    ["rewards", rewards],
    ["episode of", row.evaluation && episodesText(row.evaluation)],
    ["step", row.step],
    [row.evaluation ? "task" : "group", row.group],
    ["member", row.evaluation ? null : row.member],
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

const STATUS_SIGNS = { succeeded: "✓", failed: "✗" };

export function statusBadge(status) {
  const kind = status === "succeeded" ? "good" : status === "failed" ? "bad" : "";
  return h(
    "span",
    { class: `state ${kind}` },
    h("i", { "aria-hidden": "true" }, STATUS_SIGNS[status] ?? "…"),
    ` ${statusText(status)}`,
  );
}

/** Split a turn's context into [{special, text}] by its token ids; null if the tokens do not give the stored text.
    The tokens of an image are one part, which stands for the text that its chat template writes. */
function contextParts(turn, vocabulary) {
  const parts = [];
  const texts = [""];
  for (const [position, id] of turn.context_ids.entries()) {
    const token = nameToken(id, vocabulary);
    if (!token) return null;
    if (id >= 0) texts[texts.length - 1] += token.text;
    else if (turn.context_ids[position - 1] < 0) continue;
    else texts.push("");
    const last = parts.at(-1);
    if (last && last.special === Boolean(token.special)) last.text += token.special ? ` ${token.text}` : token.text;
    else parts.push({ special: Boolean(token.special), text: token.text });
  }
  return areTexts(turn.context, texts) && parts.some((part) => part.special) ? parts : null;
}

/** Whether the text is these texts, in order, with anything between two of them. */
function areTexts(text, [first, ...rest]) {
  if (rest.length === 0) return text === first;
  let end = String(text).startsWith(first) ? first.length : -1;
  for (const each of rest) {
    const start = end < 0 ? -1 : text.indexOf(each, end);
    end = start < 0 ? -1 : start + each.length;
  }
  return end >= 0 && text.endsWith(rest.at(-1));
}

/** Return the context as elements. Only its last `maxCharacters` are shown, the rest is folded. */
function contextElements(turn, vocabulary, maxCharacters) {
  const parts = contextParts(turn, vocabulary) ?? [{ special: false, text: turn.context ?? "" }];
  const [early, late] = foldAt(parts, maxCharacters);
  const characters = early.reduce((sum, part) => sum + part.text.length, 0);
  if (!characters) return late.map(partElement);
  const fold = h("details", { class: "earlier" }, h("summary", {}, `${characters} earlier characters`));
  fold.addEventListener("toggle", () => fold.append(...early.map(partElement)), { once: true });
  return [fold, ...late.map(partElement)];
}

/** Split the parts into folded and shown ones; of a last text that is too long by itself, show the last lines. */
function foldAt(parts, maxCharacters) {
  let start = parts.length;
  for (let length = 0; start > 0 && length + parts[start - 1].text.length <= maxCharacters; start--)
    length += parts[start - 1].text.length;
  const before = parts[start - 1];
  if (!before || parts.slice(start).some((part) => !part.special)) return [parts.slice(0, start), parts.slice(start)];
  const newline = before.text.indexOf("\n", before.text.length - maxCharacters);
  const cut = newline < 0 || newline === before.text.length - 1 ? before.text.length - maxCharacters : newline + 1;
  const [head, tail] = [before.text.slice(0, cut), before.text.slice(cut)].map((text) => ({ ...before, text }));
  return [
    [...parts.slice(0, start - 1), head],
    [tail, ...parts.slice(start)],
  ];
}

function partElement({ special, text }) {
  return special ? h("div", { class: "marks" }, text) : h("pre", { class: "text", dir: "auto" }, text);
}

/** Split a message into [{kind: "think" | "answer" | "tool_call" | "plain" | "tag", text}] by its tags. */
function messageParts(content) {
  const parts = [];
  const add = (kind, text) => text && parts.push({ kind, text });
  let inside = startsThinking(content) ? "think" : "plain";
  let done = 0;
  for (const found of content.matchAll(TAG)) {
    add(inside, content.slice(done, found.index));
    add("tag", found[0]);
    done = found.index + found[0].length;
    inside = found[1] ? "plain" : found[2];
  }
  add(inside, content.slice(done));
  return parts;
}

/** If the prompt ended with <think>, the message closes a tag that it did not open. */
function startsThinking(content) {
  const close = content.indexOf("</think>");
  return close >= 0 && !content.slice(0, close).includes("<think>");
}
