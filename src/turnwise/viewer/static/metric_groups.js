/** The main metrics, and groups of the others. They are chosen in record/catalogue.py. */

import { METRICS } from "./metric_catalogue.js";

export const EVALUATION = ["eval/success", "eval/success_low", "eval/success_high"];
export const SUCCESS = "rollout/success";

/** Return [title, metric] of the main panels. Success is shown even if only evaluations have it. */
export function mainMetrics(keys) {
  const has = new Set(keys);
  const found = METRICS.filter((metric) => metric.title && has.has(metric.name)).map(({ title, name }) => [title, name]);
  if (!has.has(SUCCESS) && has.has("eval/success")) found.unshift(["Success", SUCCESS]);
  return found;
}

/** Return the other metrics by the part before the slash: [[group, [metric, ...]], ...]. */
export function otherMetrics(keys) {
  const first = new Set(mainMetrics(keys).map(([, name]) => name));
  const groups = new Map();
  for (const key of [...keys].sort()) {
    if (key === "step" || first.has(key)) continue;
    const group = key.includes("/") ? key.split("/")[0] : "other";
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(key);
  }
  const order = ["rollout", "reward", "train", "eval", "time"];
  const rank = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  return [...groups.entries()].sort(([one], [other]) => rank(one) - rank(other) || one.localeCompare(other));
}

const SHARES = METRICS.filter((metric) => metric.unit === "share").map(({ pattern }) => new RegExp(`^${pattern}$`));

/** Return whether a metric is a share from 0 to 1, which is shown in percent. Stored episodes' are as those played. */
export function isShare(metric) {
  const name = metric.replace(/^data\//, "rollout/");
  return SHARES.some((pattern) => pattern.test(name));
}

/** Return the minimum range of the y axis: success rates always show 0 to 1. */
export function fixedRange(metric) {
  return /(^|\/)success($|\/|_)/.test(metric) ? [0, 1] : null;
}
