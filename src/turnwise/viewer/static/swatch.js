/** A piece of a curve for legends: its colour and its dash. */

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
