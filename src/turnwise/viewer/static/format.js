/** Formatting of numbers. Non-finite numbers are stored as text, which `Number` parses. */

/** Format with at most four significant digits. */
export function short(value) {
  if (value === null || value === undefined || value === "") return "–";
  const number = Number(value);
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  if (number === 0) return "0";
  const size = Math.abs(number);
  const text =
    size >= 1e6 || size < 1e-4 ? number.toExponential(2) : String(Number(number.toPrecision(size >= 1000 ? 6 : 4)));
  return text.replace("-", "−");
}

/** Format with a sign, for rewards and advantages. */
export function signed(value) {
  const text = short(value);
  return Number(value) > 0 ? `+${text}` : text;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  const units = [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ];
  const unit = units.find(([size]) => value >= size * 10);
  return unit ? `${Number((value / unit[0]).toPrecision(3))} ${unit[1]}` : String(value);
}

export function bytes(value) {
  const units = [
    [1 << 30, "GiB"],
    [1 << 20, "MiB"],
    [1 << 10, "KiB"],
  ];
  const unit = units.find(([size]) => value >= size);
  return unit ? `${Number((value / unit[0]).toPrecision(3))} ${unit[1]}` : `${value} B`;
}

export function energy(wattHours) {
  return wattHours >= 1000 ? `${short(wattHours / 1000)} kWh` : `${short(wattHours)} Wh`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * Number(value)).toFixed(1)} %`;
}

const amount = (value) => (Math.abs(value) >= 1e4 ? count(value) : short(value));
const UNIT_FORMATS = { share: percent, count: amount, "1/s": amount };

/** Format a number of a metric with this unit of record/metrics.toml. */
export function formatMetric(value, unit) {
  return (UNIT_FORMATS[unit] ?? short)(value);
}

/** Plain words for the statuses of trajectories; others are shown as stored. */
const STATUS_WORDS = {
  truncated_turns: "out of turns",
  truncated_tokens: "out of tokens",
  truncated_time: "out of time",
  truncated_limit: "cut by the data's time limit",
};

export function statusText(status) {
  return STATUS_WORDS[status] ?? String(status).replaceAll("_", " ");
}

/** Return an environment's name; of a path such as /home/me/coin.py:Coin only the part after the last slash. */
export function environmentText(name) {
  return String(name).replace(/^\/.*\/(?=.)/s, "");
}

/** Words for the parts of a run that episodes come from; "" is training. */
const EPISODE_WORDS = { "": "training", before: "before training", after: "after training" };

export function episodesText(evaluation) {
  return EPISODE_WORDS[evaluation ?? ""] ?? evaluation;
}

/** "Tap" on a touch screen, "Click" elsewhere. */
export function clickWord() {
  return matchMedia("(pointer: coarse)").matches ? "Tap" : "Click";
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** Format a time as its distance from now; `updated`: seconds since 1970. */
export function ago(updated, now = Date.now() / 1000) {
  if (updated === null || updated === undefined) return "–";
  const seconds = Math.max(0, now - updated);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(updated * 1000).toISOString().slice(0, 10);
}

export function mean(values) {
  const numbers = (values ?? []).map(Number).filter(Number.isFinite);
  return numbers.length ? numbers.reduce((sum, each) => sum + each, 0) / numbers.length : null;
}

/** Return {text, special} of a token id, or undefined. Ids below 0 are tokens of images, which have no text. */
export function nameToken(id, vocabulary) {
  return Number(id) < 0 ? { text: "[image]", special: true } : vocabulary[id];
}
