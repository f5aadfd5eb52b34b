/** Scales from numbers to pixels, and their ticks. */

import { short } from "./format.js";

export function linear(from, to, start, end) {
  const span = to - from || 1;
  const map = (value) => start + ((value - from) / span) * (end - start);
  return {
    from,
    to,
    map,
    invert: (pixel) => from + ((pixel - start) / (end - start)) * span,
    ticks: (count) => linearTicks(from, to, count),
  };
}

export function logarithmic(from, to, start, end) {
  const low = Math.log10(from);
  const span = Math.log10(to) - low || 1;
  const map = (value) => (value > 0 ? start + ((Math.log10(value) - low) / span) * (end - start) : NaN);
  return {
    from,
    to,
    map,
    invert: (pixel) => 10 ** (low + ((pixel - start) / (end - start)) * span),
    ticks: (count) => logTicks(from, to, count),
  };
}

/** Return round numbers in a range, about `count` of them. */
function linearTicks(from, to, count) {
  const raw = (to - from) / Math.max(1, count);
  if (!(raw > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw * 0.999);
  const first = Math.ceil(from / size - 1e-9);
  const found = [];
  for (let index = first; index * size <= to + size * 1e-9; index++) found.push(Number((index * size).toPrecision(12)));
  return found;
}

function logTicks(from, to, count) {
  const low = Math.floor(Math.log10(from));
  const high = Math.ceil(Math.log10(to));
  const every = Math.max(1, Math.ceil((high - low) / count));
  const factors = high - low <= 2 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = low; power <= high; power += every) {
    for (const factor of factors) found.push(factor * 10 ** power);
  }
  return found.map((each) => Number(each.toPrecision(12))).filter((each) => each >= from * 0.999 && each <= to * 1.001);
}

export function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e9) return size >= 1e6 ? `${short(value / 1e6)}M` : `${short(value / 1e3)}k`;
  const text = short(value);
  return text.length > 6 ? value.toExponential().replace("-", "−") : text;
}

export function shareText(value) {
  return `${short(100 * value)} %`;
}

/** Return the range of an axis with a margin: not below 0 unless a value is, nor for shares above 1.
    `fixed`: a range that it must include. */
export function padded(low, high, { log, fixed, unit }) {
  const share = unit === "share";
  if (fixed && !log) return [Math.min(low, fixed[0]), Math.max(high, fixed[1])];
  if (!(low <= high)) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
  if (low === 0 && high === 0) return [0, share ? 0.1 : 1];
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1;
  const from = low < 0 ? low - margin : Math.max(0, low - margin);
  return [from, share && high <= 1 ? Math.min(1, high + margin) : high + margin];
}
