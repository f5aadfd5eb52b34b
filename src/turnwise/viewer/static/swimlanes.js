/** Who did what when in the last steps of an asynchronous or cluster run: one lane per worker. */

import { get } from "./api.js";
import { button, failure, h, note, put, replace } from "./dom.js";
import { percent } from "./format.js";
import { curveStyle } from "./palette.js";
import { table } from "./run_parts.js";

const STEPS = 4;
/** Activities in which a worker only waits are drawn as an outline. */
const WAITING = /^(wait|is replaced)/;
/** Activities from this one on share a colour. */
const OTHERS = 6;
const STEP = /^step \d+$/;

/** A section of the run's page that shows itself once there is something to show. */
export class Swimlanes {
  constructor(run, signal) {
    Object.assign(this, { run, signal, last: null });
    this.element = h("section", { class: "card swimlanes", hidden: true });
    this.body = h("div", {});
  }

  /** Show the steps up to `this.last`; null follows the newest. */
  async update() {
    try {
      const query = { run: this.run, count: STEPS, last: this.last };
      const answer = await get("spans", query, this.signal);
      if (this.signal.aborted) return;
      this.element.hidden = !answer.lanes.length;
      if (answer.lanes.length) this.show(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.element.hidden = false;
      replace(this.element, h("h2", {}, "Who did what"), failure(error));
    }
  }

  show(answer) {
    this.answer = answer;
    const opened = this.element.querySelector("details")?.open;
    const focused = document.activeElement?.dataset?.swim;
    const [from, to] = [answer.steps[0], answer.steps.at(-1)];
    const title = from === to ? `step ${from}` : `steps ${from} to ${to}`;
    const move = (label, name, last, isEnd) =>
      button(label, () => this.go(last), { class: "tiny", "aria-label": name, disabled: isEnd, dataset: { swim: name } });
    replace(
      this.element,
      h(
        "div",
        { class: "row" },
        h("h2", {}, `Who did what: ${title}`),
        move("‹", "Earlier steps", from - 1, from <= answer.first),
        move("›", "Later steps", to + STEPS >= answer.last ? null : to + STEPS, to >= answer.last),
      ),
      legend(answer),
      h("div", { class: "scroll lanes", role: "img", "aria-label": describe(answer), tabindex: "0" }, drawing(answer)),
      h("details", { open: opened }, h("summary", {}, "As a table"), shares(answer)),
    );
    if (focused) this.element.querySelector(`[data-swim="${focused}"]`)?.focus();
  }

  go(last) {
    this.last = last;
    return this.update();
  }

  redraw() {
    if (this.answer) this.show(this.answer);
  }
}

/** Seconds by activity of a lane. */
function totals(lane) {
  const seconds = new Map();
  for (const [activity, start, end] of lane.spans) seconds.set(activity, (seconds.get(activity) ?? 0) + end - start);
  return seconds;
}

/** Share of the time in which a lane worked. */
function busyShare(lane, seconds) {
  const work = [...totals(lane)].filter(([activity]) => !WAITING.test(activity));
  return seconds ? Math.min(1, work.reduce((sum, [, spent]) => sum + spent, 0) / seconds) : 0;
}

function describe({ lanes, seconds }) {
  const parts = lanes.map((lane) => `${lane.name} worked ${percent(busyShare(lane, seconds))}`);
  return `Of ${seconds.toFixed(1)} s: ${parts.join(", ")}. The table below has the activities.`;
}

/** Activities besides rollouts and waiting, the longest first: the first ones get a colour each. */
function activitiesOf(lanes) {
  const seconds = new Map();
  for (const lane of lanes)
    for (const [activity, spent] of totals(lane))
      if (!STEP.test(activity) && !WAITING.test(activity)) seconds.set(activity, (seconds.get(activity) ?? 0) + spent);
  return [...seconds.keys()].sort((one, other) => seconds.get(other) - seconds.get(one));
}

function styleOf(activity, activities) {
  if (WAITING.test(activity)) return { class: "waits" };
  if (STEP.test(activity)) return { class: Number(activity.slice(5)) % 2 ? "odd" : "even" };
  return { class: "works", style: { background: curveStyle(Math.min(activities.indexOf(activity), OTHERS)).colour } };
}

function legend({ lanes }) {
  const activities = activitiesOf(lanes);
  const waits = lanes.some((lane) => lane.spans.some(([activity]) => WAITING.test(activity)));
  const items = activities.slice(0, OTHERS).map((name) => [name, styleOf(name, activities)]);
  const others = activities.slice(OTHERS);
  if (others.length) items.push([others.join(", "), styleOf(others[0], activities)]);
  if (waits) items.push(["waiting or being replaced", { class: "waits" }]);
  return h("ul", { class: "lane-legend" }, items.map(([name, style]) => h("li", {}, h("i", style), name)));
}

/** Draw lanes as boxes, so that names stay text and the drawing follows the width of the page. */
function drawing({ lanes, seconds }) {
  const activities = activitiesOf(lanes);
  const at = (value) => `${((100 * value) / (seconds || 1)).toFixed(3)}%`;
  const rows = lanes.map((lane) => {
    const boxes = lane.spans.map(([activity, start, end]) => {
      const { style, ...rest } = styleOf(activity, activities);
      const title = `${activity}: ${(end - start).toFixed(2)} s, from ${start.toFixed(2)} s`;
      const place = { left: at(start), width: at(end - start) };
      return h("i", { ...rest, title, style: { ...style, ...place } }, STEP.test(activity) && activity);
    });
    return [h("b", {}, lane.name), h("div", { class: "lane" }, boxes)];
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) =>
    h("span", { style: { left: `${100 * share}%` } }, `${(share * seconds).toFixed(1)} s`),
  );
  return put(h("div", { class: "lane-grid" }), rows, h("b", {}), h("div", { class: "lane-axis" }, ticks));
}

function shares({ lanes, seconds }) {
  if (!seconds) return note("No time is recorded.");
  const rows = lanes.flatMap((lane) =>
    [...totals(lane)].map(([activity, spent]) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, lane.name),
        h("td", {}, activity),
        h("td", {}, spent.toFixed(2)),
        h("td", {}, percent(spent / seconds)),
      ),
    ),
  );
  return table(["Lane", "Activity", "Seconds", "Share of the time"], rows);
}
