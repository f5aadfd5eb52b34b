/** The page of one run: its state and results, its main curves, and the settings that differ from their defaults. */

import { fetchRuns, get } from "./api.js";
import { CurvesData } from "./curves_data.js";
import { breadcrumb, failure, h, note, put, replace } from "./dom.js";
import { count, percent, signed } from "./format.js";
import { mainMetrics } from "./metric_groups.js";
import { Panel, panelGrid } from "./panel.js";
import { collect } from "./plugins.js";
import { poll } from "./poll.js";
import { address } from "./router.js";
import { COLUMNS, successCell } from "./runs.js";
import { settingName, valueText } from "./differences.js";

const NUM_PANELS = 6;

export async function showRun(main, query, signal) {
  await new RunPage(main, query.get("run") ?? "", signal).start();
}

class RunPage {
  constructor(main, id, signal) {
    Object.assign(this, { main, id, signal, cursor: null, zoom: null, panels: [] });
    this.facts = h("section", { class: "card" });
    this.charts = h("section", { class: "run-charts" });
    this.settings = h("section", { class: "card differences" });
  }

  async start() {
    await this.load();
    const isEvaluation = this.run.kind === "evaluation";
    put(this.main, this.head(isEvaluation), this.facts, !isEvaluation && this.charts, this.settings);
    this.fillFacts();
    await Promise.all([isEvaluation || this.tryIn(this.charts, () => this.startCharts()), this.fillSettings()]);
    window.addEventListener("turnwise-theme", () => this.redraw(), { signal: this.signal });
    poll(() => this.update(), this.signal, this.run.status === "running");
  }

  async load() {
    const [runs, { summary }] = await Promise.all([
      fetchRuns(this.signal),
      get("summary", { run: this.id }, this.signal),
    ]);
    this.run = runs.find((run) => run.id === this.id) ?? { id: this.id };
    this.summary = summary;
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
    this.fillFacts();
    if (this.data && (before === "running" || this.run.status === "running")) {
      await this.data.update(new Set([this.id]));
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
      ["Dropped episodes", typeof summary.dropped === "number" && count(summary.dropped)],
    ];
    const items = pairs.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
    const models = (Array.isArray(summary.models) ? summary.models : []).filter((model) => model?.label);
    replace(this.facts, h("h2", {}, "Summary"), h("dl", { class: "run-facts" }, items), models.length > 1 && modelTable(models));
  }

  async startCharts() {
    const data = new CurvesData([this.id], this.signal);
    await data.start();
    const metrics = mainMetrics(data.keys).slice(0, NUM_PANELS);
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

function settingTable(keys, settings, defaults) {
  const rows = keys.map((key) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, settingName(key)),
      h("td", {}, valueText(settings[key])),
      h("td", {}, key in defaults ? valueText(defaults[key]) : "–"),
    ),
  );
  return table(["Setting", "Value", "Default"], rows);
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

function table(titles, rows) {
  const headings = titles.map((title) => h("th", { scope: "col" }, title));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, headings)), h("tbody", {}, rows)));
}
