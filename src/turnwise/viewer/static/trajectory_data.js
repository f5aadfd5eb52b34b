/** One trajectory from the server, whole: what an old or broken row lacks is empty, so that views need not ask. */

import { get } from "./api.js";

const EMPTY = { context: "", context_ids: [], action_ids: [], spans: [], info: {}, stop: "eos" };

/** {row, tokens, pictures, repaired, pictures_cut}, see the server; the row's turns have all that views read. */
export async function fetchTrajectory(run, number, signal) {
  const answer = await get("trajectory", { run, number }, signal);
  const turns = Array.isArray(answer.row.turns) ? answer.row.turns : [];
  return { ...answer, tokens: answer.tokens ?? {}, row: { ...answer.row, turns: turns.map(whole) } };
}

function whole(turn) {
  const given = Object.entries(turn ?? {}).filter(([, value]) => value !== null);
  const { content = "", ...message } = turn?.message ?? {};
  return { ...EMPTY, ...Object.fromEntries(given), message: { ...message, content: String(content ?? "") } };
}
