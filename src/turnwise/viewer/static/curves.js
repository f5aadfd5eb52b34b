/** The curves view: one panel per metric with all runs, sharing a zoom and a cursor. */

import { fetchRuns, get, newestRun } from "./api.js";
import { CurvesData } from "./curves_data.js";
import { button, failure, h, input, note, put, replace, select } from "./dom.js";
import { clickWord } from "./format.js";
import { bind, explain } from "./keys.js";
import { mainMetrics, otherMetrics } from "./metric_groups.js";
import { curveStyle, swatch } from "./palette.js";
import { Panel, panelGrid } from "./panel.js";
import { poll } from "./poll.js";
import { address, go, remember } from "./router.js";

export async function showCurves(main, query, signal) {
  const all = await fetchRuns(signal);
  const list = all.filter((run) => run.kind !== "evaluation");
  const evaluations = new Set(all.filter((run) => run.kind === "evaluation").map((run) => run.id));
  const runs = query.getAll("run").filter((run) => !evaluations.has(run));
  if (!runs.length) {
    const newest = newestRun(list);
    if (newest) return go("curves", { run: newest.id }, { replace: true });
    return put(main, h("h1", {}, "Curves"), note("No runs yet. Start one with: turnwise train frozen_lake"));
  }
  await new CurvesView(main, runs, query, list, signal).start();
}

class CurvesView {
  constructor(main, runs, query, list, signal) {
    Object.assign(this, {
      main,
      runs,
      list,
      signal,
      data: new CurvesData(runs, signal),
      panels: new Map(),
      cursor: null,
      opened: new Set(),
    });
    this.state = {
      smoothing: Number(query.get("smooth") ?? 0),
      log: query.get("log") === "1",
      seeds: query.get("seeds") === "1",
      filter: query.get("filter") ?? "",
      zoom: query.has("from") ? [Number(query.get("from")), Number(query.get("to"))] : null,
    };
    this.shared = {
      cursor: () => this.cursor,
      setCursor: (step) => this.setCursor(step),
      setZoom: (from, to) => this.setZoom(from, to),
      alarms: () => this.data.alarms,
    };
  }

  async start() {
    await this.data.start();
    await this.data.load(mainMetrics(this.data.keys).map(([, metric]) => metric));
    this.body = h("div", { class: "sections" });
    put(this.main, this.head(), this.controls(), this.body);
    this.fill();
    this.listen();
    poll(() => this.update(), this.signal, this.isRunning());
  }

  isRunning() {
    return this.list.some((run) => this.runs.includes(run.id) && run.status === "running");
  }

  /** Fetch runs that have just ended once more, for their last rows. */
  async update() {
    const before = this.runningIds();
    this.list = (await fetchRuns(this.signal)).filter((run) => run.kind !== "evaluation");
    const toUpdate = new Set([...before, ...this.runningIds()]);
    const changed = toUpdate.size ? await this.data.update(toUpdate) : new Set();
    if (changed.size) {
      const known = this.data.keys.length;
      await this.refreshKeys(toUpdate);
      if (this.data.keys.length !== known) this.fill();
      this.redraw(changed);
    }
    return this.isRunning();
  }

  async refreshKeys(runs) {
    const answers = await Promise.all([...runs].map((run) => get("keys", { run }, this.signal)));
    this.data.keys = [...new Set([...this.data.keys, ...answers.flatMap((answer) => answer.keys)])];
    await this.data.load(mainMetrics(this.data.keys).map(([, metric]) => metric));
  }

  runningIds() {
    return this.list.filter((run) => run.status === "running" && this.runs.includes(run.id)).map((run) => run.id);
  }

  head() {
    this.legend = h("ul", { class: "legend", "aria-label": "Runs" });
    this.fillLegend();
    return h("div", { class: "title" }, h("h1", {}, "Curves"), this.legend);
  }

  fillLegend() {
    const groups = this.data.groups(this.state.seeds);
    const items = this.runs.map((run) => {
      const index = groups.findIndex((group) => group.includes(run));
      const remove =
        this.runs.length > 1 &&
        button("×", () => this.setRuns(this.runs.filter((each) => each !== run)), {
          class: "tiny",
          "aria-label": `Remove ${run}`,
        });
      return h(
        "li",
        {},
        swatch(curveStyle(index)),
        h("a", { href: address("trajectories", { run }), title: "Show its trajectories" }, run),
        remove,
      );
    });
    const others = this.list.map((run) => run.id).filter((id) => !this.runs.includes(id));
    const add =
      others.length > 0 &&
      select(
        "Add",
        [["", "a run …"], ...others.map((id) => [id, id])],
        "",
        (id) => id && this.setRuns([...this.runs, id]),
      );
    replace(this.legend, items, add && h("li", {}, add));
  }

  setRuns(runs) {
    go("curves", this.entries(runs));
  }

  entries(runs = this.runs) {
    const { smoothing, log, seeds, filter, zoom } = this.state;
    return {
      run: runs,
      smooth: smoothing || null,
      log: log ? 1 : null,
      seeds: seeds ? 1 : null,
      filter,
      from: zoom?.[0],
      to: zoom?.[1],
    };
  }

  controls() {
    const amount = h("output", {}, String(this.state.smoothing));
    const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", id: "smoothing" });
    slider.value = this.state.smoothing;
    slider.addEventListener("input", () => {
      amount.textContent = slider.value;
      this.set({ smoothing: Number(slider.value) });
    });
    this.reset = button("Reset zoom", () => this.setZoom(null, null), { disabled: !this.state.zoom });
    const filter = input("Filter", this.state.filter, () => {}, {
      type: "search",
      placeholder: "metric name",
      id: "filter",
    });
    filter.querySelector("input").addEventListener("input", (event) => this.setFilter(event.target.value));
    return h(
      "div",
      { class: "tools" },
      filter,
      h("label", { class: "field" }, h("span", {}, "Smoothing"), slider, amount),
      this.checkbox("Log scale", "log"),
      this.runs.length > 1 && this.checkbox("Mean and range over seeds", "seeds"),
      this.reset,
      this.runs.length === 1 &&
        h("a", { class: "button", href: address("before_after", { run: this.runs[0] }) }, "Before and after training"),
      this.runs.length === 2 &&
        h(
          "a",
          { class: "button", href: address("compare", { one: this.runs[0], other: this.runs[1] }) },
          "Compare trajectories",
        ),
    );
  }

  checkbox(label, name) {
    const box = h("input", {
      type: "checkbox",
      checked: this.state[name],
      onchange: () => this.set({ [name]: box.checked }),
    });
    return h("label", { class: "check" }, box, label);
  }

  set(change) {
    Object.assign(this.state, change);
    if ("seeds" in change) this.fillLegend();
    remember("curves", this.entries());
    this.redraw();
  }

  setFilter(filter) {
    this.state.filter = filter;
    remember("curves", this.entries());
    this.fill();
  }

  setZoom(from, to) {
    const [first, last] = this.data.range();
    const zoom = from === null || (from <= first && to >= last) ? null : [Math.max(first, from), Math.min(last, to)];
    this.reset.disabled = !zoom;
    this.set({ zoom });
  }

  setCursor(step) {
    if (this.cursor === step) return;
    this.cursor = step;
    for (const panel of this.panels.values()) if (panel.plot && panel.element.isConnected) panel.drawCursor();
  }

  /** Show the main panels, and the others folded by group; with a filter, all matching ones unfolded. */
  fill() {
    const filter = this.state.filter.trim().toLowerCase();
    const matches = (title, metric) =>
      !filter || metric.toLowerCase().includes(filter) || title.toLowerCase().includes(filter);
    const first = mainMetrics(this.data.keys).filter(([title, metric]) => matches(title, metric));
    const groups = otherMetrics(this.data.keys).map(([group, metrics]) => [
      group,
      metrics.filter((metric) => matches(metric, metric)),
    ]);
    const shownGroups = groups.filter(([, metrics]) => metrics.length);
    replace(
      this.body,
      first.length > 0 && panelGrid(first.map(([title, metric]) => this.panel(title, metric))),
      shownGroups.map(([group, metrics]) => this.section(group, metrics, Boolean(filter))),
      !first.length && !shownGroups.length && note(filter ? "No metric matches the filter." : "No metrics yet."),
    );
    this.redraw();
  }

  section(group, metrics, open) {
    const grid = h("div", {});
    const details = h(
      "details",
      { class: "section" },
      h("summary", {}, h("b", {}, group), h("span", { class: "count" }, ` ${metrics.length}`)),
      grid,
    );
    details.addEventListener("toggle", async () => {
      if (details.open) this.opened.add(group);
      else this.opened.delete(group);
      if (!details.open || grid.childElementCount) return;
      try {
        await this.data.load(metrics);
      } catch (error) {
        return this.signal.aborted || put(grid, failure(error));
      }
      const numeric = metrics.filter((metric) => this.runs.some((run) => this.data.series(run, metric).x.length));
      put(
        grid,
        numeric.length
          ? panelGrid(numeric.map((metric) => this.panel(metric, metric)))
          : note("These metrics are text and cannot be plotted."),
      );
      this.redraw(new Set(numeric));
    });
    details.open = open || this.opened.has(group);
    return details;
  }

  panel(title, metric) {
    if (!this.panels.has(metric)) this.panels.set(metric, new Panel(title, metric, this.shared));
    return this.panels.get(metric);
  }

  /** Redraw the panels of some metrics, or all; all too if the range of steps grew. */
  redraw(metrics = null) {
    const [first, last] = this.data.range();
    const [from, to] = this.state.zoom ?? [first, last];
    const view = { ...this.state, from, to: Math.max(to, from + 1) };
    const grew = this.shown !== `${from} ${to}`;
    this.shown = `${from} ${to}`;
    for (const [metric, panel] of this.panels) {
      if (this.body.contains(panel.element) && (grew || !metrics || metrics.has(metric)))
        panel.show(this.data.plot(metric, view), () => this.data.parts(metric));
    }
  }

  listen() {
    window.addEventListener(
      "turnwise-theme",
      () => {
        this.fillLegend();
        this.redraw();
      },
      { signal: this.signal },
    );
    bind("/", "focus the filter", () => document.getElementById("filter").focus(), this.signal);
    bind(["0", "Escape"], "reset the zoom", () => this.setZoom(null, null), this.signal);
    explain(["ArrowLeft", "ArrowRight"], "in a panel: move the cursor", this.signal);
    explain(["+", "-"], "in a panel: zoom around the cursor", this.signal);
    explain(["drag"], `in a panel: zoom; double-${clickWord().toLowerCase()} resets`, this.signal);
  }
}
