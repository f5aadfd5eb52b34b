/** The view of runs: a table to sort, filter and select. Two selected runs show their different settings. */

import { get } from "./api.js";
import { showDifferences } from "./differences.js";
import { h, input, note, put, replace, select } from "./dom.js";
import { ago, count, duration, percent, short } from "./format.js";
import { bind } from "./keys.js";
import { poll } from "./poll.js";
import { address, remember } from "./router.js";

const STATUS_MARKS = { running: "●", finished: "✓", stopped: "◌" };

/** name, title, whether it is a number, and a function that returns the cell. */
export const COLUMNS = [
  { name: "id", title: "Run", cell: nameCell },
  { name: "kind", title: "Type" },
  { name: "environment", title: "Environment" },
  { name: "model", title: "Model" },
  { name: "algorithm", title: "Algorithm" },
  {
    name: "status",
    title: "Status",
    cell: (run) =>
      h(
        "span",
        { class: `status ${run.status}` },
        h("i", { "aria-hidden": "true" }, STATUS_MARKS[run.status]),
        run.status,
        run.broken > 0 && h("span", { class: "badge", title: `${run.broken} lines or files could not be read` }, "⚠"),
      ),
  },
  { name: "step", title: "Step", number: true, cell: stepCell },
  { name: "success", title: "Success", number: true, cell: successCell },
  { name: "wall_s", title: "Time", number: true, cell: (run) => duration(run.wall_s) },
  { name: "tokens", title: "Tokens", number: true, cell: (run) => count(run.tokens) },
  { name: "updated", title: "Updated", number: true, cell: (run) => ago(run.updated) },
];

function nameCell(run) {
  return h("a", { class: "name", href: address("run", { run: run.id }) }, run.id);
}

function stepCell(run) {
  if (run.step === null || run.step === undefined) return "–";
  const share = run.steps ? Math.min(1, run.step / run.steps) : null;
  const bar =
    share !== null &&
    h("span", { class: "progress", "aria-hidden": "true" }, h("i", { style: { width: `${100 * share}%` } }));
  return [run.steps ? `${run.step} / ${run.steps}` : short(run.step), bar];
}

/** The success rate, with its interval as a whisker on a line from 0 to 100 %, equally long in all rows. */
export function successCell(run) {
  if (run.success === null || run.success === undefined) return "–";
  const position = (value) => `${100 * Number(value)}%`;
  const interval = run.success_low !== null && run.success_low !== undefined;
  const title = interval ? `${percent(run.success_low)} to ${percent(run.success_high)}` : "no confidence interval";
  const whisker = h(
    "span",
    { class: "whisker", "aria-hidden": "true" },
    interval &&
      h("i", {
        class: "range",
        style: { left: position(run.success_low), width: position(run.success_high - run.success_low) },
      }),
    h("i", { class: "dot", style: { left: position(run.success) } }),
  );
  return h(
    "span",
    { class: "success", title },
    h("b", {}, percent(run.success)),
    interval && h("small", {}, title),
    whisker,
  );
}

export async function showRuns(main, query, signal) {
  await new RunsView(main, query, signal).start();
}

class RunsView {
  constructor(main, query, signal) {
    Object.assign(this, {
      main,
      signal,
      runs: [],
      sort: query.get("sort") ?? "-updated",
      filter: query.get("filter") ?? "",
      selected: new Set(query.getAll("sel")),
    });
  }

  async start() {
    this.table = h("table", { class: "runs" });
    this.actions = h("div", { class: "actions", role: "status" });
    this.below = h("div", {});
    const { running, root } = await this.load();
    const filter = input("Filter", this.filter, () => {}, {
      type: "search",
      id: "filter",
      placeholder: "name, environment, model …",
    });
    filter.querySelector("input").addEventListener("input", (event) => this.set({ filter: event.target.value }));
    const order = select(
      "Sort by",
      COLUMNS.flatMap(({ name, title }) => [
        [name, `${title} ↑`],
        [`-${name}`, `${title} ↓`],
      ]),
      this.sort,
      (sort) => this.set({ sort }),
    );
    order.classList.add("narrow");
    put(
      this.main,
      h("div", { class: "title" }, h("h1", {}, "Runs"), h("span", { class: "faint" }, root)),
      h("div", { class: "tools" }, filter, order, this.actions),
      this.table,
      this.below,
    );
    this.fill();
    this.showSelection();
    bind("/", "focus the filter", () => document.getElementById("filter").focus(), this.signal);
    bind("Escape", "clear the selection", () => this.selectOnly([]), this.signal);
    poll(
      async () => {
        const before = JSON.stringify(this.runs);
        const answer = await this.load();
        if (JSON.stringify(this.runs) !== before) this.fill();
        return answer.running;
      },
      this.signal,
      running,
    );
  }

  async load() {
    const { root, runs } = await get("runs", {}, this.signal);
    this.runs = runs;
    return { root, running: runs.some((run) => run.status === "running" || run.partial) };
  }

  set(change) {
    Object.assign(this, change);
    this.remember();
    this.fill();
  }

  remember() {
    remember("runs", {
      sort: this.sort === "-updated" ? null : this.sort,
      filter: this.filter,
      sel: [...this.selected],
    });
  }

  shown() {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) =>
      [run.id, run.kind, run.environment, run.model, run.algorithm, run.status, ...(run.models ?? [])]
        .join(" ")
        .toLowerCase();
    return sorted(
      this.runs.filter((run) => words.every((word) => text(run).includes(word))),
      this.sort,
    );
  }

  fill() {
    const runs = this.shown();
    const focused = document.activeElement?.dataset?.focus;
    const empty = this.runs.length
      ? "No run matches the filter."
      : "No runs yet. Start one with: turnwise train frozen_lake";
    replace(
      this.table,
      h("caption", { class: "hidden" }, "Runs"),
      this.headings(),
      h(
        "tbody",
        {},
        runs.map((run) => this.row(run)),
        !runs.length && h("tr", {}, h("td", { colspan: COLUMNS.length + 1 }, note(empty))),
      ),
    );
    if (focused)
      [...this.table.querySelectorAll("[data-focus]")].find((each) => each.dataset.focus === focused)?.focus();
  }

  headings() {
    const [current, descending] = [this.sort.replace(/^-/, ""), this.sort.startsWith("-")];
    const cells = COLUMNS.map(({ name, title, number }) => {
      const isCurrent = name === current;
      const next = isCurrent ? (descending ? name : `-${name}`) : number ? `-${name}` : name;
      const sort = h(
        "button",
        { type: "button", dataset: { focus: `sort ${name}` }, onclick: () => this.set({ sort: next }) },
        title,
        h("i", { "aria-hidden": "true" }, isCurrent ? (descending ? " ↓" : " ↑") : ""),
      );
      return h(
        "th",
        {
          scope: "col",
          class: `head-${name}${number ? " number" : ""}`,
          "aria-sort": isCurrent ? (descending ? "descending" : "ascending") : "none",
        },
        sort,
      );
    });
    return h("thead", {}, h("tr", {}, h("th", { class: "pick" }, h("span", { class: "hidden" }, "Select")), cells));
  }

  row(run) {
    const box = h("input", {
      type: "checkbox",
      checked: this.selected.has(run.id),
      "aria-label": `Select ${run.id}`,
      dataset: { focus: `pick ${run.id}` },
      onchange: () => this.pick(run.id, box.checked),
    });
    const cells = COLUMNS.map(({ name, title, number, cell }) =>
      h(
        "td",
        { class: `col-${name}${number ? " number" : ""}`, dataset: { label: title } },
        cell ? cell(run) : (run[name] ?? "–"),
      ),
    );
    return h(
      "tr",
      { class: this.selected.has(run.id) ? "selected" : null, dataset: { run: run.id } },
      h("td", { class: "pick" }, box),
      cells,
    );
  }

  hasModels(id) {
    return this.runs.some((run) => run.id === id && run.models?.length > 1);
  }

  pick(id, on) {
    if (on) this.selected.add(id);
    else this.selected.delete(id);
    this.selectOnly([...this.selected]);
  }

  selectOnly(ids) {
    this.selected = new Set(ids);
    this.remember();
    this.fill();
    this.showSelection();
  }

  /** Show the actions for the selected runs. */
  showSelection() {
    const ids = [...this.selected];
    const withCurves = ids.filter((id) => this.runs.find((run) => run.id === id)?.kind !== "evaluation");
    const one = ids.length === 1 ? ids[0] : null;
    replace(
      this.actions,
      ids.length > 0 && h("span", { class: "faint" }, `${ids.length} selected`),
      withCurves.length > 0 &&
        h(
          "a",
          { class: "button primary", href: address("curves", { run: withCurves }) },
          withCurves.length > 1 ? "Overlay curves" : "Curves",
        ),
      one && h("a", { class: "button", href: address("trajectories", { run: one }) }, "Trajectories"),
      one &&
        withCurves.length === 1 &&
        h("a", { class: "button", href: address("before_after", { run: one }) }, "Before and after training"),
      this.hasModels(one) &&
        h("a", { class: "button", href: address("compare", { one, other: one }) }, "Compare its models"),
      ids.length === 2 &&
        h("a", { class: "button", href: address("compare", { one: ids[0], other: ids[1] }) }, "Compare trajectories"),
      !ids.length &&
        h("span", { class: "faint" }, "Select runs to overlay their curves, or two to compare their settings."),
    );
    replace(this.below);
    if (ids.length === 2) showDifferences(this.below, ids, this.signal);
  }
}

/** Missing values come last in both directions. */
function sorted(runs, sort) {
  const name = sort.replace(/^-/, "");
  const direction = sort.startsWith("-") ? -1 : 1;
  const compare = (one, other) =>
    typeof one === "number" && typeof other === "number"
      ? one - other
      : String(one).localeCompare(String(other), undefined, { numeric: true });
  const missing = (run) => run[name] === null || run[name] === undefined;
  return [...runs].sort((one, other) =>
    missing(one) || missing(other) ? missing(one) - missing(other) : direction * compare(one[name], other[name]),
  );
}
