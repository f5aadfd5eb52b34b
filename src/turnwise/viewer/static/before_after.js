/** A run's evaluations before and after training: the same tasks and random numbers, side by side. */

import { fetchRuns, fetchTrajectory, get, newestRun } from "./api.js";
import { statusBadge } from "./conversation.js";
import { button, h, note, put, replace, select } from "./dom.js";
import { environmentText, percent } from "./format.js";
import { bind } from "./keys.js";
import { address, go } from "./router.js";
import { sideBySide } from "./side_by_side.js";

/** Outcomes in the order in which their tasks are listed. */
const OUTCOMES = { gained: "solved now", lost: "no longer solved", same: "same" };
const SIGNS = { gained: "▲", lost: "▼", same: "=" };
const TONES = { gained: "good", lost: "bad", same: "" };

export async function showBeforeAfter(main, query, signal) {
  const runs = (await fetchRuns(signal)).filter((run) => run.kind !== "evaluation");
  const run = query.get("run") ?? newestRun(runs)?.id;
  const title = h("h1", {}, "Before and after training");
  if (!run) return put(main, title, note("No runs yet. Start one with: turnwise train frozen_lake"));
  const ids = runs.map((each) => each.id);
  const choose = select("of run", ids.includes(run) ? ids : [run, ...ids], run, (id) => go("before_after", { run: id }));
  put(main, h("div", { class: "title" }, title, choose));
  const answer = await fetchOutcomes(run, signal);
  if (!answer.tasks.length) return put(main, explainEmpty(run, answer.evaluations.one));
  await new BeforeAfterView(main, run, answer, query, signal).start();
}

/** Return {tasks, total, evaluations}: the tasks of both evaluations, each with its outcome; changed ones first. */
export async function fetchOutcomes(run, signal) {
  const sides = { one: run, other: run, one_evaluation: "before", other_evaluation: "after" };
  const answer = await get("common", sides, signal);
  const order = Object.keys(OUTCOMES);
  const tasks = answer.tasks
    .map((task) => ({ ...task, outcome: outcomeOf(task) }))
    .sort((one, other) => order.indexOf(one.outcome) - order.indexOf(other.outcome));
  return { ...answer, tasks };
}

/** Return the columns of `sideBySide` for a task: its episode before training and the one after it. */
export async function fetchSides(run, task, signal) {
  const sides = [
    ["Before training", task.one[0]],
    ["After training", task.other[0]],
  ];
  const answers = await Promise.all(sides.map(([, { number }]) => fetchTrajectory(run, number, signal)));
  return sides.map(([title, { number, evaluation }], index) => ({
    title,
    href: address("trajectory", { run, number, evaluation }),
    answer: answers[index],
  }));
}

function explainEmpty(run, evaluations) {
  if (!evaluations.includes("before"))
    return note(
      "No evaluation of this run is recorded. Runs record theirs unless record.trajectories is 0; ",
      "runs of earlier versions did not.",
    );
  const before = h("a", { href: address("trajectories", { run, evaluation: "before" }) }, "episodes before training");
  return note("The evaluation after training is recorded when the run ends. Until then, see its ", before, ".");
}

const isSolved = ([episode]) => episode.status === "succeeded";

function outcomeOf({ one, other }) {
  if (isSolved(one) === isSolved(other)) return "same";
  return isSolved(other) ? "gained" : "lost";
}

class BeforeAfterView {
  constructor(main, run, { tasks, total }, query, signal) {
    this.tasks = tasks;
    this.outcome = query.get("outcome") ?? "";
    this.shown = this.tasks.filter((task) => !this.outcome || task.outcome === this.outcome);
    Object.assign(this, { main, run, total, query, signal, episodes: h("div", { class: "compared" }) });
  }

  async start() {
    const chosen = this.chosen();
    put(this.main, this.headline(), this.filters(), this.table(chosen), this.episodes);
    if (!chosen) return put(this.episodes, note(`No task is ${OUTCOMES[this.outcome] ?? this.outcome}.`));
    bind("j", "next task", () => this.move(chosen, 1), this.signal);
    bind("k", "previous task", () => this.move(chosen, -1), this.signal);
    await this.open(chosen);
  }

  /** Return the task that the address names, or the first. */
  chosen() {
    const [environment, seed] = [this.query.get("env"), this.query.get("seed")];
    return (
      this.shown.find((task) => task.environment === environment && String(task.seed) === seed) ?? this.shown[0] ?? null
    );
  }

  headline() {
    const share = (side) => percent(this.tasks.filter((task) => isSolved(task[side])).length / this.tasks.length);
    const cut = this.total > this.tasks.length ? ` (the first of ${this.total})` : "";
    return h(
      "p",
      { class: "headline" },
      h("b", {}, share("one")),
      ` of ${this.tasks.length} tasks${cut} solved before training, `,
      h("b", {}, share("other")),
      " after it.",
    );
  }

  filters() {
    const choice = (outcome, text, tasks) =>
      button(`${text} ${tasks.length}`, () => go("before_after", { run: this.run, outcome }), {
        "aria-pressed": String(this.outcome === outcome),
      });
    return h(
      "div",
      { class: "tools", role: "group", "aria-label": "Outcome" },
      choice("", "all", this.tasks),
      Object.entries(OUTCOMES).map(([outcome, text]) =>
        choice(
          outcome,
          text,
          this.tasks.filter((task) => task.outcome === outcome),
        ),
      ),
    );
  }

  address(task) {
    return { run: this.run, outcome: this.outcome, env: task.environment, seed: task.seed };
  }

  move(task, direction) {
    const next = this.shown[this.shown.indexOf(task) + direction];
    if (next) go("before_after", this.address(next), { replace: true });
  }

  table(chosen) {
    const several = new Set(this.tasks.map((task) => task.environment)).size > 1;
    const name = ({ environment, one }) => (several ? `${one[0].group} ${environmentText(environment)}` : one[0].group);
    const rows = this.shown.map((task) =>
      h(
        "tr",
        { dataset: { seed: task.seed, outcome: task.outcome }, class: task === chosen ? "selected" : null },
        h("td", {}, outcomeBadge(task.outcome)),
        h("td", {}, h("a", { href: address("before_after", this.address(task)) }, name(task))),
        h("td", {}, statusBadge(task.one[0].status)),
        h("td", {}, statusBadge(task.other[0].status)),
      ),
    );
    const heading = ["Outcome", "Task", "Before", "After"].map((title) => h("th", { scope: "col" }, title));
    return h(
      "div",
      { class: "scroll tasks", tabindex: "0", role: "group", "aria-label": "Tasks" },
      h("table", { class: "list" }, h("thead", {}, h("tr", {}, heading)), h("tbody", {}, rows)),
    );
  }

  async open(task) {
    const columns = await fetchSides(this.run, task, this.signal);
    const index = this.shown.indexOf(task);
    replace(
      this.episodes,
      h(
        "div",
        { class: "tools" },
        h("h2", {}, `Task ${task.one[0].group}`),
        h("span", { class: "faint" }, `${environmentText(task.environment)} · seed ${task.seed}`),
        outcomeBadge(task.outcome),
        button("‹ Previous", () => this.move(task, -1), { disabled: index === 0, title: "k" }),
        button("Next ›", () => this.move(task, 1), { disabled: index === this.shown.length - 1, title: "j" }),
      ),
      sideBySide(columns, this.signal),
    );
  }
}

export function outcomeBadge(outcome) {
  return h(
    "span",
    { class: `state ${TONES[outcome]}` },
    h("i", { "aria-hidden": "true" }, SIGNS[outcome]),
    ` ${OUTCOMES[outcome]}`,
  );
}
