/** The comparison view: tasks that two runs or evaluations share, with the episodes of both. */

import { fetchRuns, fetchTrajectory, get } from "./api.js";
import { h, note, put, replace, select } from "./dom.js";
import { statusBadge, tone } from "./conversation.js";
import { environmentText, episodesText, mean, percent, signed } from "./format.js";
import { bind } from "./keys.js";
import { address, go } from "./router.js";
import { sideBySide } from "./side_by_side.js";

export async function showCompare(main, query, signal) {
  const list = (await fetchRuns(signal)).map((run) => run.id);
  const [one, other] = [query.get("one"), query.get("other")];
  const choose = (label, name, chosen) =>
    select(label, [["", "choose …"], ...list], chosen ?? "", (value) => go("compare", { one, other, [name]: value }));
  put(
    main,
    h(
      "div",
      { class: "title" },
      h("h1", {}, "Compare"),
      choose("", "one", one),
      h("span", {}, "with"),
      choose("", "other", other),
    ),
  );
  if (!one || !other) return put(main, explainChoice(one ?? other, list));
  const { evaluations } = await get("common", { one, other, limit: 1 }, signal);
  const names = [...new Set([...evaluations.one, ...evaluations.other])];
  const hasAfter = [evaluations.one, evaluations.other].every((each) => !each.length || each.includes("after"));
  const episodes = query.get("episodes") ?? (names.length && hasAfter ? "after" : "training");
  const side = (name) => (evaluations[name].includes(episodes) ? episodes : "");
  const parameters = { one, other, one_evaluation: side("one"), other_evaluation: side("other") };
  const { tasks, total } = await get("common", parameters, signal);
  if (names.length)
    put(
      main.querySelector(".title"),
      select(
        "episodes",
        [["training", episodesText("")], ...names.map((name) => [name, episodesText(name)])],
        episodes,
        (value) => go("compare", { one, other, episodes: value }),
      ),
    );
  if (!tasks.length)
    return put(
      main,
      note(
        "They share no task: no environment and seed occurs in both. Choose other episodes above, or evaluate both on ",
        "the same tasks: ",
        h("code", {}, `turnwise eval ${one} ${other}`),
      ),
    );
  await new CompareView(main, tasks, total, query, signal).start();
}

/** What to do while fewer than two runs are chosen. */
function explainChoice(chosen, list) {
  if (!list.length) return note("No runs yet. Start one with: ", h("code", {}, "turnwise train frozen_lake"));
  const beforeAfter = (text) => h("a", { href: address("before_after", { run: chosen ?? list[0] }) }, text);
  if (list.length === 1)
    return note(
      "There is one run here. See what it learnt: ",
      beforeAfter("before and after training"),
      ". To compare two runs, train another, e.g. with --seed 1.",
    );
  return note(
    chosen ? `Choose a second run or evaluation to compare ${chosen} with` : "Choose two runs or evaluations above",
    ": you see their episodes of the same tasks side by side. One run by itself: ",
    beforeAfter("before and after training"),
    ".",
  );
}

class CompareView {
  constructor(main, tasks, total, query, signal) {
    Object.assign(this, { main, total, query, signal, one: query.get("one"), other: query.get("other") });
    this.models = { one: modelsOf(tasks, "one"), other: modelsOf(tasks, "other") };
    this.model = this.chosenModels();
    this.tasks = tasks.map((task) => this.onlyModels(task)).filter((task) => task.one.length && task.other.length);
    this.order = query.get("order") ?? "difference";
    this.differing = query.get("differing") === "1";
  }

  /** Return the model of each side. Comparing an evaluation with itself starts with its first two models. */
  chosenModels() {
    const { one, other } = this.models;
    const second = this.one === this.other ? (other[1] ?? other[0]) : other[0];
    return { one: this.query.get("one_model") ?? one[0], other: this.query.get("other_model") ?? second };
  }

  onlyModels(task) {
    const ofModel = (side) => task[side].filter((entry) => (entry.model ?? undefined) === this.model[side]);
    return { ...task, one: ofModel("one"), other: ofModel("other") };
  }

  name(side) {
    return this.models[side].length > 1 ? `${this[side]} · ${this.model[side]}` : this[side];
  }

  chooseModel(label, side) {
    const models = this.models[side];
    return (
      models.length > 1 &&
      select(label, models, this.model[side], (model) => go("compare", this.entries({ [`${side}_model`]: model })))
    );
  }

  entries(change) {
    return {
      one: this.one,
      other: this.other,
      one_model: this.models.one.length > 1 ? this.model.one : null,
      other_model: this.models.other.length > 1 ? this.model.other : null,
      episodes: this.query.get("episodes"),
      order: this.order === "difference" ? null : this.order,
      differing: this.differing ? 1 : null,
      ...change,
    };
  }

  async start() {
    const order = select(
      "Order",
      [
        ["difference", "largest difference first"],
        ["seed", "by seed"],
      ],
      this.order,
      (value) => go("compare", this.entries({ order: value })),
    );
    const box = h("input", {
      type: "checkbox",
      checked: this.differing,
      onchange: () => go("compare", this.entries({ differing: box.checked ? 1 : null })),
    });
    this.episodes = h("div", { class: "compared" });
    const shown = this.shown();
    put(
      this.main,
      h(
        "div",
        { class: "tools" },
        this.chooseModel("Model", "one"),
        this.chooseModel("with", "other"),
        order,
        h("label", { class: "check" }, box, "only tasks with different success"),
        h("span", { class: "faint" }, this.summary()),
      ),
      this.table(shown),
      this.episodes,
    );
    const [env, seed] = [this.query.get("env"), this.query.get("seed")];
    const chosen =
      env !== null ? this.tasks.find((task) => task.environment === env && String(task.seed) === seed) : shown[0];
    const move = (direction) => {
      const next = shown[shown.indexOf(chosen) + direction];
      if (next) go("compare", this.choice(next), { replace: true });
    };
    bind("j", "next task", () => move(1), this.signal);
    bind("k", "previous task", () => move(-1), this.signal);
    if (chosen) await this.open(chosen);
  }

  summary() {
    const better = this.tasks.filter((task) => gap(task) > 0).length;
    const worse = this.tasks.filter((task) => gap(task) < 0).length;
    const cut = this.total > this.tasks.length ? ` of ${this.total}` : "";
    const counts = `higher reward for the first in ${better}, for the second in ${worse}`;
    return `${this.tasks.length}${cut} shared tasks: ${counts}`;
  }

  shown() {
    const kept = this.differing ? this.tasks.filter((task) => rate(task.one) !== rate(task.other)) : this.tasks;
    return this.order === "seed" ? kept : [...kept].sort((one, other) => Math.abs(gap(other)) - Math.abs(gap(one)));
  }

  choice(task) {
    return this.entries({ env: task.environment, seed: task.seed });
  }

  table(tasks) {
    const rows = tasks.map((task) =>
      h(
        "tr",
        { dataset: { seed: task.seed } },
        h("td", {}, environmentText(task.environment)),
        h("td", { class: "number" }, h("a", { href: address("compare", this.choice(task)) }, task.seed)),
        sideCell(task.one),
        sideCell(task.other),
        h("td", { class: `number ${tone(gap(task))}` }, signed(gap(task))),
      ),
    );
    const heading = ["Environment", "Seed", this.name("one"), this.name("other"), "Difference"].map((title, index) =>
      h("th", { scope: "col", class: index === 1 || index === 4 ? "number" : null }, title),
    );
    return h(
      "div",
      { class: "scroll tasks", tabindex: "0", role: "group", "aria-label": "Shared tasks" },
      h("table", { class: "list" }, h("thead", {}, h("tr", {}, heading)), h("tbody", {}, rows)),
    );
  }

  async open(task) {
    const pick = (name, side) => Math.min(Number(this.query.get(name) ?? 0), side.length - 1);
    const tries = [pick("m1", task.one), pick("m2", task.other)];
    const chosen = [
      [this.one, task.one[tries[0]]],
      [this.other, task.other[tries[1]]],
    ];
    const answers = await Promise.all(chosen.map(([run, entry]) => fetchTrajectory(run, entry.number, this.signal)));
    const columns = chosen.map(([run, entry], index) => ({
      title: this.name(index ? "other" : "one"),
      href: address("trajectory", { run, number: entry.number }),
      answer: answers[index],
    }));
    const member = (name, side, at) =>
      side.length > 1 &&
      select(
        "Try",
        side.map((entry, index) => [
          index,
          `${index + 1} of ${side.length}${entry.step ? ` · step ${entry.step}` : ""} · ${signed(entry.reward)}`,
        ]),
        at,
        (value) =>
          go("compare", { ...this.choice(task), m1: tries[0], m2: tries[1], [name]: value }, { replace: true }),
      );
    replace(
      this.episodes,
      h(
        "div",
        { class: "tools" },
        h("h2", {}, `${environmentText(task.environment)} · seed ${task.seed}`),
        member("m1", task.one, tries[0]),
        member("m2", task.other, tries[1]),
      ),
      sideBySide(columns, this.signal),
    );
    for (const row of this.main.querySelectorAll("tr[data-seed]"))
      row.classList.toggle("selected", row.dataset.seed === String(task.seed));
  }
}

function modelsOf(tasks, side) {
  return [...new Set(tasks.flatMap((task) => task[side].map((entry) => entry.model)))].filter(Boolean).sort();
}

const rate = (side) => mean(side.map((entry) => Number(entry.status === "succeeded")));
const gap = (task) =>
  (mean(task.one.map((entry) => entry.reward)) ?? 0) - (mean(task.other.map((entry) => entry.reward)) ?? 0);

function sideCell(entries) {
  const solved = entries.filter((entry) => entry.status === "succeeded").length;
  const summary = entries.length === 1 ? statusBadge(entries[0].status) : `${percent(solved / entries.length)} of ${entries.length} succeeded`;
  const label = entries.length === 1 ? "reward" : "mean reward";
  const reward = signed(mean(entries.map((entry) => entry.reward)));
  return h("td", {}, summary, " ", h("span", { class: "faint" }, `${label} ${reward}`));
}
