/** A slider and a play button over states: one for a trajectory, or for several side by side. */

import { button, h } from "./dom.js";
import { bind } from "./keys.js";

const PLAY_MS = 700;

export class Player {
  /** `titles`: what each place is called; `show(index)` draws it. */
  constructor(titles, show, signal) {
    Object.assign(this, { titles, show, at: 0, timer: 0 });
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
    bind("ArrowLeft", "the state before", () => this.go(this.at - 1), signal);
    bind("ArrowRight", "the next state", () => this.go(this.at + 1), signal);
    bind(" ", "play and pause", () => this.toggle(), signal);
    signal.addEventListener("abort", () => this.pause());
    this.go(0);
  }

  go(index) {
    this.at = Math.max(0, Math.min(index, this.titles.length - 1));
    this.slider.value = this.at;
    this.label.textContent = `${this.titles[this.at] ?? ""} · ${this.at + 1}/${this.titles.length}`;
    this.show(this.at);
  }

  toggle() {
    if (this.timer) return this.pause();
    if (this.at === this.titles.length - 1) this.go(0);
    this.play.textContent = "❚❚";
    this.timer = setInterval(() => {
      this.go(this.at + 1);
      if (this.at === this.titles.length - 1) this.pause();
    }, PLAY_MS);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "▶";
  }
}
