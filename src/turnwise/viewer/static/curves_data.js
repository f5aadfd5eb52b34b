/** Data of the curves view: metrics of several runs, and the plots made from them. */

import { get } from "./api.js";
import { describe } from "./metric_groups.js";
import { curveStyle } from "./palette.js";
import { meanAndRange, seriesOf, smooth } from "./series.js";

export class CurvesData {
  constructor(runs, signal) {
    Object.assign(this, { runs, signal, keys: [], settings: new Map(), alarms: [], feeds: [] });
  }

  async start() {
    const getAll = (name) => Promise.all(this.runs.map((run) => get(name, { run }, this.signal)));
    const [keys, configs] = await Promise.all([getAll("keys"), getAll("config")]);
    this.keys = [...new Set(keys.flatMap((answer) => answer.keys))];
    this.runs.forEach((run, index) => this.settings.set(run, configs[index].settings));
    await this.updateAlarms();
  }

  async updateAlarms() {
    const answers = await Promise.all(this.runs.map((run) => get("alarms", { run }, this.signal)));
    const several = this.runs.length > 1;
    this.alarms = answers.flatMap(({ alarms }, index) =>
      alarms.map((alarm) => ({ ...alarm, run: several ? this.runs[index] : "" })),
    );
  }

  /** Fetch further metrics of all runs. */
  async load(metrics) {
    const keys = new Set(metrics.flatMap((metric) => [metric, ...describe(metric).evaluations]));
    const missing = [...keys].filter((key) => !this.feeds.some((feed) => feed.keys.includes(key)));
    if (!missing.length) return;
    const feeds = this.runs.map((run) => new Feed(run, missing));
    await Promise.all(feeds.map((feed) => feed.update(this.signal)));
    this.feeds.push(...feeds);
  }

  /** Fetch new rows of the given runs and return the names of the metrics that changed. */
  async update(runs) {
    const changed = new Set();
    const feeds = this.feeds.filter((feed) => runs.has(feed.run));
    await Promise.all(
      feeds.map(async (feed) => (await feed.update(this.signal)) && feed.keys.forEach((key) => changed.add(key))),
    );
    if (changed.size) await this.updateAlarms();
    for (const key of feeds.flatMap((feed) => feed.keys))
      if (describe(key).evaluations.some((evaluation) => changed.has(evaluation))) changed.add(key);
    return changed;
  }

  series(run, key) {
    const feed = this.feeds.find((each) => each.run === run && each.keys.includes(key));
    return feed ? feed.series(key) : { x: [], y: [] };
  }

  /** Return the first and last step of all loaded metrics. */
  range() {
    let last = 1;
    let first = Infinity;
    for (const { columns } of this.feeds) {
      const steps = columns.step ?? [];
      if (!steps.length) continue;
      first = Math.min(first, steps[0]);
      last = Math.max(last, steps.at(-1));
    }
    return [first === Infinity ? 0 : first, last];
  }

  /** Return the plot of a metric. `view`: {smoothing, log, seeds, from, to}. */
  plot(metric, view) {
    const { unit, evaluations, range } = describe(metric);
    const groups = this.groups(view.seeds);
    const curves = groups
      .map((group, index) => this.curve(group, index, metric, view))
      .filter((curve) => curve.x.length);
    return {
      curves,
      points: evaluations.length ? this.evaluations(groups, evaluations) : [],
      from: view.from,
      to: view.to,
      log: view.log,
      fixed: range,
      unit,
    };
  }

  /** Return groups of runs, each drawn as one curve; the index of a group selects its colour. */
  groups(seeds) {
    return seeds ? groupBySettings(this.runs, this.settings) : this.runs.map((run) => [run]);
  }

  curve(group, index, metric, view) {
    const style = curveStyle(index);
    const raw = group.map((run) => this.series(run, metric));
    if (group.length > 1)
      return {
        name: commonName(group),
        ...meanAndRange(raw.map((each) => smooth(each, view.smoothing))),
        faint: null,
        ...style,
      };
    return { name: group[0], ...smooth(raw[0], view.smoothing), faint: view.smoothing ? raw[0] : null, ...style };
  }

  /** `metrics`: names of the success and of the ends of its interval. */
  evaluations(groups, metrics) {
    return this.runs.flatMap((run, index) => {
      const { colour } = curveStyle(groups.findIndex((group) => group.includes(run)));
      const [middle, low, high] = metrics.map((key) => this.series(run, key));
      const at = (series, step) => series.y[series.x.indexOf(step)] ?? null;
      return middle.x.map((x, row) => ({
        run,
        x,
        y: middle.y[row],
        low: at(low, x),
        high: at(high, x),
        colour,
        shift: Math.max(-6, Math.min(6, 4 * (index - (this.runs.length - 1) / 2))),
      }));
    });
  }

  /** Return the stored numbers of a panel, for CSV. */
  parts(metric) {
    const metrics = [metric, ...describe(metric).evaluations];
    return this.runs.flatMap((run) => metrics.map((each) => ({ run, metric: each, ...this.series(run, each) })));
  }
}

/** Some metrics of one run, with the rows added while it is running. */
class Feed {
  constructor(run, keys) {
    this.run = run;
    this.keys = keys;
    this.columns = {};
    this.seriesByKey = new Map(); // cleared when the columns change
    this.next = 0;
    this.generation = null; // changes when the file no longer contains the rows fetched so far
  }

  /** Fetch new rows and return whether there were any. */
  async update(signal) {
    const keys = ["step", ...this.keys.filter((key) => key !== "step")].join(",");
    const answer = await get("metrics", { run: this.run, after: this.next, keys, generation: this.generation }, signal);
    if (answer.reset) this.columns = {};
    const fresh = answer.columns.step?.length ?? 0;
    if (fresh || answer.reset) this.seriesByKey.clear();
    for (const key of ["step", ...this.keys]) {
      const column = (this.columns[key] ??= []);
      const values = answer.columns[key] ?? new Array(fresh).fill(null);
      for (const value of values) column.push(value);
    }
    this.next = answer.next;
    this.generation = answer.generation;
    return fresh > 0 || answer.reset === true;
  }

  series(key) {
    if (!this.seriesByKey.has(key)) this.seriesByKey.set(key, seriesOf(this.columns, key));
    return this.seriesByKey.get(key);
  }
}

/** Settings that may differ between runs of the same experiment. */
const SEED_SETTINGS = /^(seed|record\.name|record\.folder|system\.threads)$/;

/** Group runs that differ only in their seed: [[run, ...], ...] in the order of the runs. */
function groupBySettings(runs, settings) {
  const groups = new Map();
  for (const run of runs) {
    const compared = Object.entries(settings.get(run) ?? { run }).filter(([key]) => !SEED_SETTINGS.test(key));
    const key = JSON.stringify(compared.sort(([one], [other]) => (one < other ? -1 : 1)));
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(run);
  }
  return [...groups.values()];
}

/** Return a name for several runs: their common prefix. */
function commonName(runs) {
  if (runs.length === 1) return runs[0];
  let length = 0;
  while (runs.every((run) => length < run.length && run[length] === runs[0][length])) length += 1;
  const name = runs[0].slice(0, length).replace(/[-_./ ]*(seed)?[-_./ ]*$/, "");
  return `${name || runs[0]} (mean of ${runs.length} seeds)`;
}
