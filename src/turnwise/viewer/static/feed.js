/** Some metrics of one run, and those that come after while it is going. */

import { get } from "./api.js";
import { seriesOf } from "./series.js";

export class Feed {
  constructor(run, keys) {
    this.run = run;
    this.keys = keys;
    this.columns = {};
    this.made = new Map(); // series of the columns, until they change
    this.next = 0;
    this.generation = null; // of the file: another one where rows that are held are no longer in it
  }

  /** Fetches what is new; answers whether there was anything. */
  async update(signal) {
    const keys = ["step", ...this.keys.filter((key) => key !== "step")].join(",");
    const answer = await get("metrics", { run: this.run, after: this.next, keys, generation: this.generation }, signal);
    if (answer.reset) this.columns = {};
    const fresh = answer.columns.step?.length ?? 0;
    if (fresh || answer.reset) this.made.clear();
    for (const key of ["step", ...this.keys]) {
      const held = (this.columns[key] ??= []);
      const came = answer.columns[key] ?? new Array(fresh).fill(null);
      for (const value of came) held.push(value);
    }
    this.next = answer.next;
    this.generation = answer.generation;
    return fresh > 0 || answer.reset === true;
  }

  series(key) {
    if (!this.made.has(key)) this.made.set(key, seriesOf(this.columns, key));
    return this.made.get(key);
  }
}
