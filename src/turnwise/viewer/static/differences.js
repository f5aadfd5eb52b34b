/** Where the settings of two runs differ. */

import { get } from "./api.js";
import { failure, h, note, replace } from "./dom.js";

export async function differences(place, [one, other], signal) {
  try {
    const [first, second] = await Promise.all([one, other].map((run) => get("config", { run }, signal)));
    replace(place, table(one, other, first.settings, second.settings));
  } catch (error) {
    if (error.name !== "AbortError") replace(place, failure(error));
  }
}

function shown(value) {
  if (value === undefined) return h("span", { class: "faint" }, "not set");
  return typeof value === "string" ? value : JSON.stringify(value);
}

function table(one, other, first, second) {
  const keys = [...new Set([...Object.keys(first), ...Object.keys(second)])].sort();
  const differing = keys.filter((key) => JSON.stringify(first[key]) !== JSON.stringify(second[key]));
  const same = `${keys.length - differing.length} settings are equal.`;
  if (!differing.length) return note(`The settings do not differ: ${same}`);
  const rows = differing.map((key) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("code", {}, key)),
      h("td", {}, shown(first[key])),
      h("td", {}, shown(second[key])),
    ),
  );
  const heading = h(
    "tr",
    {},
    h("th", { scope: "col" }, "Setting"),
    h("th", { scope: "col" }, one),
    h("th", { scope: "col" }, other),
  );
  return h(
    "section",
    { class: "card differences" },
    h("h2", {}, "Differences of their settings"),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, heading), h("tbody", {}, rows))),
    note(same),
  );
}
