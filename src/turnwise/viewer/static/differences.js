/** The settings in which two runs differ. */

import { get } from "./api.js";
import { failure, h, note, replace } from "./dom.js";

export async function showDifferences(element, [one, other], signal) {
  try {
    const [first, second] = await Promise.all([one, other].map((run) => get("config", { run }, signal)));
    replace(element, table(one, other, first.settings, second.settings));
  } catch (error) {
    if (error.name !== "AbortError") replace(element, failure(error));
  }
}

/** A key that is broken between lines only after a dot or an underscore. */
export function settingName(key) {
  return h("code", {}, key.split(/(?<=[._])/).map((part) => [part, h("wbr")]));
}

export function valueText(value) {
  if (value === undefined) return h("span", { class: "faint" }, "not set");
  return typeof value === "string" ? value : JSON.stringify(value);
}

function table(one, other, first, second) {
  const keys = [...new Set([...Object.keys(first), ...Object.keys(second)])].sort();
  const differing = keys.filter((key) => JSON.stringify(first[key]) !== JSON.stringify(second[key]));
  if (!differing.length) return note(`All ${keys.length} settings are equal.`);
  const rows = differing.map((key) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, settingName(key)),
      h("td", {}, valueText(first[key])),
      h("td", {}, valueText(second[key])),
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
    h("h2", {}, "Different settings"),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, heading), h("tbody", {}, rows))),
    note(`The other ${keys.length - differing.length} settings are equal.`),
  );
}
