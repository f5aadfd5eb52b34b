/** Trajectories in columns, with equal turns in one row and one slider for all states. */

import { h, put, replace } from "./dom.js";
import { statusBadge, tone, turnCard } from "./conversation.js";
import { signed } from "./format.js";
import { Player, stateElement, statesOf } from "./states.js";

const CONTEXT_CHARACTERS = 260;

/** `columns`: [{title, href, answer}]. */
export function sideBySide(columns, signal) {
  const states = columns.map(({ answer }) => statesOf(answer));
  const boards = columns.map(() => h("div", { class: "board" }));
  const turns = Math.max(0, ...columns.map(({ answer }) => answer.row.turns.length));
  const longest = states.reduce((best, each) => (each.length > best.length ? each : best), []);
  const cells = columns.map((column, index) => head(column, states[index].length ? boards[index] : null));
  const grid = h(
    "div",
    {
      class: "columns",
      tabindex: "0",
      role: "group",
      "aria-label": "Trajectories side by side",
      style: { "--columns": columns.length },
    },
    cells,
  );
  for (let turn = 0; turn < turns; turn++) {
    put(
      grid,
      columns.map(({ answer }) =>
        answer.row.turns[turn]
          ? turnCard(
              answer.row.turns[turn],
              turn,
              (chosen) => player?.go(longest.findIndex((state) => state.turn === chosen)),
              {
                vocabulary: answer.tokens,
                maxCharacters: CONTEXT_CHARACTERS,
                run: answer.run,
                missingImages: answer.missing_images,
                evaluation: answer.row.evaluation,
              },
            )
          : h("div", { class: "ended" }, turn === answer.row.turns.length ? "ended" : ""),
      ),
    );
  }
  const player = longest.length
    ? new Player(
        longest.map((state) => state.title),
        (index) => {
          columns.forEach((_, column) => {
            const columnStates = states[column];
            if (columnStates.length)
              replace(boards[column], stateElement(columnStates[Math.min(index, columnStates.length - 1)]));
          });
          for (const card of grid.querySelectorAll(".turn"))
            card.classList.toggle("current", Number(card.dataset.turn) === longest[index].turn);
        },
        signal,
      )
    : null;
  return h("div", { class: "side-by-side" }, player?.element, grid);
}

function head({ title, href, answer }, board) {
  const { row } = answer;
  return h(
    "header",
    { class: "column-head" },
    h(
      "div",
      { class: "row" },
      h("a", { href }, title),
      statusBadge(row.status),
      h("span", {}, "reward ", h("b", { class: tone(row.reward) }, signed(row.reward))),
    ),
    board,
  );
}
