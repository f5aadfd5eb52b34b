/** Two drawing surfaces with the same methods: a canvas for the screen and PNG, and SVG text. */

const FONT = "11px system-ui, sans-serif";

export class CanvasSurface {
  constructor(context) {
    this.context = context;
  }

  /** Draw a line through points [x, y]; a NaN interrupts it. */
  line(points, { colour, width = 1, dash = [], alpha = 1 }) {
    const { context } = this;
    context.save();
    Object.assign(context, { strokeStyle: colour, lineWidth: width, globalAlpha: alpha, lineJoin: "round" });
    context.setLineDash(dash);
    context.beginPath();
    let penDown = false;
    for (const [x, y] of points) {
      if (Number.isNaN(y)) penDown = false;
      else if (penDown) context.lineTo(x, y);
      else {
        context.moveTo(x, y);
        penDown = true;
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

  /** Call `draw`, clipped to the box. */
  clip(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escapeXml = (text) => text.replace(/[&<>"]/g, (letter) => ESCAPES[letter]);
const fixed = (number) => String(Number(number.toFixed(2)));

export class SvgSurface {
  constructor(width, height, background) {
    this.size = [width, height];
    this.parts = [`<rect width="${width}" height="${height}" fill="${background}"/>`];
    this.clips = 0;
  }

  line(points, { colour, width = 1, dash = [], alpha = 1 }) {
    let penDown = false;
    let path = "";
    for (const [x, y] of points) {
      if (Number.isNaN(y)) {
        penDown = false;
        continue;
      }
      path += `${penDown ? "L" : "M"}${fixed(x)} ${fixed(y)}`;
      penDown = true;
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
      `<text x="${fixed(x)}" y="${fixed(y)}" fill="${colour}" text-anchor="${anchor}">${escapeXml(text)}</text>`,
    );
  }

  clip(x, y, width, height, draw) {
    const id = `clip${this.clips++}`;
    this.parts.push(
      `<clipPath id="${id}"><rect x="${x}" y="${y}" width="${width}" height="${height}"/></clipPath>`,
      `<g clip-path="url(#${id})">`,
    );
    draw();
    this.parts.push("</g>");
  }

  toString() {
    const [width, height] = this.size;
    const size = `viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"`;
    const font = 'font-family="system-ui, sans-serif" font-size="11"';
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${font}>${this.parts.join("\n")}</svg>\n`;
  }
}
