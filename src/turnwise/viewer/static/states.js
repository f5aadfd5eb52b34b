/** States of a trajectory: the start and the state after each turn, as a picture or as text, and a player for them. */

import { button, h, note } from "./dom.js";
import { bind } from "./keys.js";

const PLAY_MS = 700;

/** Return [{title, turn, html, svg, text}]; `turn` is -1 for the start, which is left out if it was not recorded.
    `htmlUrl(turn)`: address of a state that the environment rendered as HTML. */
export function statesOf({ row, pictures = [], htmlUrl }) {
  const html = (picture, turn) => (picture?.html && htmlUrl ? htmlUrl(turn) : null);
  const states = row.turns.map((turn, index) => ({
    title: `after turn ${index + 1}`,
    turn: index,
    html: html(turn.picture, index),
    svg: pictures[index + 1] ?? null,
    text: textOf(turn),
  }));
  const start = html(row.start, -1);
  if (pictures[0] || start) states.unshift({ title: "start", turn: -1, html: start, svg: pictures[0], text: null });
  return states.some((state) => state.html || state.svg || state.text) ? states : [];
}

function textOf(turn) {
  return typeof turn.info?.state === "string" ? turn.info.state : null;
}

/** Pictures are SVG text. They are shown as images, so that scripts in them cannot run. HTML of an environment is shown
    in a frame without scripts and of an origin of its own; the server sends it with a policy that blocks all requests. */
export function stateElement(state) {
  if (state.html)
    return h("iframe", { class: "picture", sandbox: "", title: `state ${state.title}`, src: state.html, referrerpolicy: "no-referrer" });
  if (state.svg)
    return h("img", {
      class: "picture",
      alt: `state ${state.title}`,
      src: `data:image/svg+xml,${encodeURIComponent(state.svg)}`,
    });
  if (state.text) return h("pre", { class: "picture grid" }, state.text);
  return note("No picture of this state.");
}

/** A slider and a play button over states, of one trajectory or of several side by side. */
export class Player {
  /** `titles`: one per state; `show(index)` draws a state. */
  constructor(titles, show, signal) {
    Object.assign(this, { titles, show, index: 0, timer: 0 });
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: Math.max(0, titles.length - 1),
      step: 1,
      "aria-label": "State",
      oninput: () => this.go(Number(this.slider.value)),
    });
    this.play = button("▶", () => this.toggle(), { class: "play", "aria-label": "Play", title: "Play (space)" });
    this.label = h("output", {});
    this.element = h("div", { class: "player" }, this.play, this.slider, this.label);
    bind("ArrowLeft", "previous state", () => this.go(this.index - 1), signal);
    bind("ArrowRight", "next state", () => this.go(this.index + 1), signal);
    bind(" ", "play or pause", () => this.toggle(), signal);
    signal.addEventListener("abort", () => this.pause());
    this.go(0);
  }

  go(index) {
    this.index = Math.max(0, Math.min(index, this.titles.length - 1));
    this.slider.value = this.index;
    this.label.textContent = `${this.titles[this.index] ?? ""} · ${this.index + 1}/${this.titles.length}`;
    this.show(this.index);
  }

  toggle() {
    if (this.timer) return this.pause();
    if (this.index === this.titles.length - 1) this.go(0);
    this.play.textContent = "❚❚";
    this.timer = setInterval(() => {
      this.go(this.index + 1);
      if (this.index === this.titles.length - 1) this.pause();
    }, PLAY_MS);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "▶";
  }
}
