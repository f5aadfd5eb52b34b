/** The view of a run's trajectories: a table with filters, search and pages. */

import { fetchRuns, get, newestRun } from "./api.js";
import { button, h, input, note, put, replace, select } from "./dom.js";
import { statusBadge, tone } from "./conversation.js";
import { environmentText, episodesText, signed, statusText } from "./format.js";
import { bind } from "./keys.js";
import { address, go } from "./router.js";
import { poll } from "./poll.js";
import { FILTERS, filtersOf, foundNumbers } from "./trajectory_navigation.js";

const PAGE = 50;
const ORDER = ["before", "validation", "after"];

const COLUMNS = [
  ["step", "Step"],
  ["group", "Group"],
  ["member", "Member"],
  ["model", "Model"],
  ["reward", "Reward"],
  ["status", "Status"],
  ["turns", "Turns"],
  ["tokens", "Tokens"],
  ["environment", "Environment"],
  ["seed", "Seed"],
];
const NUMBERS = new Set(["step", "group", "member", "seed", "reward", "turns", "tokens"]);

export async function showTrajectories(main, query, signal) {
  const list = await fetchRuns(signal);
  if (!query.get("run")) {
    const newest = newestRun(list);
    if (newest) return go("trajectories", { run: newest.id }, { replace: true });
    return put(main, h("h1", {}, "Trajectories"), note("No trajectories yet."));
  }
  await new ListView(main, query, list, signal).start();
}

class ListView {
  constructor(main, query, list, signal) {
    Object.assign(this, {
      main,
      query,
      list,
      signal,
      run: query.get("run"),
      filters: filtersOf(query),
      offset: Number(query.get("offset") ?? 0),
      cursor: query.get("cursor"),
    });
  }

  async start() {
    const parameters = {
      run: this.run,
      ...this.filters,
      offset: this.offset || null,
      limit: PAGE,
      cursor: this.cursor,
      preview: true,
    };
    if (this.filters.text) put(this.main, h("p", { class: "note", role: "status" }, "Searching …"));
    const answer = await get("trajectories", parameters, this.signal);
    foundNumbers.set(
      this.run,
      answer.rows.map((row) => row.number),
    );
    replace(this.main, this.head(), this.tools(answer), this.results(answer));
    bind("/", "search the text", () => document.getElementById("search").focus(), this.signal);
    bind("j", "open the first one", () => answer.rows.length && this.open(answer.rows[0], 0), this.signal);
    bind("n", "next page", () => this.page(answer, 1), this.signal);
    bind("p", "previous page", () => this.page(answer, -1), this.signal);
    if (!this.filters.text) poll(() => this.lookForMore(answer.total), this.signal, this.isRunning());
  }

  isRunning() {
    return this.list.some((run) => run.id === this.run && run.status === "running");
  }

  /** Offer new trajectories with a button; the list itself does not change while it is read. */
  async lookForMore(total) {
    this.list = await fetchRuns(this.signal);
    const { total: now } = await get("trajectories", { run: this.run, ...this.filters, limit: 1 }, this.signal);
    const slot = this.main.querySelector(".more");
    if (now !== total && slot)
      replace(
        slot,
        button(`${signed(now - total)} new: show`, () => this.set({})),
      );
    return this.isRunning();
  }

  head() {
    const runs = this.list.map((run) => run.id);
    const known = runs.includes(this.run) ? runs : [this.run, ...runs];
    return h(
      "div",
      { class: "title" },
      h("h1", {}, "Trajectories"),
      select("of run", known, this.run, (run) => go("trajectories", { run })),
    );
  }

  set(change) {
    const entries = { run: this.run, ...this.filters, ...change };
    go("trajectories", entries);
  }

  tools(answer) {
    const { filters } = this;
    const number = (label, name) =>
      input(label, filters[name], (value) => this.set({ [name]: value.trim() }), {
        inputmode: "decimal",
        size: 5,
        id: `by-${name}`,
      });
    const choice = (label, name, options, text = (option) => option) =>
      options?.length > 1 &&
      select(
        label,
        [["", "any"], ...options.map((option) => [option, text(option)])],
        filters[name] ?? "",
        (value) => this.set({ [name]: value }),
      );
    const search = input("Text", filters.text, (text) => this.set({ text }), {
      type: "search",
      id: "search",
      placeholder: "in contexts and messages",
    });
    const active = FILTERS.some((name) => name !== "sort" && filters[name]);
    return h(
      "div",
      { class: "tools" },
      search,
      this.episodesField(answer),
      (answer.steps?.length > 1 || this.filters.step) && this.stepField(answer),
      number(filters.evaluation ? "Task" : "Group", "group"),
      number("Seed", "seed"),
      choice("Environment", "environment", answer.environments, environmentText),
      choice("Model", "model", answer.models),
      choice("Status", "status", answer.statuses, statusText),
      h("span", { class: "pair" }, number("Reward from", "reward_min"), number("to", "reward_max")),
      this.sortField(answer),
      active && h("a", { class: "button", href: address("trajectories", { run: this.run }) }, "Clear filters"),
    );
  }

  /** Choose between the episodes of training and of the run's evaluations. */
  episodesField({ evaluations = [] }) {
    const options = ["", ...ORDER.filter((name) => evaluations.includes(name))];
    return (
      evaluations.length > 0 &&
      select(
        "Episodes",
        options.map((name) => [name, episodesText(name)]),
        this.filters.evaluation ?? "",
        (evaluation) => go("trajectories", { run: this.run, evaluation }),
      )
    );
  }

  /** On a narrow screen, where the table has no headings to sort by. */
  sortField(answer) {
    const options = this.columns(answer).flatMap(([name, title]) => [
      [name, `${title} ↑`],
      [`-${name}`, `${title} ↓`],
    ]);
    const field = select("Sort by", [["", "order of the run"], ...options], this.filters.sort ?? "", (sort) =>
      this.set({ sort }),
    );
    field.classList.add("narrow");
    return field;
  }

  stepField(answer) {
    const steps = answer.steps ?? [];
    const current = Number(this.filters.step);
    const neighbour = (direction) =>
      this.filters.step
        ? direction > 0
          ? steps.find((step) => step > current)
          : steps.findLast((step) => step < current)
        : direction > 0
          ? steps[0]
          : steps.at(-1);
    const arrow = (label, direction, name) =>
      button(label, () => this.set({ step: neighbour(direction) }), {
        class: "tiny",
        "aria-label": name,
        disabled: neighbour(direction) === undefined,
      });
    const field = input("Step", this.filters.step, (step) => this.set({ step: step.trim() }), {
      inputmode: "numeric",
      size: 5,
      placeholder: steps.length ? `${steps[0]}–${steps.at(-1)}` : "",
      id: "by-step",
    });
    return h("span", { class: "pair" }, field, arrow("‹", -1, "Previous step"), arrow("›", 1, "Next step"));
  }

  columns(answer) {
    const { evaluation } = this.filters;
    const titles = answer.models?.length || evaluation ? { group: "Task", member: "Try" } : {};
    const several = (answer.environments ?? []).length > 1;
    const hidden = new Set([
      ...(answer.rows.some((row) => row.model) ? ["step"] : ["model"]),
      ...(several ? [] : ["environment"]),
      ...(evaluation ? ["member"] : []),
      ...(evaluation && answer.steps?.length < 2 ? ["step"] : []),
      ...(answer.rows.some((row) => row.turns !== null && row.turns !== undefined) ? [] : ["turns"]),
    ]);
    return COLUMNS.filter(([name]) => !hidden.has(name)).map(([name, title]) => [name, titles[name] ?? title]);
  }

  results(answer) {
    const columns = this.columns(answer);
    const body = answer.rows.map((row, index) => this.row(row, index, columns));
    const table = h(
      "table",
      { class: "list" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((column) => this.heading(column)),
          h("th", { scope: "col", class: "head-answer" }, "Answer"),
        ),
      ),
      h("tbody", {}, body),
    );
    const content = answer.rows.length ? h("div", { class: "scroll" }, table) : note(this.emptyText(answer));
    return [this.pager(answer), content];
  }

  emptyText(answer) {
    if (answer.next) return "Nothing found so far. Continue the search.";
    if (FILTERS.some((name) => this.filters[name])) return "No trajectory matches the filters.";
    if (!answer.evaluations?.length) return "This run has no trajectories.";
    const links = answer.evaluations.map((evaluation) => [
      " ",
      h("a", { href: address("trajectories", { run: this.run, evaluation }) }, episodesText(evaluation)),
    ]);
    return ["No training episodes are recorded in this run. Its evaluations:", links];
  }

  heading([name, title]) {
    const sort = this.filters.sort ?? "";
    const isCurrent = sort.replace(/^-/, "") === name;
    const next = isCurrent && sort.startsWith("-") ? name : `-${name}`;
    const sign = isCurrent ? (sort.startsWith("-") ? " ↓" : " ↑") : "";
    return h(
      "th",
      {
        scope: "col",
        class: `head-${name}${NUMBERS.has(name) ? " number" : ""}`,
        "aria-sort": isCurrent ? (sign === " ↓" ? "descending" : "ascending") : "none",
      },
      h("button", { type: "button", onclick: () => this.set({ sort: next }) }, title, sign),
    );
  }

  /** Return the parameters of a trajectory's address, including the filters of this list. */
  entries(row, index) {
    return { run: this.run, number: row.number, ...this.filters, at: this.filters.text ? null : this.offset + index };
  }

  open(row, index) {
    go("trajectory", this.entries(row, index));
  }

  row(row, index, columns) {
    const cells = {
      environment: () => environmentText(row.environment),
      status: () => statusBadge(row.status),
      reward: () => h("b", { class: tone(row.reward) }, signed(row.reward)),
      group: () =>
        row.evaluation
          ? row.group
          : h(
              "a",
              {
                href: address("group", { run: this.run, step: row.step, group: row.group }),
                title: "Show all members side by side",
              },
              row.group,
            ),
    };
    const link = (text) => h("a", { class: "open", href: address("trajectory", this.entries(row, index)) }, text);
    const first = columns[0][0];
    const onclick = (event) => event.target.closest("a") ?? (getSelection().isCollapsed && this.open(row, index));
    return h(
      "tr",
      { dataset: { number: row.number }, onclick },
      columns.map(([name, title]) => {
        const shown = cells[name]?.() ?? row[name] ?? "–";
        const opens = (name !== "group" || row.evaluation) && (name === first || name === "member" || name === "status");
        const properties = { class: `col-${name}${NUMBERS.has(name) ? " number" : ""}`, dataset: { label: title } };
        return h("td", properties, opens ? link(shown) : shown);
      }),
      h("td", { class: "col-answer" }, row.preview),
    );
  }

  pager(answer) {
    const last = this.offset + answer.rows.length;
    const searched =
      this.filters.text && answer.searched !== undefined
        ? `searched ${answer.searched}${answer.of ? ` of ${answer.of}` : ""}`
        : "";
    const range = answer.rows.length
      ? `${this.offset + 1}–${last} of ${answer.total}${answer.next ? " found so far" : ""}`
      : "";
    const broken = answer.broken ? `⚠ ${answer.broken} lines of the index could not be read` : "";
    return h(
      "div",
      { class: "pager" },
      h("span", { role: "status" }, [range, searched, broken].filter(Boolean).join(" · ")),
      button("‹ Previous", () => this.page(answer, -1), { disabled: this.offset === 0 && !this.cursor }),
      button(answer.next && last >= answer.total ? "Continue search ›" : "Next ›", () => this.page(answer, 1), {
        disabled: last >= answer.total && !answer.next,
      }),
      h("span", { class: "more", role: "status" }),
      this.filters.step &&
        this.filters.group &&
        h(
          "a",
          {
            class: "button",
            href: address("group", { run: this.run, step: this.filters.step, group: this.filters.group }),
          },
          "Group side by side",
        ),
    );
  }

  page(answer, direction) {
    if (direction < 0)
      return this.cursor ? history.back() : this.offset > 0 && this.set({ offset: Math.max(0, this.offset - PAGE) });
    if (this.offset + answer.rows.length < answer.total) this.set({ offset: this.offset + PAGE, cursor: this.cursor });
    else if (answer.next) this.set({ cursor: answer.next, offset: null });
  }
}
