/** Navigation between trajectories: filters of the list, kept in every address, and the header of a trajectory. */

import { get } from "./api.js";
import { breadcrumb, h, put } from "./dom.js";
import { episodesText } from "./format.js";
import { bind } from "./keys.js";
import { address, go } from "./router.js";

export const FILTERS = [
  "evaluation",
  "step",
  "group",
  "environment",
  "model",
  "status",
  "seed",
  "reward_min",
  "reward_max",
  "text",
  "sort",
];

export function filtersOf(query) {
  return Object.fromEntries(FILTERS.filter((name) => query.get(name)).map((name) => [name, query.get(name)]));
}

/** Numbers that the last search found, by run: an unfinished search has no offsets to continue from. */
export const foundNumbers = new Map();

/** Return the next (1) or previous (-1) trajectory of the list as {number, at}, or null at its end. */
export async function neighbour(query, direction, signal) {
  const [run, number] = [query.get("run"), Number(query.get("number"))];
  if (query.has("at")) {
    const at = Number(query.get("at")) + direction;
    if (at < 0) return null;
    const answer = await get("trajectories", { run, ...filtersOf(query), offset: at, limit: 1 }, signal);
    return answer.rows.length ? { number: answer.rows[0].number, at } : null;
  }
  const found = foundNumbers.get(run) ?? [];
  const index = found.indexOf(number);
  if (index >= 0) return index + direction in found ? { number: found[index + direction], at: null } : null;
  return number + direction >= 0 ? { number: number + direction, at: null } : null;
}

/** Return the parameters of this trajectory's address, including the filters of its list. */
export function entriesOf(query) {
  return Object.fromEntries([...query.entries()]);
}

/** Add the title, the links and the keys that the conversation and the token view share. */
export function addHeader(main, view, query, row, signal) {
  const run = query.get("run");
  const status = h("span", { class: "faint", role: "status" });
  const move = async (direction) => {
    try {
      const next = await neighbour(query, direction, signal);
      if (next) go(view, { ...entriesOf(query), ...next }, { replace: true });
      else status.textContent = direction > 0 ? "This is the last one." : "This is the first one.";
    } catch (error) {
      if (!signal.aborted) status.textContent = error.message;
    }
  };
  const related = relatedEpisodes(run, row);
  const other = view === "tokens" ? ["trajectory", "Conversation"] : ["tokens", "Tokens"];
  put(
    main,
    h(
      "div",
      { class: "title" },
      breadcrumb(address("trajectories", { run, ...filtersOf(query) }), run, trajectoryName(row)),
      h(
        "span",
        { class: "row" },
        h("button", { type: "button", onclick: () => move(-1), title: "k" }, "‹ Previous"),
        h("button", { type: "button", onclick: () => move(1), title: "j" }, "Next ›"),
        h("a", { class: "button primary", href: address(other[0], entriesOf(query)), title: "v" }, other[1]),
        related && h("a", { class: "button", href: address(...related.to), title: "g" }, related.text),
        status,
      ),
    ),
  );
  bind("j", "next trajectory", () => move(1), signal);
  bind("k", "previous trajectory", () => move(-1), signal);
  bind("v", "switch between conversation and tokens", () => go(other[0], entriesOf(query)), signal);
  if (related) bind("g", related.meaning, () => go(...related.to), signal);
  bind("u", "back to the list", () => go("trajectories", { run, ...filtersOf(query) }), signal);
}

/** Return the view that shows a trajectory beside others of its task: its group, or before and after training. */
function relatedEpisodes(run, row) {
  if (!row.evaluation) {
    const to = ["group", { run, step: row.step, group: row.group }];
    return { to, text: "Group", meaning: "show its group side by side" };
  }
  if (row.evaluation === "validation") return null;
  const to = ["before_after", { run, env: row.task?.env, seed: row.task?.seed }];
  return { to, text: "Before and after", meaning: "show its task before and after training" };
}

/** An evaluation has no steps: its groups are tasks, and its members are tries. */
function trajectoryName(row) {
  if (row.evaluation) return `${episodesText(row.evaluation)} · task ${row.group}`;
  return row.step === 0
    ? `task ${row.group} · try ${row.member + 1}`
    : `step ${row.step} · group ${row.group} · member ${row.member}`;
}
