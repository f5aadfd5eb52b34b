/** The runs of the folder. */

import { get } from "./api.js";

export async function runList(signal) {
  return (await get("runs", {}, signal)).runs;
}

/** The one that was written to last. */
export function newestRun(runs) {
  return runs.reduce((best, run) => (best === null || (run.updated ?? 0) > (best.updated ?? 0) ? run : best), null);
}
