/** What the conversation and the token view of a trajectory share: the title, the ways on, the keys. */

import { h, put } from "./dom.js";
import { bind } from "./keys.js";
import { address, go } from "./router.js";
import { filtersOf, neighbour } from "./trajectory_filters.js";

/** Entries of an address of this trajectory, with the list that it was opened from. */
export function entriesOf(query) {
  return Object.fromEntries([...query.entries()]);
}

export function frame(main, view, query, row, signal) {
  const run = query.get("run");
  const status = h("span", { class: "faint", role: "status" });
  const move = async (way) => {
    try {
      const next = await neighbour(query, way, signal);
      if (next) go(view, { ...entriesOf(query), ...next }, { replace: true });
      else status.textContent = way > 0 ? "That was the last one." : "That was the first one.";
    } catch (error) {
      if (!signal.aborted) status.textContent = error.message;
    }
  };
  const other = view === "tokens" ? ["trajectory", "Conversation"] : ["tokens", "Tokens"];
  put(
    main,
    h(
      "div",
      { class: "title" },
      h(
        "nav",
        { class: "crumbs", "aria-label": "Place" },
        h("a", { href: address("trajectories", { run, ...filtersOf(query) }) }, run),
        h("span", {}, "›"),
        h("h1", {}, name(row)),
      ),
      h(
        "span",
        { class: "row" },
        h("button", { type: "button", onclick: () => move(-1), title: "k" }, "‹ Previous"),
        h("button", { type: "button", onclick: () => move(1), title: "j" }, "Next ›"),
        h("a", { class: "button primary", href: address(other[0], entriesOf(query)), title: "v" }, other[1]),
        h(
          "a",
          { class: "button", href: address("group", { run, step: row.step, group: row.group }), title: "g" },
          "Group",
        ),
        status,
      ),
    ),
  );
  bind("j", "next trajectory", () => move(1), signal);
  bind("k", "previous trajectory", () => move(-1), signal);
  bind("v", "conversation or tokens", () => go(other[0], entriesOf(query)), signal);
  bind("g", "its group side by side", () => go("group", { run, step: row.step, group: row.group }), signal);
  bind("u", "up to the list", () => go("trajectories", { run, ...filtersOf(query) }), signal);
}

/** An evaluation has no steps: its groups are tasks, and its members tries. */
function name(row) {
  return row.step === 0
    ? `task ${row.group} · try ${row.member + 1}`
    : `step ${row.step} · group ${row.group} · member ${row.member}`;
}
