/** Which metrics come first, and how the others are grouped. */

/** A title and the names that may carry it, the best first. */
const FIRST = [
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
  ["Tokens per second", ["time/tokens_per_s"]],
];

export const EVALUATION = ["eval/success", "eval/success_low", "eval/success_high"];
export const SUCCESS = "rollout/success";

/** The first panels: [title, metric], for what the runs have. Success is there too where only evaluations know it. */
export function firstMetrics(keys) {
  const has = new Set(keys);
  const found = FIRST.map(([title, names]) => [title, names.find((name) => has.has(name))]).filter(([, name]) => name);
  if (!has.has(SUCCESS) && has.has("eval/success")) found.unshift(["Success", SUCCESS]);
  return found;
}

/** The others by what stands before the slash: [[group, [metric, ...]], ...]. */
export function otherMetrics(keys) {
  const first = new Set(firstMetrics(keys).map(([, name]) => name));
  const groups = new Map();
  for (const key of [...keys].sort()) {
    if (key === "step" || first.has(key)) continue;
    const group = key.includes("/") ? key.split("/")[0] : "other";
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(key);
  }
  const order = ["rollout", "reward", "train", "eval", "time"];
  const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  return [...groups.entries()].sort(([one], [other]) => place(one) - place(other) || one.localeCompare(other));
}

/** Shares are shown on the whole of their scale. */
export function fixedRange(metric) {
  return /(^|\/)success($|\/|_)/.test(metric) ? [0, 1] : null;
}
