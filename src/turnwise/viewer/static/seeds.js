/** Runs that differ by nothing but their seed. */

const OF_THE_SEED = /^(seed|record\.name|record\.folder|system\.threads)$/;

/** Runs with equal settings, together: [[run, ...], ...] in the order of the runs. */
export function bySettings(runs, settings) {
  const groups = new Map();
  for (const run of runs) {
    const own = Object.entries(settings.get(run) ?? { run }).filter(([key]) => !OF_THE_SEED.test(key));
    const key = JSON.stringify(own.sort(([one], [other]) => (one < other ? -1 : 1)));
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(run);
  }
  return [...groups.values()];
}

/** A name for several runs: what they have in common. */
export function commonName(runs) {
  if (runs.length === 1) return runs[0];
  let length = 0;
  while (runs.every((run) => length < run.length && run[length] === runs[0][length])) length += 1;
  const name = runs[0].slice(0, length).replace(/[-_./ ]*(seed)?[-_./ ]*$/, "");
  return `${name || runs[0]} (mean of ${runs.length} seeds)`;
}
