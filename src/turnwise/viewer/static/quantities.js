/** The quantities that tokens can be coloured by, and how they look with and without colour. */

import { short, signed } from "./format.js";

const at = (values, index) => (values === null || values === undefined ? null : (values[index] ?? null));

/** Return the stored numbers of a sampled token; null for those that were not recorded. */
export function numbersOf(turn, index) {
  const sampler = at(turn.action_logprobs, index);
  const learner = at(turn.learner_logprobs, index);
  return {
    advantage: at(turn.advantages, index),
    logprob: sampler,
    learner_logprob: learner,
    difference: sampler === null || learner === null ? null : Number(learner) - Number(sampler),
    entropy: at(turn.entropies, index),
    mask: at(turn.loss_mask, index),
  };
}

const BLUE = [0, 114, 178];
const VERMILLION = [213, 94, 0];
const AMBER = [214, 140, 0];
const GREEN = [0, 140, 100];
const BRIGHT = {
  [BLUE]: [86, 180, 233],
  [VERMILLION]: [255, 128, 60],
  [AMBER]: [240, 190, 60],
  [GREEN]: [44, 199, 155],
};

/** name -> title, meaning, and `paint(value, limit)`, which returns {colour, size from 0 to 1, below: less than 0}. */
export const QUANTITIES = {
  advantage: {
    title: "Advantage",
    meaning: "solid underline: above zero, dotted: below zero",
    twoSided: true,
    paint: diverging,
  },
  logprob: {
    title: "Log-probability",
    meaning: "under the sampler; stronger colour: less likely token",
    paint: (value, limit) => ({ colour: AMBER, size: strength(value, limit), below: false }),
  },
  entropy: {
    title: "Entropy",
    meaning: "of the sampling distribution; stronger colour: less certain",
    paint: (value, limit) => ({ colour: GREEN, size: strength(value, limit), below: false }),
  },
  difference: {
    title: "Sampler-learner difference",
    meaning: "learner's log-probability minus the sampler's; solid underline: above zero, dotted: below zero",
    twoSided: true,
    paint: diverging,
  },
  mask: {
    title: "Loss mask",
    meaning: "solid underline: in the loss; dotted and struck through: masked out",
    paint: (value) =>
      Number(value) ? { colour: BLUE, size: 0.55, below: false } : { colour: VERMILLION, size: 0, below: true },
  },
};

function strength(value, limit) {
  return Math.min(1, Math.abs(Number(value)) / (limit || 1));
}

function diverging(value, limit) {
  const below = Number(value) < 0;
  return { colour: below ? VERMILLION : BLUE, size: strength(value, limit), below };
}

/** Return {count, low, high, mean, limit} of a quantity. `limit` gets the strongest colour and ignores outliers. */
export function rangeOf(turns, name) {
  const values = [];
  for (const turn of turns) {
    for (let index = 0; index < turn.action_ids.length; index++) {
      const value = numbersOf(turn, index)[name];
      if (value !== null && Number.isFinite(Number(value))) values.push(Number(value));
    }
  }
  if (!values.length) return { count: 0, low: null, high: null, mean: null, limit: 1 };
  values.sort((one, other) => one - other);
  const sizes = values.map(Math.abs).sort((one, other) => one - other);
  const limit =
    sizes[values.length < 50 ? values.length - 1 : Math.floor(0.98 * (values.length - 1))] || sizes.at(-1) || 1;
  return {
    count: values.length,
    low: values[0],
    high: values.at(-1),
    mean: values.reduce((sum, each) => sum + each, 0) / values.length,
    limit,
  };
}

/** Return the style of a value: fill, and an underline whose thickness shows the size; dotted means below zero. */
export function styleOf(name, value, limit, dark) {
  if (value === null || value === undefined) return null;
  const { colour, size, below } = QUANTITIES[name].paint(value, limit);
  const [red, green, blue] = dark ? BRIGHT[colour] : colour;
  const fill = Number.isNaN(size) ? 0 : size;
  const thickness = Math.max(1, Math.round(4 * fill));
  return {
    // In the dark the colours are bright: the text on them stays readable.
    background: `rgba(${red}, ${green}, ${blue}, ${(0.06 + (dark ? 0.3 : 0.5) * fill).toFixed(3)})`,
    "border-bottom": `${thickness}px ${below ? "dotted" : "solid"} rgb(${red}, ${green}, ${blue})`,
  };
}

/** Return the values to show in the legend. */
export function legendValues(name, limit) {
  if (name === "mask") return [1, 0];
  return QUANTITIES[name].twoSided
    ? [-limit, -limit / 2, 0, limit / 2, limit]
    : [0, limit / 4, limit / 2, limit].map((value) => (name === "logprob" ? -value : value));
}

export function valueText(name, value) {
  if (name === "mask") return Number(value) ? "in the loss" : "masked out";
  return QUANTITIES[name].twoSided ? signed(value) : short(value);
}
