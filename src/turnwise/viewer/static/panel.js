/** The panel of one metric: a plot on a canvas, with the cursor, zoom and alarms that all panels share. */

import { button, h, put, replace } from "./dom.js";
import { exportCsv, exportPng, exportSvg } from "./export.js";
import { formatMetric } from "./format.js";
import { drawPlot, innerBox } from "./plot.js";
import { plotColours, swatch } from "./palette.js";
import { nearest } from "./series.js";
import { CanvasSurface } from "./surfaces.js";
import { addTip } from "./tip.js";

const HEIGHT = 204;
const ALARM_WIDTH = 12;

/** `shared`: state of all panels: {cursor(), setCursor(step), setZoom(from, to), alarms()}. */
export class Panel {
  constructor(title, metric, shared) {
    Object.assign(this, { title, metric, shared, plot: null, parts: () => [], frame: 0 });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.line = h("div", { class: "cursor", hidden: true });
    this.selection = h("div", { class: "selection", hidden: true });
    this.readout = h("div", { class: "readout", hidden: true });
    this.alarms = h("div", { class: "alarms" });
    this.last = h("span", { class: "last" });
    this.area = h(
      "div",
      { class: "area", tabindex: "0", role: "img", "data-arrows": true },
      this.canvas,
      this.line,
      this.selection,
      this.readout,
    );
    this.element = h("section", { class: "panel", dataset: { metric } }, this.head(), this.area, this.alarms);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.area);
  }

  head() {
    const files = [
      ["PNG", () => exportPng(this.title, this.plot)],
      ["SVG", () => exportSvg(this.title, this.plot)],
      ["CSV", () => exportCsv(this.title, this.parts())],
    ];
    const buttons = files.map(([name, action]) =>
      button(name, action, { class: "tiny", title: `Save as ${name}`, "aria-label": `${this.title} as ${name}` }),
    );
    const sub = this.title === this.metric ? null : h("code", { class: "metric" }, this.metric);
    return h("header", {}, h("h3", {}, this.title), sub, this.last, h("span", { class: "files" }, buttons));
  }

  /** Show a plot. `parts()` returns the stored numbers, for CSV. */
  show(plot, parts) {
    this.plot = plot;
    this.parts = parts;
    const lasts = plot.curves.map((curve) => this.text(curve.y.findLast((value) => !Number.isNaN(value))));
    this.last.textContent = lasts.length === 1 ? lasts[0] : "";
    this.area.setAttribute(
      "aria-label",
      `${this.title}: ${plot.curves.map((curve, index) => `${curve.name} ${lasts[index]}`).join(", ")}`,
    );
    this.draw();
  }

  text(value) {
    return formatMetric(value, this.plot.unit);
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    const width = this.area.clientWidth;
    if (!this.plot || !width) return;
    const pixelRatio = window.devicePixelRatio || 1;
    this.canvas.width = width * pixelRatio;
    this.canvas.height = HEIGHT * pixelRatio;
    this.canvas.style.height = `${HEIGHT}px`;
    const context = this.canvas.getContext("2d");
    context.scale(pixelRatio, pixelRatio);
    this.box = innerBox(width, HEIGHT);
    this.scales = drawPlot(new CanvasSurface(context), this.plot, this.box, plotColours());
    this.drawAlarms();
    this.drawCursor();
  }

  /** Draw marks on the axis; marks that would overlap become one. */
  drawAlarms() {
    const { x } = this.scales;
    const marks = new Map();
    for (const alarm of this.shared.alarms()) {
      if (alarm.step < this.plot.from || alarm.step > this.plot.to) continue;
      const slot = Math.round(x.map(alarm.step) / ALARM_WIDTH);
      if (!marks.has(slot)) marks.set(slot, []);
      marks.get(slot).push(alarm);
    }
    const focused = this.alarms.contains(document.activeElement) ? document.activeElement.dataset.slot : null;
    replace(
      this.alarms,
      [...marks.entries()].map(([slot, alarms]) => alarmMark(slot, alarms, x.map(alarms[0].step))),
    );
    if (focused !== null) this.alarms.querySelector(`[data-slot="${focused}"]`)?.focus();
  }

  drawCursor() {
    const step = this.shared.cursor();
    const inside = this.scales && step !== null && step >= this.plot.from && step <= this.plot.to;
    this.line.hidden = this.readout.hidden = !inside;
    if (!inside) return;
    const at = this.scales.x.map(step);
    this.line.style.left = `${at}px`;
    this.readout.classList.toggle("left", at > (this.box.left + this.box.right) / 2);
    replace(this.readout, h("div", { class: "at" }, `step ${step}`), this.values(step));
  }

  values(step) {
    const named = this.area.matches(":hover, :focus");
    const rows = this.plot.curves.map((curve) => {
      const index = nearest(curve.x, step);
      if (index < 0) return null;
      const range = curve.low ? ` (${this.text(curve.low[index])} to ${this.text(curve.high[index])})` : "";
      const other = curve.x[index] === step ? "" : ` at ${curve.x[index]}`;
      return h(
        "div",
        {},
        swatch(curve),
        h("b", {}, this.text(curve.y[index]) + range),
        other,
        named && h("span", { class: "name" }, curve.name),
      );
    });
    const points = this.plot.points
      .filter((point) => point.x === step)
      .map((point) => {
        const range = point.low === null ? "" : ` (${this.text(point.low)} to ${this.text(point.high)})`;
        return h(
          "div",
          {},
          h("i", { class: "diamond", style: { background: point.colour } }),
          h("b", {}, this.text(point.y)),
          range,
          h("span", { class: "name" }, "evaluation"),
        );
      });
    return [rows, points];
  }

  stepAt(event) {
    const pixel = event.clientX - this.area.getBoundingClientRect().left;
    const step = Math.round(this.scales.x.invert(Math.max(this.box.left, Math.min(pixel, this.box.right))));
    return Math.max(this.plot.from, Math.min(step, this.plot.to));
  }

  listen() {
    let start = null;
    this.area.addEventListener("pointermove", (event) => {
      if (!this.scales) return;
      const step = this.stepAt(event);
      this.shared.setCursor(step);
      if (start !== null) this.showSelection(start, step);
    });
    this.area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.scales) return;
      start = this.stepAt(event);
      if (event.pointerType === "mouse") this.area.setPointerCapture(event.pointerId);
    });
    this.area.addEventListener("pointerup", (event) => {
      const end = start === null ? null : this.stepAt(event);
      this.selection.hidden = true;
      if (end !== null && Math.abs(end - start) >= 1) this.shared.setZoom(Math.min(start, end), Math.max(start, end));
      start = null;
    });
    this.area.addEventListener("pointercancel", () => {
      start = null;
      this.selection.hidden = true;
    });
    this.area.addEventListener("pointerleave", () => start === null && this.shared.setCursor(null));
    this.area.addEventListener("blur", () => this.shared.setCursor(null));
    this.area.addEventListener("dblclick", () => this.shared.setZoom(null, null));
    this.area.addEventListener("keydown", (event) => this.onKey(event));
  }

  showSelection(start, end) {
    const [left, right] = [start, end].map((step) => this.scales.x.map(step)).sort((one, other) => one - other);
    Object.assign(this.selection.style, { left: `${left}px`, width: `${right - left}px` });
    this.selection.hidden = false;
  }

  /** Arrow keys move the cursor between points, + and - zoom around it, 0 resets. */
  onKey(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { from, to } = this.plot;
    const cursor = this.shared.cursor() ?? from;
    const span = to - from;
    const actions = {
      ArrowLeft: () => this.shared.setCursor(this.neighbour(cursor, -1)),
      ArrowRight: () => this.shared.setCursor(this.neighbour(cursor, 1)),
      "+": () =>
        span > 2 &&
        this.shared.setZoom(Math.round(Math.max(from, cursor - span / 4)), Math.round(Math.min(to, cursor + span / 4))),
      "-": () => this.shared.setZoom(Math.round(from - span / 2), Math.round(to + span / 2)),
      0: () => this.shared.setZoom(null, null),
      Escape: () => this.shared.setZoom(null, null),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  neighbour(cursor, direction) {
    const longest = this.plot.curves.reduce((best, curve) => (curve.x.length > best.length ? curve.x : best), []);
    const index = nearest(longest, cursor);
    if (index < 0) return cursor;
    const next =
      longest[index] === cursor || this.shared.cursor() !== null
        ? (longest[index + direction] ?? longest[index])
        : longest[index];
    return Math.max(this.plot.from, Math.min(next, this.plot.to));
  }
}

function alarmMark(slot, alarms, left) {
  const text = () =>
    alarms.map((alarm) =>
      h("div", {}, h("b", {}, `step ${alarm.step} `), alarm.text, alarm.run && h("span", { class: "name" }, alarm.run)),
    );
  const label = alarms.map((alarm) => `step ${alarm.step}: ${alarm.text}`).join("; ");
  const mark = button(alarms.length > 1 ? "▲+" : "▲", () => {}, {
    class: "alarm",
    "aria-label": `alarm: ${label}`,
    dataset: { slot },
    style: { left: `${left}px` },
  });
  return addTip(mark, text);
}

/** Return panels in a grid. */
export function panelGrid(panels) {
  return put(
    h("div", { class: "panels" }),
    panels.map((panel) => panel.element),
  );
}
