/** Filters of the list, which stand in the address of the list and of each trajectory opened from it. */

import { get } from "./api.js";

export const FILTERS = [
  "step",
  "group",
  "environment",
  "model",
  "status",
  "seed",
  "reward_min",
  "reward_max",
  "text",
  "sort",
];

export function filtersOf(query) {
  return Object.fromEntries(FILTERS.filter((name) => query.get(name)).map((name) => [name, query.get(name)]));
}

/** What the last search found, by run: the server cannot count places in a search that is not at its end. */
export const foundNumbers = new Map();

/** The trajectory next to (way: 1 or -1) the one of an address: {number, at}, or null at the end of the list. */
export async function neighbour(query, way, signal) {
  const [run, number] = [query.get("run"), Number(query.get("number"))];
  if (query.has("at")) {
    const at = Number(query.get("at")) + way;
    if (at < 0) return null;
    const answer = await get("trajectories", { run, ...filtersOf(query), offset: at, limit: 1 }, signal);
    return answer.rows.length ? { number: answer.rows[0].number, at } : null;
  }
  const found = foundNumbers.get(run) ?? [];
  const place = found.indexOf(number);
  if (place >= 0) return place + way in found ? { number: found[place + way], at: null } : null;
  return number + way >= 0 ? { number: number + way, at: null } : null;
}
