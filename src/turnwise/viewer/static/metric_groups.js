/** The main metrics, groups of the others, and how each is drawn: all from record/metrics.toml. */

import { METRICS } from "./metric_catalogue.js";

const PATTERNS = METRICS.map((metric) => [new RegExp(`^${metric.pattern}$`), metric]);
const NONE = { unit: "", evaluations: [], range: null };
const GROUPS = [...new Set(METRICS.filter(({ title }) => !title).map(({ name }) => groupOf(name)))];

/** Return what is known of a metric: {unit, evaluations, range}. */
export function describe(name) {
  return PATTERNS.find(([pattern]) => pattern.test(name))?.[1] ?? NONE;
}

/** Return [title, name] of the main panels. One is shown even if only evaluations have it. */
export function mainMetrics(keys) {
  const has = new Set(keys);
  const isRecorded = ({ name, evaluations }) => [name, ...evaluations].some((key) => has.has(key));
  return METRICS.filter((metric) => metric.title && isRecorded(metric)).map(({ title, name }) => [title, name]);
}

/** Return the other metrics by the part before the slash: [[group, [metric, ...]], ...]. */
export function otherMetrics(keys) {
  const first = new Set(mainMetrics(keys).map(([, name]) => name));
  const groups = new Map();
  for (const key of [...keys].sort()) {
    if (key === "step" || first.has(key)) continue;
    const group = groupOf(key);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(key);
  }
  const rank = (name) => (GROUPS.includes(name) ? GROUPS.indexOf(name) : GROUPS.length);
  return [...groups.entries()].sort(([one], [other]) => rank(one) - rank(other) || one.localeCompare(other));
}

function groupOf(name) {
  return name.includes("/") ? name.split("/")[0] : "other";
}
