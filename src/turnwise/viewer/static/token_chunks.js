/** Long lists of tokens in pieces: only those near the screen are in the page, so that a million do not freeze it. */

import { h } from "./dom.js";

const MOST = 400;
const AHEAD = "1200px";
const LINE_PX = 24;

/** Ranges [start, end) of a list of tokens, broken after newlines where there are any. */
export function ranges(ids, textOf) {
  const found = [];
  let start = 0;
  for (let index = 0; index < ids.length; index++) {
    const length = index + 1 - start;
    if (length >= MOST || (length >= MOST / 2 && textOf(ids[index]).endsWith("\n"))) {
      found.push([start, index + 1]);
      start = index + 1;
    }
  }
  if (start < ids.length) found.push([start, ids.length]);
  return found;
}

/** Pieces that fill when they come near and empty when they are far; their height stays. */
export class Chunks {
  constructor(signal) {
    this.fills = new Map();
    this.observer = new IntersectionObserver(
      (entries) => entries.forEach((entry) => this.near(entry.target, entry.isIntersecting)),
      { rootMargin: AHEAD },
    );
    signal.addEventListener("abort", () => this.observer.disconnect());
  }

  /** `fill()` makes the tokens; `letters` guesses the height until it is known. */
  add(fill, letters, lines) {
    const element = h("div", { class: "chunk", style: { height: `${LINE_PX * (lines + Math.ceil(letters / 90))}px` } });
    this.fills.set(element, fill);
    this.observer.observe(element);
    return element;
  }

  near(element, isNear) {
    if (isNear) this.fill(element);
    else if (element.childElementCount && !element.contains(document.activeElement)) {
      element.style.height = `${element.offsetHeight}px`;
      element.replaceChildren();
    }
  }

  fill(element) {
    if (element.childElementCount) return;
    element.append(...this.fills.get(element)());
    element.style.height = "";
  }

  /** After a change of colours: what is in the page is made again. */
  refill() {
    for (const [element, fill] of this.fills) {
      if (!element.childElementCount) continue;
      const held = element.contains(document.activeElement)
        ? [...element.children].indexOf(document.activeElement)
        : -1;
      element.replaceChildren(...fill());
      if (held >= 0) element.children[held].focus();
    }
  }
}
