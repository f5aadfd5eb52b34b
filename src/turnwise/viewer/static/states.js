/** The states of a trajectory in order: the start, then the one after each turn, as a picture or as text. */

import { h, note } from "./dom.js";

/** [{title, turn, svg, text}]; a start that nobody recorded is left out. `turn` is -1 for the start. */
export function statesOf({ row, pictures = [] }) {
  const states = row.turns.map((turn, index) => ({
    title: `after turn ${index + 1}`,
    turn: index,
    svg: pictures[index + 1] ?? null,
    text: textOf(turn),
  }));
  if (pictures[0]) states.unshift({ title: "start", turn: -1, svg: pictures[0], text: null });
  return states.some((state) => state.svg || state.text) ? states : [];
}

function textOf(turn) {
  return typeof turn.info?.state === "string" ? turn.info.state : null;
}

/** A picture comes as SVG text; as the source of an image nothing in it can run. */
export function stateElement(state) {
  if (state.svg)
    return h("img", {
      class: "picture",
      alt: `state ${state.title}`,
      src: `data:image/svg+xml,${encodeURIComponent(state.svg)}`,
    });
  if (state.text) return h("pre", { class: "picture grid" }, state.text);
  return note("no picture of this state");
}
