/** A plot as a file: a picture with its legend, or the numbers. */

import { csv, download, downloadText } from "./download.js";
import { drawPlot, innerBox } from "./plot.js";
import { inks } from "./palette.js";
import { CanvasSurface, SvgSurface } from "./surfaces.js";

const WIDTH = 720;
const HEIGHT = 360;
const LINE = 16;

function drawFigure(surface, title, plot) {
  const ink = inks();
  const height = figureHeight(plot);
  surface.text(WIDTH / 2, 18, title, { colour: ink.text, align: "center" });
  const box = innerBox(WIDTH, HEIGHT, 30);
  drawPlot(surface, plot, box, ink);
  surface.text(box.right, HEIGHT + 10, "step", { colour: ink.faint, align: "right" });
  plot.curves.forEach((curve, index) => {
    const y = HEIGHT + 18 + index * LINE;
    surface.line(
      [
        [box.left, y - 4],
        [box.left + 28, y - 4],
      ],
      { colour: curve.colour, dash: curve.dash, width: 1.8 },
    );
    surface.text(box.left + 36, y, curve.name, { colour: ink.text });
  });
  return height;
}

function figureHeight(plot) {
  return HEIGHT + 16 + plot.curves.length * LINE;
}

export function exportSvg(title, plot) {
  const surface = new SvgSurface(WIDTH, figureHeight(plot), inks().paper);
  drawFigure(surface, title, plot);
  downloadText(`${title}.svg`, surface.toString(), "image/svg+xml");
}

export function exportPng(title, plot) {
  const sharp = 2;
  const canvas = document.createElement("canvas");
  canvas.width = WIDTH * sharp;
  canvas.height = figureHeight(plot) * sharp;
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.fillStyle = inks().paper;
  context.fillRect(0, 0, WIDTH, figureHeight(plot));
  drawFigure(new CanvasSurface(context), title, plot);
  canvas.toBlob((blob) => download(`${title}.png`, blob), "image/png");
}

/** `parts`: [{run, metric, x, y}], the numbers as stored, neither smoothed nor thinned. */
export function exportCsv(title, parts) {
  const rows = parts.flatMap(({ run, metric, x, y }) => x.map((step, index) => [run, metric, step, y[index]]));
  downloadText(`${title}.csv`, csv([["run", "metric", "step", "value"], ...rows]), "text/csv");
}
