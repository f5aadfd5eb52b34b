/** Downloads of plots, as a picture with a legend or as numbers. */

import { drawPlot, innerBox } from "./plot.js";
import { plotColours } from "./palette.js";
import { CanvasSurface, SvgSurface } from "./surfaces.js";

const WIDTH = 720;
const HEIGHT = 360;
const LEGEND_LINE = 16;

function drawFigure(surface, title, plot) {
  const colours = plotColours();
  const height = figureHeight(plot);
  surface.text(WIDTH / 2, 18, title, { colour: colours.text, align: "center" });
  const box = innerBox(WIDTH, HEIGHT, 30);
  drawPlot(surface, plot, box, colours);
  plot.curves.forEach((curve, index) => {
    const y = HEIGHT + 18 + index * LEGEND_LINE;
    surface.line(
      [
        [box.left, y - 4],
        [box.left + 28, y - 4],
      ],
      { colour: curve.colour, dash: curve.dash, width: 1.8 },
    );
    surface.text(box.left + 36, y, curve.name, { colour: colours.text });
  });
  return height;
}

function figureHeight(plot) {
  return HEIGHT + 16 + plot.curves.length * LEGEND_LINE;
}

export function exportSvg(title, plot) {
  const surface = new SvgSurface(WIDTH, figureHeight(plot), plotColours().background);
  drawFigure(surface, title, plot);
  downloadText(`${title}.svg`, surface.toString(), "image/svg+xml");
}

export function exportPng(title, plot) {
  const pixelRatio = 2;
  const canvas = document.createElement("canvas");
  canvas.width = WIDTH * pixelRatio;
  canvas.height = figureHeight(plot) * pixelRatio;
  const context = canvas.getContext("2d");
  context.scale(pixelRatio, pixelRatio);
  context.fillStyle = plotColours().background;
  context.fillRect(0, 0, WIDTH, figureHeight(plot));
  drawFigure(new CanvasSurface(context), title, plot);
  canvas.toBlob((blob) => download(`${title}.png`, blob), "image/png");
}

/** `parts`: [{run, metric, x, y}] with the stored numbers, neither smoothed nor thinned. */
export function exportCsv(title, parts) {
  const rows = parts.flatMap(({ run, metric, x, y }) => x.map((step, index) => [run, metric, step, y[index]]));
  downloadText(`${title}.csv`, csv([["run", "metric", "step", "value"], ...rows]), "text/csv");
}

function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\p{L}\p{N}._-]+/gu, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function downloadText(name, text, type) {
  download(name, new Blob([text], { type }));
}

/** Format rows as CSV, with quotes where a cell needs them. */
function csv(rows) {
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
