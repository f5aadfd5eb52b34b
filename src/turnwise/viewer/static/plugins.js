/** Parts of the page that an extension adds. The plain viewer has none. An extension exports, each if it wants:

    VIEWS       views by name, called as the viewer's own: (main, query, signal)
    LINKS       [{view, text}] for the navigation
    PARENTS     {view: the view whose link is marked}
    runTools, runSections
                functions (run, signal) that return nodes to show on the page of a run
    checkpointTools
                function (run, checkpoint) that returns nodes to show beside a checkpoint
    episodeTools
                function (answer, number, signal) that returns nodes to show on the page of an episode
*/

import { EXTENSIONS } from "./extensions.js";

export const EXTRA_VIEWS = Object.assign({}, ...EXTENSIONS.map((each) => each.VIEWS));
export const EXTRA_PARENTS = Object.assign({}, ...EXTENSIONS.map((each) => each.PARENTS));
export const EXTRA_LINKS = EXTENSIONS.flatMap((each) => each.LINKS ?? []);

/** Return the nodes that extensions add at a place of the page. */
export function collect(hook, ...details) {
  return EXTENSIONS.map((each) => each[hook]?.(...details) ?? []);
}
