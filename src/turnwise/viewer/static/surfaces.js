/** Two papers to draw on with the same strokes: a canvas for the screen and PNG, and SVG as text. */

const FONT = "11px system-ui, sans-serif";

export class CanvasSurface {
  constructor(context) {
    this.context = context;
  }

  /** `points`: pairs; a pair with NaN breaks the line. */
  line(points, { colour, width = 1, dash = [], alpha = 1 }) {
    const { context } = this;
    context.save();
    Object.assign(context, { strokeStyle: colour, lineWidth: width, globalAlpha: alpha, lineJoin: "round" });
    context.setLineDash(dash);
    context.beginPath();
    let down = false;
    for (const [x, y] of points) {
      if (Number.isNaN(y)) down = false;
      else if (down) context.lineTo(x, y);
      else {
        context.moveTo(x, y);
        down = true;
      }
    }
    context.stroke();
    context.restore();
  }

  area(points, { colour, alpha = 1 }) {
    const { context } = this;
    context.save();
    Object.assign(context, { fillStyle: colour, globalAlpha: alpha });
    context.beginPath();
    points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fill();
    context.restore();
  }

  text(x, y, text, { colour, align = "left" }) {
    Object.assign(this.context, { fillStyle: colour, textAlign: align, font: FONT });
    this.context.fillText(text, x, y);
  }

  /** What `inside` draws stays within the box. */
  clip(x, y, width, height, inside) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    inside();
    this.context.restore();
  }
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text) => text.replace(/[&<>"]/g, (letter) => ESCAPES[letter]);
const fixed = (number) => String(Number(number.toFixed(2)));

export class SvgSurface {
  constructor(width, height, paper) {
    this.size = [width, height];
    this.parts = [`<rect width="${width}" height="${height}" fill="${paper}"/>`];
    this.clips = 0;
  }

  line(points, { colour, width = 1, dash = [], alpha = 1 }) {
    let down = false;
    let path = "";
    for (const [x, y] of points) {
      if (Number.isNaN(y)) {
        down = false;
        continue;
      }
      path += `${down ? "L" : "M"}${fixed(x)} ${fixed(y)}`;
      down = true;
    }
    if (!path) return;
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.parts.push(
      `<path d="${path}" fill="none" stroke="${colour}" stroke-width="${width}" ` +
        `stroke-opacity="${alpha}" stroke-linejoin="round"${dashes}/>`,
    );
  }

  area(points, { colour, alpha = 1 }) {
    const path = points.map(([x, y]) => `${fixed(x)},${fixed(y)}`).join(" ");
    this.parts.push(`<polygon points="${path}" fill="${colour}" fill-opacity="${alpha}"/>`);
  }

  text(x, y, text, { colour, align = "left" }) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    this.parts.push(
      `<text x="${fixed(x)}" y="${fixed(y)}" fill="${colour}" text-anchor="${anchor}">${escaped(text)}</text>`,
    );
  }

  clip(x, y, width, height, inside) {
    const id = `clip${this.clips++}`;
    this.parts.push(
      `<clipPath id="${id}"><rect x="${x}" y="${y}" width="${width}" height="${height}"/></clipPath>`,
      `<g clip-path="url(#${id})">`,
    );
    inside();
    this.parts.push("</g>");
  }

  toString() {
    const [width, height] = this.size;
    const size = `viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"`;
    const font = 'font-family="system-ui, sans-serif" font-size="11"';
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${font}>${this.parts.join("\n")}</svg>\n`;
  }
}
