/** What the studio adds to the viewer's page. `viewer/static/plugins.js` describes the exports. */

import { h } from "/static/dom.js";
import { episodeTools, labelSection } from "./labels.js";
import { runTools } from "./run_tools.js";
import { showJobs } from "./jobs.js";
import { showNewRun } from "./new_run.js";
import { checkpointTools, showPlay } from "./play.js";

export const VIEWS = { jobs: showJobs, new_run: showNewRun, play: showPlay };
export const PARENTS = { new_run: "jobs" };
export const LINKS = [
  { view: "jobs", text: "Jobs" },
  { view: "play", text: "Play" },
];
export const runSections = labelSection;
export { checkpointTools, episodeTools, runTools };

document.head.append(h("link", { rel: "stylesheet", href: "/studio/studio.css" }));
