/** Numbers over steps: smoothing, thinning for the screen, the mean over seeds. A series is {x, y}, x ascending. */

const NOT_FINITE = new Set(["NaN", "Infinity", "-Infinity"]);

/** The points of a metric: rows that lack it, or have text, are left out; what is not finite becomes a gap. */
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

/** An exponential moving average that starts unbiased. `weight` of the past: 0 leaves the series as it is. */
export function smooth(series, weight) {
  if (!weight) return series;
  const kept = smoothed.get(series);
  if (kept?.weight === weight) return kept.result;
  const result = { x: series.x, y: movingAverage(series.y, weight) };
  smoothed.set(series, { weight, result });
  return result;
}

const smoothed = new WeakMap(); // the last result of each series: a zoom need not compute it again

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

/** The mean of several series where they have a step, and the lowest and highest of them. */
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

/** The first index whose x is at least `step`. */
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

/** The index of the point nearest to a step, or -1. */
export function nearest(x, step) {
  if (!x.length) return -1;
  const after = Math.min(lowerBound(x, step), x.length - 1);
  return after > 0 && step - x[after - 1] <= x[after] - step ? after - 1 : after;
}

/** What to draw between two x, as indices: each pixel's first, lowest, highest and last, and one beyond each side. */
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

/** A series of the means of equal parts of a range; parts without a point are left out. */
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
