/** Series {x, y} with ascending x: smoothing, thinning for the screen, mean over seeds. */

const NOT_FINITE = new Set(["NaN", "Infinity", "-Infinity"]);

/** Return the points of a metric. Rows without a number are left out; non-finite numbers become gaps. */
export function seriesOf(columns, key) {
  const steps = columns.step ?? [];
  const values = columns[key] ?? [];
  const x = [];
  const y = [];
  for (let row = 0; row < steps.length; row++) {
    const value = values[row];
    if (typeof value !== "number" && !NOT_FINITE.has(value)) continue;
    x.push(steps[row]);
    y.push(typeof value === "number" ? value : NaN);
  }
  return { x, y };
}

/** Return the bias-corrected exponential moving average. `weight`: of the past; 0 returns the series itself. */
export function smooth(series, weight) {
  if (!weight) return series;
  const cached = smoothed.get(series);
  if (cached?.weight === weight) return cached.result;
  const result = { x: series.x, y: movingAverage(series.y, weight) };
  smoothed.set(series, { weight, result });
  return result;
}

const smoothed = new WeakMap(); // the last result per series, so that zooming does not recompute it

function movingAverage(y, weight) {
  let sum = 0;
  let total = 0;
  return y.map((value) => {
    if (Number.isNaN(value)) return NaN;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

/** Return the mean, minimum and maximum of several series at each step. */
export function meanAndRange(list) {
  const at = new Map();
  for (const { x, y } of list) {
    for (let index = 0; index < x.length; index++) {
      if (Number.isNaN(y[index])) continue;
      const found = at.get(x[index]);
      if (!found) at.set(x[index], { sum: y[index], count: 1, low: y[index], high: y[index] });
      else {
        found.sum += y[index];
        found.count += 1;
        found.low = Math.min(found.low, y[index]);
        found.high = Math.max(found.high, y[index]);
      }
    }
  }
  const x = [...at.keys()].sort((one, other) => one - other);
  const rows = x.map((step) => at.get(step));
  return {
    x,
    y: rows.map((row) => row.sum / row.count),
    low: rows.map((row) => row.low),
    high: rows.map((row) => row.high),
  };
}

/** Return the first index with x >= `step`. */
export function lowerBound(x, step) {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the index of the point nearest to a step, or -1. */
export function nearest(x, step) {
  if (!x.length) return -1;
  const after = Math.min(lowerBound(x, step), x.length - 1);
  return after > 0 && step - x[after - 1] <= x[after] - step ? after - 1 : after;
}

/** Return the indices to draw between two x: first, lowest, highest and last of each pixel, and one beyond each end. */
export function thin({ x, y }, from, to, pixels) {
  const begin = Math.max(0, lowerBound(x, from) - 1);
  const end = Math.min(x.length, lowerBound(x, to) + 1);
  const all = [];
  if (end - begin <= 4 * pixels) {
    for (let index = begin; index < end; index++) all.push(index);
    return all;
  }
  const width = (to - from) / pixels || 1;
  for (let index = begin; index < end; ) {
    const bucket = Math.floor((x[index] - from) / width);
    const kept = new Set([index]);
    let low = index;
    let high = index;
    let last = index;
    for (; index < end && Math.floor((x[index] - from) / width) === bucket; index++) {
      if (Number.isNaN(y[index])) kept.add(index);
      else {
        if (!(y[index] >= y[low])) low = index;
        if (!(y[index] <= y[high])) high = index;
      }
      last = index;
    }
    kept.add(low).add(high).add(last);
    all.push(...[...kept].sort((one, other) => one - other));
  }
  return all;
}

/** Return the means of equal parts of a range; parts without points are left out. */
export function averaged({ x, y }, from, to, parts) {
  const width = (to - from) / parts || 1;
  const end = lowerBound(x, to + 1e-9);
  const steps = [];
  const means = [];
  for (let index = lowerBound(x, from); index < end; ) {
    const bucket = Math.floor((x[index] - from) / width);
    const start = index;
    let sum = 0;
    let count = 0;
    for (; index < end && Math.floor((x[index] - from) / width) === bucket; index++) {
      if (Number.isNaN(y[index])) continue;
      sum += y[index];
      count += 1;
    }
    steps.push((x[start] + x[index - 1]) / 2);
    means.push(count ? sum / count : NaN);
  }
  return { x: steps, y: means };
}
