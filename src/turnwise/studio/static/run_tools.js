/** Tools on the page of a run: stop, resume and fork it. */

import { failure, button, h, replace } from "/static/dom.js";
import { address, go } from "/static/router.js";
import { fetchJobs, jobOf, stopButtons } from "./jobs.js";
import { post } from "./requests.js";

export function runTools(run, signal) {
  if (run.kind === "evaluation") return [];
  const tools = h("span", { class: "row", role: "group", "aria-label": "Studio" });
  const fill = async () => {
    const job = jobOf(await fetchJobs(signal), run.id);
    const showError = (error) => replace(tools, failure(error), button("Try again", fill));
    const resume = () => post("jobs", { resume: run.id }).then(() => go("jobs"), showError);
    replace(
      tools,
      job && stopButtons(job, fill, showError),
      !job && run.status === "stopped" && button("Resume", resume, { title: "Continues from the last checkpoint" }),
      h("a", { class: "button", href: address("new_run", { from: run.id }) }, "Fork"),
    );
  };
  fill().catch((error) => error.name === "AbortError" || replace(tools, failure(error)));
  return [tools];
}
