/** The page: shows the view that the address names, and the parts that all views share. */

import { showBeforeAfter } from "./before_after.js";
import { showCompare } from "./compare.js";
import { showCurves } from "./curves.js";
import { button, failure, h, put, replace } from "./dom.js";
import { showGroup } from "./group.js";
import { bind, listBindings, startKeys } from "./keys.js";
import { isDark } from "./palette.js";
import { EXTRA_LINKS, EXTRA_PARENTS, EXTRA_VIEWS } from "./plugins.js";
import { address, go, parse } from "./router.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";
import { hideTip } from "./tip.js";
import { showTokens } from "./tokens.js";
import { showTrajectories } from "./trajectory_list.js";
import { showTrajectory } from "./trajectory.js";

const VIEWS = {
  runs: showRuns,
  run: showRun,
  curves: showCurves,
  trajectories: showTrajectories,
  trajectory: showTrajectory,
  group: showGroup,
  tokens: showTokens,
  compare: showCompare,
  before_after: showBeforeAfter,
  ...EXTRA_VIEWS,
};
const PARENT_VIEWS = {
  run: "runs",
  trajectory: "trajectories",
  group: "trajectories",
  tokens: "trajectories",
  before_after: "curves",
  ...EXTRA_PARENTS,
};

let current = new AbortController();

async function show() {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  const { view, query } = parse(location.hash);
  const main = document.getElementById("main");
  hideTip();
  updateNavigation(view, query);
  const fresh = h("div", { class: `view view-${view}` });
  main.setAttribute("aria-busy", "true");
  if (VIEWS[view] === undefined)
    put(fresh, h("h1", {}, "Unknown view"), h("p", {}, h("a", { href: "#/runs" }, "All runs")));
  const showUnfinished = setTimeout(() => signal.aborted || replace(main, fresh), 150);
  try {
    await VIEWS[view]?.(fresh, query, signal);
  } catch (error) {
    if (signal.aborted) return;
    put(fresh, failure(error), button("Try again", show));
  } finally {
    clearTimeout(showUnfinished);
  }
  if (signal.aborted) return;
  if (fresh.parentElement !== main) replace(main, fresh);
  main.setAttribute("aria-busy", "false");
}

/** Mark the link of the current view, and let the other links keep the current run. */
function updateNavigation(view, query) {
  const section = PARENT_VIEWS[view] ?? view;
  const run = query.get("run") ?? query.get("one");
  document.title = [run, section, "turnwise"].filter(Boolean).join(" · ");
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === section) {
      link.setAttribute("aria-current", "page");
      link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft; // on a phone the links scroll
    } else link.removeAttribute("aria-current");
    const entries =
      { curves: { run: query.getAll("run") }, trajectories: { run }, compare: { one: run, other: query.get("other") } }[
        link.dataset.view
      ] ?? {};
    link.href = address(link.dataset.view, entries);
  }
}

function showKeys() {
  const dialog = document.getElementById("keys");
  const rows = listBindings().map(({ keys, meaning }) =>
    h(
      "div",
      {},
      h(
        "dt",
        {},
        keys.map((key) => h("kbd", {}, key)),
      ),
      h("dd", {}, meaning),
    ),
  );
  replace(
    dialog,
    h("h2", {}, "Keyboard shortcuts"),
    h("dl", {}, rows),
    button("Close", () => dialog.close()),
  );
  dialog.showModal();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("turnwise-theme", theme);
  window.dispatchEvent(new Event("turnwise-theme"));
}

function start() {
  const stored = localStorage.getItem("turnwise-theme");
  if (stored) document.documentElement.dataset.theme = stored;
  const switchTheme = () => setTheme(isDark() ? "light" : "dark");
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("help").addEventListener("click", showKeys);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    window.dispatchEvent(new Event("turnwise-theme")),
  );
  bind("?", "show keyboard shortcuts", showKeys);
  bind("t", "switch theme", switchTheme);
  const navigation = document.querySelector("nav");
  put(navigation, ...EXTRA_LINKS.map(({ view, text }) => h("a", { dataset: { view }, href: address(view) }, text)));
  [...navigation.querySelectorAll("[data-view]")].forEach((link, index) =>
    bind(String(index + 1), link.dataset.view, () => link.click()),
  );
  startKeys();
  window.addEventListener("hashchange", show);
  if (!location.hash) go("runs", {}, { replace: true });
  else show();
}

start();
