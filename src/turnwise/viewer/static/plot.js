/** Drawing of one plot on a surface. A plot is:

    {curves: [{name, x, y, faint: {x, y} | null, low, high, colour, dash}],
     points: [{x, y, low, high, colour, shift}],
     from, to, log, fixed, unit}
*/

import { averaged, lowerBound, thin } from "./series.js";
import { linear, logarithmic, padded, shareText, tickText } from "./scale.js";

export const MARGIN = { left: 46, right: 10, top: 8, bottom: 34 };

/** Return the scales of a plot in a box; the y range follows the visible values. */
export function scales(plot, box) {
  const [low, high] = visibleRange(plot);
  const [from, to] = padded(low, high, plot);
  const x = linear(plot.from, plot.to, box.left, box.right);
  return { x, y: (plot.log ? logarithmic : linear)(from, to, box.bottom, box.top) };
}

export function innerBox(width, height, top = MARGIN.top) {
  return { left: MARGIN.left, right: width - MARGIN.right, top, bottom: height - MARGIN.bottom };
}

function visibleRange(plot) {
  let low = Infinity;
  let high = -Infinity;
  const include = (value) => {
    if (Number.isNaN(value) || value === null || (plot.log && value <= 0)) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const curve of plot.curves) {
    if (curve.faint) typicalRange(curve.faint, plot).forEach(include);
    for (const { x, values } of [
      { x: curve.x, values: curve.y },
      { x: curve.x, values: curve.low },
      { x: curve.x, values: curve.high },
    ]) {
      if (!values) continue;
      const end = lowerBound(x, plot.to + 1e-9);
      for (let index = lowerBound(x, plot.from); index < end; index++) include(values[index]);
    }
  }
  for (const point of plot.points) {
    if (point.x >= plot.from && point.x <= plot.to) [point.y, point.low, point.high].forEach(include);
  }
  return [low, high];
}

/** Return the 2nd and 98th percentile of a noisy series, from about a thousand of its points. */
function typicalRange({ x, y }, plot) {
  const [begin, end] = [lowerBound(x, plot.from), lowerBound(x, plot.to + 1e-9)];
  const every = Math.max(1, Math.floor((end - begin) / 1000));
  const sample = [];
  for (let index = begin; index < end; index += every)
    if (!Number.isNaN(y[index]) && (!plot.log || y[index] > 0)) sample.push(y[index]);
  sample.sort((one, other) => one - other);
  return sample.length
    ? [sample[Math.floor(0.02 * (sample.length - 1))], sample[Math.ceil(0.98 * (sample.length - 1))]]
    : [];
}

export function drawPlot(surface, plot, box, colours) {
  const { x, y } = scales(plot, box);
  drawAxes(surface, x, y, box, colours, plot.unit === "share" ? shareText : tickText);
  const width = box.right - box.left;
  surface.clip(box.left - 7, box.top - 5, width + 16, box.bottom - box.top + 10, () => {
    for (const curve of plot.curves) if (curve.low) drawBand(surface, curve, plot, x, y, width);
    for (const curve of plot.curves) {
      if (curve.faint)
        drawCurve(surface, curve.faint, plot, x, y, width, {
          colour: curve.colour,
          width: 1,
          alpha: isDense(curve, plot, width) ? 0.16 : 0.28,
        });
    }
    for (const curve of plot.curves) drawMainCurve(surface, curve, plot, x, y, width);
    for (const point of plot.points) drawPoint(surface, point, x, y);
  });
  return { x, y };
}

function isDense({ x }, plot, width) {
  return lowerBound(x, plot.to) - lowerBound(x, plot.from) > 2 * width;
}

function drawAxes(surface, x, y, box, colours, valueText) {
  for (const tick of y.ticks(Math.max(2, Math.floor((box.bottom - box.top) / 30)))) {
    const at = Math.round(y.map(tick)) + 0.5;
    surface.line(
      [
        [box.left, at],
        [box.right, at],
      ],
      { colour: colours.grid },
    );
    surface.text(box.left - 6, at + 3.5, valueText(tick), { colour: colours.faint, align: "right" });
  }
  surface.line(
    [
      [box.left, box.bottom + 0.5],
      [box.right, box.bottom + 0.5],
    ],
    { colour: colours.faint },
  );
  const ticks = x.ticks(Math.max(2, Math.floor((box.right - box.left) / 64)));
  for (const tick of ticks.filter(Number.isInteger)) {
    const at = Math.round(x.map(tick)) + 0.5;
    surface.line(
      [
        [at, box.bottom],
        [at, box.bottom + 3],
      ],
      { colour: colours.faint },
    );
    surface.text(at, box.bottom + 15, tickText(tick), { colour: colours.faint, align: "center" });
  }
  surface.text((box.left + box.right) / 2, box.bottom + 29, "step", { colour: colours.faint, align: "center" });
}

/** With more points than pixels, draw a smoothed curve by means, and others by extremes and without dashes. */
function drawMainCurve(surface, curve, plot, x, y, width) {
  const dense = isDense(curve, plot, width);
  if (dense && (curve.faint || curve.low)) {
    const { x: steps, y: values } = averaged(curve, plot.from, plot.to, width / 2);
    const points = steps.map((step, index) => [x.map(step), y.map(values[index])]);
    return surface.line(points, { colour: curve.colour, width: 1.6, dash: curve.dash });
  }
  const style = dense ? { width: 1.1 } : { width: 1.6, dash: curve.dash };
  return drawCurve(surface, curve, plot, x, y, width, { colour: curve.colour, ...style });
}

function drawCurve(surface, series, plot, x, y, width, style) {
  const points = thin(series, plot.from, plot.to, width).map((index) => [
    x.map(series.x[index]),
    y.map(series.y[index]),
  ]);
  const single = points.length === 1 && points[0];
  surface.line(
    single
      ? [
          [single[0] - 3, single[1]],
          [single[0] + 3, single[1]],
        ]
      : points,
    style,
  );
}

function drawBand(surface, curve, plot, x, y, width) {
  const lows = thin({ x: curve.x, y: curve.low }, plot.from, plot.to, width);
  const highs = thin({ x: curve.x, y: curve.high }, plot.from, plot.to, width);
  const floor = y.map(y.from);
  const at = (index, values) => [
    x.map(curve.x[index]),
    Number.isNaN(y.map(values[index])) ? floor : y.map(values[index]),
  ];
  const outline = [
    ...highs.map((index) => at(index, curve.high)),
    ...lows.reverse().map((index) => at(index, curve.low)),
  ];
  if (outline.length > 2) surface.area(outline, { colour: curve.colour, alpha: 0.16 });
}

/** Draw an evaluation: a diamond with its interval as a whisker; `shift` separates the points of several runs. */
function drawPoint(surface, point, x, y) {
  const at = x.map(point.x) + point.shift;
  const middle = y.map(point.y);
  if (Number.isNaN(middle)) return;
  if (point.low !== null && point.high !== null) {
    const ends = [y.map(point.low), y.map(point.high)];
    surface.line(
      [
        [at, ends[0]],
        [at, ends[1]],
      ],
      { colour: point.colour, width: 1.4 },
    );
    for (const end of ends)
      surface.line(
        [
          [at - 3, end],
          [at + 3, end],
        ],
        { colour: point.colour, width: 1.4 },
      );
  }
  const size = 4;
  surface.area(
    [
      [at, middle - size],
      [at + size, middle],
      [at, middle + size],
      [at - size, middle],
    ],
    { colour: point.colour },
  );
}
