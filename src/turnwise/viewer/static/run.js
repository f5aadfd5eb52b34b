/** The page of one run: results, what happened in words, curves, alarms, what it changed, checkpoints and settings. */

import { get } from "./api.js";
import { CurvesData } from "./curves_data.js";
import { breadcrumb, failure, h, note, put, replace } from "./dom.js";
import { count, energy, percent, short, signed } from "./format.js";
import { mainMetrics } from "./metric_groups.js";
import { Panel, panelGrid } from "./panel.js";
import { collect } from "./plugins.js";
import { poll } from "./poll.js";
import { address } from "./router.js";
import { alarmList, beforeAndAfter, checkpointTable, explanation, parentChanges, settingTable, table } from "./run_parts.js";
import { COLUMNS, successCell } from "./runs.js";
import { Swimlanes } from "./swimlanes.js";

const NUM_PANELS = 6;
/** Shown beside them for an asynchronous run. */
const STALENESS = "rollout/staleness";

export async function showRun(main, query, signal) {
  await new RunPage(main, query.get("run") ?? "", signal).start();
}

class RunPage {
  constructor(main, id, signal) {
    Object.assign(this, { main, id, signal, cursor: null, zoom: null, panels: [] });
    this.facts = h("section", { class: "card" });
    this.words = h("section", { class: "card run-words", hidden: true });
    this.charts = h("section", { class: "run-charts" });
    this.lanes = new Swimlanes(id, signal);
    this.alarms = h("section", { class: "card", hidden: true });
    this.parent = h("section", { class: "card differences", hidden: true });
    this.checkpoints = h("section", { class: "card", hidden: true });
    this.settings = h("section", { class: "card differences" });
  }

  async start() {
    await this.load();
    const isEvaluation = this.run.kind === "evaluation";
    put(
      this.main,
      this.head(isEvaluation),
      this.facts,
      this.words,
      !isEvaluation && this.charts,
      this.lanes.element,
      this.alarms,
      this.parent,
      this.checkpoints,
      collect("runSections", this.run, this.signal),
      this.settings,
    );
    this.fill();
    await Promise.all([isEvaluation || this.tryIn(this.charts, () => this.startCharts()), this.fillSettings()]);
    this.explainLater();
    if (!isEvaluation) this.lanes.update();
    const redraw = () => {
      this.redraw();
      this.lanes.redraw();
    };
    window.addEventListener("turnwise-theme", redraw, { signal: this.signal });
    poll(() => this.update(), this.signal, this.run.status === "running");
  }

  async load() {
    this.found = await get("run", { run: this.id }, this.signal);
    this.run = this.found.row;
    this.summary = this.found.summary;
  }

  fill() {
    const { alarms, parent, checkpoints } = this.found;
    this.fillFacts();
    for (const [element, content] of [
      [this.alarms, alarmList(alarms)],
      [this.parent, parentChanges(parent)],
      [this.checkpoints, checkpointTable(checkpoints, this.run)],
    ]) {
      element.hidden = !content;
      replace(element, content);
    }
  }

  /** Fetch the explanation, which may read many episodes, after the rest of the page. */
  async explainLater() {
    if (this.run.kind !== "run") return;
    try {
      const { sections } = await get("explain", { run: this.id }, this.signal);
      if (this.signal.aborted) return;
      this.words.hidden = !sections.length;
      replace(this.words, explanation(sections), beforeAndAfter(this.id, this.signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.words.hidden = false;
      replace(this.words, failure(error));
    }
  }

  /** Show an error in place of a part of the page; the other parts stay. */
  async tryIn(element, action) {
    try {
      await action();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      replace(element, failure(error));
    }
  }

  async update() {
    const before = this.run.status;
    await this.load();
    this.fill();
    if (before === "running" && this.run.status !== "running") this.explainLater();
    if (this.data && (before === "running" || this.run.status === "running")) {
      await this.data.update(new Set([this.id]));
      if (this.lanes.last === null) await this.lanes.update();
      this.redraw();
    }
    return this.run.status === "running";
  }

  head(isEvaluation) {
    const link = (view, text, entries = { run: this.id }) =>
      h("a", { class: "button", href: address(view, entries) }, text);
    return h(
      "div",
      { class: "title" },
      breadcrumb("#/runs", "Runs", this.id),
      h(
        "span",
        { class: "row" },
        !isEvaluation && link("curves", "Curves"),
        link("trajectories", "Trajectories"),
        !isEvaluation && link("before_after", "Before and after training"),
        this.run.models?.length > 1 && link("compare", "Compare its models", { one: this.id, other: this.id }),
      ),
      collect("runTools", this.run, this.signal),
    );
  }

  fillFacts() {
    const { run, summary } = this;
    const cells = COLUMNS.filter(({ name }) => name !== "id" && run[name] !== null && run[name] !== undefined);
    const pairs = [
      ...cells.map(({ name, title, cell }) => [title, cell ? cell(run) : run[name]]),
      ["Success before training", typeof summary.success_before === "number" && percent(summary.success_before)],
      ["Episodes", typeof summary.episodes === "number" && count(summary.episodes)],
      ["Cost", typeof summary.cost === "number" && short(summary.cost)],
      ["Energy", typeof summary.energy_wh === "number" && energy(summary.energy_wh)],
      ["Dropped episodes", typeof summary.dropped === "number" && count(summary.dropped)],
    ];
    const items = pairs.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
    const models = (Array.isArray(summary.models) ? summary.models : []).filter((model) => model?.label);
    replace(this.facts, h("h2", {}, "Summary"), h("dl", { class: "run-facts" }, items), models.length > 1 && modelTable(models));
  }

  async startCharts() {
    const data = new CurvesData([this.id], this.signal);
    await data.start();
    const metrics = mainMetrics(data.keys).filter(([, name], index) => index < NUM_PANELS || name === STALENESS);
    if (!metrics.length) return replace(this.charts, note("No metrics yet."));
    await data.load(metrics.map(([, metric]) => metric));
    const shared = {
      cursor: () => this.cursor,
      setCursor: (step) => {
        this.cursor = step;
        this.panels.forEach((panel) => panel.drawCursor());
      },
      setZoom: (from, to) => {
        this.zoom = from === null ? null : [from, to];
        this.redraw();
      },
      alarms: () => data.alarms,
    };
    this.data = data;
    this.panels = metrics.map(([title, metric]) => new Panel(title, metric, shared));
    replace(this.charts, panelGrid(this.panels));
    this.redraw();
  }

  redraw() {
    if (!this.data) return;
    const [from, to] = this.zoom ?? this.data.range();
    const view = { smoothing: 0, log: false, seeds: false, from, to: Math.max(to, from + 1) };
    for (const panel of this.panels)
      panel.show(this.data.plot(panel.metric, view), () => this.data.parts(panel.metric));
  }

  fillSettings() {
    return this.tryIn(this.settings, async () => {
      const { settings, defaults } = await get("config", { run: this.id }, this.signal);
      const keys = Object.keys(settings);
      const changed = keys.filter((key) => JSON.stringify(settings[key]) !== JSON.stringify(defaults[key]));
      replace(
        this.settings,
        h("h2", {}, "Settings that differ from their defaults"),
        changed.length ? settingTable(changed, settings, defaults) : note("None."),
        h("details", {}, h("summary", {}, `All ${keys.length} settings`), settingTable(keys, settings, defaults)),
      );
    });
  }
}

function modelTable(models) {
  const rows = models.map((model) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, model.label),
      h("td", {}, successCell(model)),
      h("td", {}, signed(model.reward)),
      h("td", {}, count(model.episodes)),
    ),
  );
  return table(["Model", "Success", "Mean reward", "Episodes"], rows);
}
