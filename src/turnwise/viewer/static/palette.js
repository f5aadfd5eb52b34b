/** Colours of curves: Okabe and Ito's palette for colour-blind readers. Each colour comes with its own dash. */

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b98600", "#2f8fc4", "#3d3d3d"];
const DARK = ["#56b4e9", "#ff8c42", "#2cc79b", "#e79ac6", "#f0c541", "#8fb8ff", "#d9d9d9"];
const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3], [12, 4], [4, 2], [2, 5]];

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Return colour and dash of the n-th curve. From the eighth on, colours repeat with other dashes. */
export function curveStyle(index) {
  const colours = isDark() ? DARK : LIGHT;
  return {
    colour: colours[index % colours.length],
    dash: DASHES[(index + Math.floor(index / colours.length)) % DASHES.length],
  };
}

/** Return the colours of a plot besides its curves. */
export function plotColours() {
  return isDark()
    ? { background: "#15191e", text: "#c9d1d9", faint: "#8b949e", grid: "#2a3139", alarm: "#f0c541" }
    : { background: "#ffffff", text: "#24292f", faint: "#636c76", grid: "#e6e9ed", alarm: "#b35900" };
}

/** Return a piece of a curve for legends: its colour and dash. */
export function swatch({ colour, dash }, width = 26) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("width", width);
  svg.setAttribute("height", 8);
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const attributes = {
    x1: 0,
    y1: 4,
    x2: width,
    y2: 4,
    stroke: colour,
    "stroke-width": 2.2,
    "stroke-dasharray": dash.join(" "),
  };
  for (const [name, value] of Object.entries(attributes)) if (value !== "") line.setAttribute(name, value);
  svg.append(line);
  return svg;
}
