/** Parts of the page of a run. */

import { fetchOutcomes, fetchSides, outcomeBadge } from "./before_after.js";
import { settingName, valueText } from "./differences.js";
import { failure, h, note, replace } from "./dom.js";
import { ago, bytes } from "./format.js";
import { collect } from "./plugins.js";
import { address } from "./router.js";
import { sideBySide } from "./side_by_side.js";

/** What the run did, in sentences under their titles. */
export function explanation(sections) {
  return sections.map(({ title, sentences }) =>
    h("div", { class: "words" }, h("h2", {}, title), h("ul", {}, sentences.map((text) => h("li", {}, text)))),
  );
}

/** A task that changed its outcome, before and after training; fetched when it is opened. */
export function beforeAndAfter(run, signal) {
  const body = h("div", {});
  const details = h("details", {}, h("summary", {}, "See a task before and after training"), body);
  const fill = async () => {
    replace(body, note("Loading …"));
    const { tasks } = await fetchOutcomes(run, signal);
    if (!tasks.length) return replace(body, note("No evaluation before and after training is recorded."));
    const [task] = tasks;
    const columns = await fetchSides(run, task, signal);
    const all = h("a", { href: address("before_after", { run }) }, `All ${tasks.length} tasks`);
    return replace(body, h("p", { class: "row" }, outcomeBadge(task.outcome), all), sideBySide(columns, signal));
  };
  details.addEventListener("toggle", () => {
    if (!details.open || body.childElementCount) return;
    fill().catch((error) => error.name === "AbortError" || replace(body, failure(error)));
  });
  return details;
}

/** Alarms, each with what to do about it; the newest first. */
export function alarmList(alarms) {
  if (!alarms.length) return null;
  const items = [...alarms].reverse().map(({ step, text, advice }) =>
    h("li", {}, h("b", {}, `step ${step} `), text, advice && h("p", { class: "advice" }, advice)),
  );
  return [h("h2", {}, alarms.length === 1 ? "Alarm" : `${alarms.length} alarms`), h("ul", { class: "alarm-list" }, items)];
}

/** What a run that was started from another changed. */
export function parentChanges(parent) {
  if (!parent) return null;
  const link = parent.id ? h("a", { href: address("run", { run: parent.id }) }, parent.name) : parent.name;
  const heading = h("h2", {}, "Changed against ", link);
  if (!parent.changes) return [heading, note("The run is not in this folder, so its settings are unknown.")];
  if (!parent.changes.length) return [heading, note("No setting differs.")];
  const rows = parent.changes.map(({ name, before, after }) => settingRow(name, after, before));
  return [heading, table(["Setting", "Value", "Before"], rows)];
}

export function checkpointTable(checkpoints, run) {
  if (!checkpoints.length) return null;
  const rows = checkpoints.map((checkpoint) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, checkpoint.name),
      h("td", {}, String(checkpoint.step)),
      h("td", {}, bytes(checkpoint.bytes)),
      h("td", {}, ago(checkpoint.modified)),
      h("td", {}, collect("checkpointTools", run, checkpoint)),
    ),
  );
  return [h("h2", {}, "Checkpoints"), table(["Name", "Step", "Size", "Saved", h("span", { class: "hidden" }, "Tools")], rows)];
}

export function settingTable(keys, settings, defaults) {
  const rows = keys.map((key) => settingRow(key, settings[key], key in defaults ? defaults[key] : "–"));
  return table(["Setting", "Value", "Default"], rows);
}

/** A value that a run lacks is null or undefined. */
function settingRow(name, value, other) {
  const cell = (each) => h("td", {}, valueText(each ?? undefined));
  return h("tr", {}, h("th", { scope: "row" }, settingName(name)), cell(value), cell(other));
}

export function table(titles, rows) {
  const headings = titles.map((title) => h("th", { scope: "col" }, title));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, headings)), h("tbody", {}, rows)));
}
