/** The numbers behind the curves view: feeds of several runs, and plots made of them. */

import { get } from "./api.js";
import { Feed } from "./feed.js";
import { EVALUATION, SUCCESS, fixedRange } from "./metric_groups.js";
import { look } from "./palette.js";
import { meanAndRange, smooth } from "./series.js";
import { bySettings, commonName } from "./seeds.js";

export class CurvesData {
  constructor(runs, signal) {
    Object.assign(this, { runs, signal, keys: [], settings: new Map(), alarms: [], feeds: [] });
  }

  async start() {
    const of = (name) => Promise.all(this.runs.map((run) => get(name, { run }, this.signal)));
    const [keys, configs] = await Promise.all([of("keys"), of("config")]);
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

  /** Fetches further metrics of all runs. */
  async load(metrics) {
    const wanted = new Set(metrics);
    if (wanted.has(SUCCESS)) EVALUATION.forEach((key) => wanted.add(key));
    const missing = [...wanted].filter((key) => !this.feeds.some((feed) => feed.keys.includes(key)));
    if (!missing.length) return;
    const feeds = this.runs.map((run) => new Feed(run, missing));
    await Promise.all(feeds.map((feed) => feed.update(this.signal)));
    this.feeds.push(...feeds);
  }

  /** What is new of the runs named; answers the metrics that changed. */
  async update(runs) {
    const changed = new Set();
    const due = this.feeds.filter((feed) => runs.has(feed.run));
    await Promise.all(
      due.map(async (feed) => (await feed.update(this.signal)) && feed.keys.forEach((key) => changed.add(key))),
    );
    if (changed.size) await this.updateAlarms();
    if (EVALUATION.some((key) => changed.has(key))) changed.add(SUCCESS);
    return changed;
  }

  series(run, key) {
    const feed = this.feeds.find((each) => each.run === run && each.keys.includes(key));
    return feed ? feed.series(key) : { x: [], y: [] };
  }

  /** The first and last step of all that is loaded. */
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

  /** `viewer`: {smoothing, log, seeds, from, to}. */
  plot(metric, view) {
    const groups = this.groups(view.seeds);
    const curves = groups
      .map((group, place) => this.curve(group, place, metric, view))
      .filter((curve) => curve.x.length);
    return {
      curves,
      points: metric === SUCCESS ? this.evaluations(groups) : [],
      from: view.from,
      to: view.to,
      log: view.log,
      fixed: fixedRange(metric),
    };
  }

  /** Runs that are drawn as one, and of each such group its place among the colours. */
  groups(seeds) {
    return seeds ? bySettings(this.runs, this.settings) : this.runs.map((run) => [run]);
  }

  curve(group, place, metric, view) {
    const style = look(place);
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

  evaluations(groups) {
    return this.runs.flatMap((run, index) => {
      const { colour } = look(groups.findIndex((group) => group.includes(run)));
      const [middle, low, high] = EVALUATION.map((key) => this.series(run, key));
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

  /** The stored numbers of a panel. */
  parts(metric) {
    const metrics = metric === SUCCESS ? [metric, ...EVALUATION] : [metric];
    return this.runs.flatMap((run) => metrics.map((each) => ({ run, metric: each, ...this.series(run, each) })));
  }
}
