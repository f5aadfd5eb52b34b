/** The view of one trajectory: the conversation, and a player for the pictures of its states. */

import { fetchTrajectory } from "./api.js";
import { h, note, put, replace } from "./dom.js";
import { facts, turnCard } from "./conversation.js";
import { collect } from "./plugins.js";
import { Player, stateElement, statesOf } from "./states.js";
import { addHeader } from "./trajectory_navigation.js";

export async function showTrajectory(main, query, signal) {
  const answer = await fetchTrajectory(query.get("run"), query.get("number"), signal);
  addHeader(main, "trajectory", query, answer.row, signal);
  put(main, collect("episodeTools", answer, Number(query.get("number")), signal));
  const states = statesOf(answer);
  const board = h("div", { class: "board" });
  const side = h("aside", { class: "side" });
  let player = null;
  const cards = answer.row.turns.map((turn, index) =>
    turnCard(turn, index, (chosen) => player?.go(states.findIndex((state) => state.turn === chosen)), {
      vocabulary: answer.tokens,
      run: answer.run,
      missingImages: answer.missing_images,
      evaluation: answer.row.evaluation,
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
  if (answer.pictures_cut) put(main, note("The pictures are too large; later states are not drawn."));
  if (answer.repaired) put(main, note("Some bytes are not valid UTF-8 and are shown as �."));
  put(
    main,
    h(
      "div",
      { class: "trajectory" },
      h("div", { class: "turns" }, cards.length ? cards : h("p", { class: "note" }, "This trajectory has no turns.")),
      side,
    ),
  );
}
