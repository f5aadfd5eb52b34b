/** Long token lists in chunks: only chunks near the screen are in the page, so that long lists do not freeze it. */

import { h } from "./dom.js";

const MAX_TOKENS = 400;
const MARGIN = "1200px";
const LINE_PX = 24;

/** Split a list of tokens into ranges [start, end), after newlines if possible. */
export function ranges(ids, textOf) {
  const found = [];
  let start = 0;
  for (let index = 0; index < ids.length; index++) {
    const length = index + 1 - start;
    if (length >= MAX_TOKENS || (length >= MAX_TOKENS / 2 && textOf(ids[index]).endsWith("\n"))) {
      found.push([start, index + 1]);
      start = index + 1;
    }
  }
  if (start < ids.length) found.push([start, ids.length]);
  return found;
}

/** Chunks that are filled near the screen and emptied elsewhere; they keep their height. */
export class Chunks {
  constructor(signal) {
    this.fills = new Map();
    this.observer = new IntersectionObserver(
      (entries) => entries.forEach((entry) => this.update(entry.target, entry.isIntersecting)),
      { rootMargin: MARGIN },
    );
    signal.addEventListener("abort", () => this.observer.disconnect());
  }

  /** `fill()` creates the tokens; `characters` and `lines` estimate the height until it is known. */
  add(fill, characters, lines) {
    const height = LINE_PX * (lines + Math.ceil(characters / 90));
    const element = h("div", { class: "chunk", style: { height: `${height}px` } });
    this.fills.set(element, fill);
    this.observer.observe(element);
    return element;
  }

  update(element, isNear) {
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

  /** Create the filled chunks again, after a change of colours. */
  refill() {
    for (const [element, fill] of this.fills) {
      if (!element.childElementCount) continue;
      const focused = element.contains(document.activeElement)
        ? [...element.children].indexOf(document.activeElement)
        : -1;
      element.replaceChildren(...fill());
      if (focused >= 0) element.children[focused].focus();
    }
  }
}
