/** The main metrics, and groups of the others. The report's are in report/metric_charts.py. */

/** Titles, and the metrics that can be shown under each, preferred first. */
const MAIN_METRICS = [
  ["Success", ["rollout/success"]],
  ["Reward", ["rollout/reward"]],
  ["Loss", ["train/loss"]],
  ["Response length", ["rollout/response_tokens"]],
  ["Entropy", ["train/entropy"]],
  ["KL to reference", ["train/kl"]],
  ["KL of update", ["train/approx_kl"]],
  ["Clip fraction", ["train/clip_fraction"]],
  ["Gradient norm", ["train/grad_norm"]],
  ["Mismatch", ["train/mismatch"]],
  ["Off-policy KL", ["train/offpolicy_kl_k3"]],
  ["Variance explained by Q", ["train/q_explained"]],
  ["Variance explained by V", ["train/v_explained"]],
  ["Overestimation: mean of Q − return", ["train/overestimation"]],
  ["Trust in the critic", ["train/critic_trust"]],
  ["Target drift", ["train/target_drift"]],
  ["Effective sample share", ["train/effective_samples"]],
  ["Tokens per second", ["time/tokens_per_s"]],
  ["Dropped episodes", ["rollout/dropped"]],
];

export const EVALUATION = ["eval/success", "eval/success_low", "eval/success_high"];
export const SUCCESS = "rollout/success";

/** Return [title, metric] of the main panels. Success is shown even if only evaluations have it. */
export function mainMetrics(keys) {
  const has = new Set(keys);
  const found = MAIN_METRICS.map(([title, names]) => [title, names.find((name) => has.has(name))]).filter(
    ([, name]) => name,
  );
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

const SHARES = new RegExp(
  "(^|/)(success|success_low|success_high|pass_at_\\d+|invalid|cut|length_stops|failed|truncated_\\w+|calls_failed|" +
    "zero_std_groups|kept_share|copies|clip_fraction|effective_samples|critic_trust)(/|$)",
);

/** Return whether a metric is a share from 0 to 1, which is shown in percent. */
export function isShare(metric) {
  return SHARES.test(metric);
}

/** Return the minimum range of the y axis: success rates always show 0 to 1. */
export function fixedRange(metric) {
  return /(^|\/)success($|\/|_)/.test(metric) ? [0, 1] : null;
}
