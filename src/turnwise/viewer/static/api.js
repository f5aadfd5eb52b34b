/** Requests to the server's JSON API. */

export class ApiError extends Error {}

/** Return the response of GET /api/`name`. Null and "" parameters are left out; `signal` cancels the request. */
export async function get(name, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  return readAnswer(fetch(`/api/${name}?${query}`, { signal, credentials: "same-origin" }));
}

/** Return the JSON of a response that is still to come, or throw the error in it. */
export async function readAnswer(coming) {
  let response;
  try {
    response = await coming;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("No response from the server: is `turnwise view` still running?");
  }
  const body = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error; // the answer is not empty: it was not read
    return {};
  });
  if (!response.ok) throw new ApiError(body.error ?? `The server responded with status ${response.status}`);
  return body;
}

/** Return the address of an image that a trajectory of the run refers to. */
export function imageAddress(run, hash) {
  return `/api/image?${new URLSearchParams({ run, hash })}`;
}

export async function fetchRuns(signal) {
  return (await get("runs", {}, signal)).runs;
}

/** Return the run that was updated last, or null. */
export function newestRun(runs) {
  return runs.reduce((best, run) => (best === null || (run.updated ?? 0) > (best.updated ?? 0) ? run : best), null);
}

const EMPTY_TURN = { context: "", context_ids: [], action_ids: [], spans: [], info: {}, stop: "eos" };

/** Return {run, row, tokens, pictures, repaired, pictures_cut} of a trajectory. Fields that an old row lacks are empty. */
export async function fetchTrajectory(run, number, signal) {
  const answer = await get("trajectory", { run, number }, signal);
  const htmlUrl = (turn) => `/api/html?${new URLSearchParams({ run, number, turn })}`;
  return { ...answer, run, htmlUrl, tokens: answer.tokens ?? {}, row: completeRow(answer.row) };
}

export function completeRow(row) {
  return { ...row, turns: (Array.isArray(row.turns) ? row.turns : []).map(completeTurn) };
}

function completeTurn(turn) {
  const fields = Object.entries(turn ?? {}).filter(([, value]) => value !== null);
  const { content = "", ...message } = turn?.message ?? {};
  return { ...EMPTY_TURN, ...Object.fromEntries(fields), message: { ...message, content: String(content ?? "") } };
}
