/** The view of jobs: what waits, runs and has ended, with its log. */

import { get } from "/static/api.js";
import { button, failure, h, note, put, replace } from "/static/dom.js";
import { ago, duration } from "/static/format.js";
import { bind } from "/static/keys.js";
import { poll } from "/static/poll.js";
import { address, go } from "/static/router.js";
import { post } from "./requests.js";

const MARKS = { waiting: "…", running: "●", stopping: "◍", finished: "✓", stopped: "◌", cancelled: "–", failed: "✗", lost: "✗" };
const ACTIVE = ["running", "stopping"];

export async function showJobs(main, query, signal) {
  await new JobsView(main, signal).start();
}

export async function fetchJobs(signal) {
  return (await get("studio/jobs", {}, signal)).jobs;
}

/** Return the job that runs or waits for a run, or null. */
export function jobOf(jobs, run) {
  return jobs.findLast((job) => job.run === run && (ACTIVE.includes(job.status) || job.status === "waiting")) ?? null;
}

/** Buttons that stop a job. `after` is called when the request was accepted. */
export function stopButtons(job, after, showError) {
  const send = (now) => () => post(`jobs/${job.number}/stop`, { now }).then(after, showError);
  if (job.status === "waiting") return [button("Cancel", send(false))];
  if (job.status === "running") return [button("Stop", send(false), { title: "Saves a checkpoint and stops" })];
  if (job.status === "stopping")
    return [button("Kill", send(true), { title: "Ends at once, without a checkpoint of the last steps" })];
  return [];
}

class JobsView {
  constructor(main, signal) {
    Object.assign(this, { main, signal, shown: "", logs: new Map() });
    this.table = h("table", { class: "list jobs" });
    this.message = h("div", { role: "status" });
  }

  async start() {
    const fresh = h("a", { class: "button primary", href: address("new_run") }, "New run");
    put(this.main, h("div", { class: "title" }, h("h1", {}, "Jobs"), fresh), this.message, h("div", { class: "scroll" }, this.table));
    bind("n", "new run", () => go("new_run"), this.signal);
    poll(() => this.update(), this.signal, await this.update());
  }

  async update() {
    const { jobs, problem } = await get("studio/jobs", {}, this.signal);
    if (problem) replace(this.message, failure({ message: `Waiting jobs cannot start: ${problem}` }));
    const now = JSON.stringify(jobs);
    if (now !== this.shown) this.fill(jobs);
    this.shown = now;
    await Promise.all([...this.logs.values()].map((log) => log.update()));
    return jobs.some((job) => ACTIVE.includes(job.status) || job.status === "waiting");
  }

  fill(jobs) {
    const focused = document.activeElement?.dataset?.focus;
    const titles = ["Job", "Run", "Status", "Time", "Actions"].map((title) => h("th", { scope: "col" }, title));
    const none = note("No jobs yet. ", h("a", { href: address("new_run") }, "Start a run"), ".");
    replace(
      this.table,
      h("caption", { class: "hidden" }, "Jobs"),
      h("thead", {}, h("tr", {}, titles)),
      h("tbody", {}, jobs.toReversed().map((job) => this.rows(job)), !jobs.length && h("tr", {}, h("td", { colspan: 5 }, none))),
    );
    if (focused) [...this.table.querySelectorAll("[data-focus]")].find((each) => each.dataset.focus === focused)?.focus();
  }

  rows(job) {
    const isOpen = this.logs.has(job.number);
    const toggle = button(isOpen ? "Hide log" : "Log", () => this.toggleLog(job), {
      "aria-expanded": String(isOpen),
      dataset: { focus: `log ${job.number}` },
      disabled: job.status === "waiting" || job.status === "cancelled",
    });
    const ended = !ACTIVE.includes(job.status) && job.status !== "waiting";
    const showError = (error) => replace(this.message, failure(error));
    const actions = [
      toggle,
      stopButtons(job, () => this.update(), showError),
      ended && button("Remove", () => this.remove(job), { title: "Removes the job from this list; its run stays" }),
    ];
    const row = h(
      "tr",
      { dataset: { job: job.number } },
      h("td", {}, `${job.number} `, job.title),
      h("td", {}, job.started ? h("a", { href: address("run", { run: job.run }) }, job.run) : job.run),
      h("td", {}, statusMark(job.status), job.error && h("p", { class: "job-error" }, job.error)),
      h("td", {}, timeText(job)),
      h("td", {}, h("span", { class: "row" }, actions)),
    );
    return [row, isOpen && h("tr", { class: "log-row" }, h("td", { colspan: 5 }, this.logs.get(job.number).element))];
  }

  async toggleLog(job) {
    if (this.logs.has(job.number)) this.logs.delete(job.number);
    else this.logs.set(job.number, new Log(job, this.signal));
    this.shown = "";
    await this.update();
  }

  async remove(job) {
    this.logs.delete(job.number);
    await post(`jobs/${job.number}/remove`).catch((error) => replace(this.message, failure(error)));
    await this.update();
  }
}

function statusMark(status) {
  return h("span", { class: `status ${status}` }, h("i", { "aria-hidden": "true" }, MARKS[status]), status);
}

function timeText(job) {
  if (!job.started) return `added ${ago(job.created)}`;
  const spent = duration((job.ended ?? Date.now() / 1000) - job.started);
  return job.ended ? `${spent}, ended ${ago(job.ended)}` : spent;
}

const MAX_LOG_CHARS = 200_000;

/** The end of a job's log, which grows while the job runs. */
class Log {
  constructor(job, signal) {
    Object.assign(this, { job, signal, next: -1, busy: false });
    this.element = h("pre", { class: "log", tabindex: "0", "aria-label": `Log of job ${job.number}` });
  }

  async update() {
    if (this.busy) return;
    this.busy = true;
    try {
      const { text, next } = await get(`studio/jobs/${this.job.number}/log`, { after: this.next }, this.signal);
      this.next = next;
      if (!text) return;
      const isAtEnd = this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < 8;
      put(this.element, text);
      while (this.element.childNodes.length > 1 && this.element.textContent.length > MAX_LOG_CHARS)
        this.element.firstChild.remove();
      if (isAtEnd) this.element.scrollTop = this.element.scrollHeight;
    } finally {
      this.busy = false;
    }
  }
}
