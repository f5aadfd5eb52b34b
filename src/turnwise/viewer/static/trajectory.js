/** The view of one trajectory: the conversation, and the environment's own picture of each state to play. */

import { h, note, put, replace } from "./dom.js";
import { facts, turnCard } from "./conversation.js";
import { Player } from "./player.js";
import { stateElement, statesOf } from "./states.js";
import { fetchTrajectory } from "./trajectory_data.js";
import { frame } from "./trajectory_frame.js";

export async function showTrajectory(main, query, signal) {
  const answer = await fetchTrajectory(query.get("run"), query.get("number"), signal);
  frame(main, "trajectory", query, answer.row, signal);
  const states = statesOf(answer);
  const board = h("div", { class: "board" });
  const side = h("aside", { class: "side" });
  let player = null;
  const cards = answer.row.turns.map((turn, index) =>
    turnCard(turn, index, (chosen) => player?.go(states.findIndex((state) => state.turn === chosen)), {
      vocabulary: answer.tokens,
    }),
  );
  if (states.length) {
    player = new Player(
      states.map((state) => state.title),
      (index) => {
        replace(board, stateElement(states[index]));
        cards.forEach((card, turn) => card.classList.toggle("current", turn === states[index].turn));
      },
      signal,
    );
    put(side, board, player.element);
  }
  put(side, facts(answer.row));
  if (answer.pictures_cut) put(main, note("Its pictures are too large: the later states are not drawn."));
  if (answer.repaired) put(main, note("Some of its bytes are no UTF-8: they stand as �."));
  put(
    main,
    h(
      "div",
      { class: "trajectory" },
      h("div", { class: "turns" }, cards.length ? cards : h("p", { class: "note" }, "It has no turn.")),
      side,
    ),
  );
}
