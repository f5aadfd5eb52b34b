/** Labels of episodes, good or bad, and what they can train. */

import { get } from "/static/api.js";
import { button, failure, h, note, replace } from "/static/dom.js";
import { bind } from "/static/keys.js";
import { address } from "/static/router.js";
import { post } from "./requests.js";

const LABELS = [
  ["good", "Good", "y"],
  ["bad", "Bad", "x"],
];

/** Buttons on the page of an episode; a pressed one removes its label. */
export function episodeTools(answer, number, signal) {
  if (answer.row.step === 0 && !answer.row.evaluation) return []; // an episode of `turnwise eval`, which has no labels
  const { run } = answer;
  const group = h("div", { class: "tools labels", role: "group", "aria-label": "Label" });
  const status = h("span", { class: "faint", role: "status" });
  let current = "none";
  const buttons = LABELS.map(([label, text, key]) => [
    label,
    button(text, () => set(current === label ? "none" : label), { class: `label-${label}`, title: key, disabled: true }),
  ]);
  const show = (label) => {
    current = label;
    for (const [name, element] of buttons) element.setAttribute("aria-pressed", String(name === label));
  };
  const set = async (label) => {
    try {
      show((await post("label", { run, number, label }, signal)).label);
      status.textContent = label === "none" ? "Label removed" : `Labelled ${label}`;
    } catch (error) {
      if (error.name !== "AbortError") replace(status, failure(error));
    }
  };
  replace(group, h("span", { class: "faint" }, "This episode is"), buttons.map(([, element]) => element), status);
  get("studio/label", { run, number }, signal).then(
    ({ label }) => {
      show(label);
      for (const [, element] of buttons) element.disabled = false;
    },
    (error) => error.name === "AbortError" || replace(status, failure(error)),
  );
  for (const [index, [label, text, key]] of LABELS.entries())
    bind(key, `label the episode ${text.toLowerCase()}`, () => buttons[index][1].click(), signal);
  return [group];
}

/** How many episodes of a run are labelled, and the runs that can be started from them. */
export function labelSection(run, signal) {
  if (run.kind !== "run") return [];
  const section = h("section", { class: "card", hidden: true });
  get("studio/labels", { run: run.id }, signal).then(
    (labels) => {
      section.hidden = false;
      replace(section, h("h2", {}, "Labels"), describe(run, labels));
    },
    (error) => {
      if (error.name === "AbortError") return;
      section.hidden = false;
      replace(section, h("h2", {}, "Labels"), failure(error));
    },
  );
  return [section];
}

function describe(run, { good, bad, file, run: folder, target, commands }) {
  const episodes = h("a", { href: address("trajectories", { run: run.id }) }, "an episode");
  if (!good && !bad) return note("No episode is labelled. Open ", episodes, " and press y for good or x for bad.");
  const model = `model.name=${folder}`;
  const starts = [
    good > 0 && {
      text: "Fine-tune on the good ones",
      to: { target, command: "sft", set: [`sft.demos=${file}`, model] },
      command: commands.demonstrations,
    },
    good > 0 && bad > 0 && {
      text: "Prefer good to bad (DPO)",
      to: { from: run.id, set: [`data.sources=${file}`, "algo.preset=dpo", model] },
      command: commands.preferences,
    },
  ].filter(Boolean);
  return [
    note(`${good} good, ${bad} bad, in `, h("code", {}, file), "."),
    starts.map(({ text, to, command }) => [
      h("p", { class: "row" }, h("a", { class: "button", href: address("new_run", to) }, text)),
      h("pre", { class: "log" }, command),
    ]),
    good > 0 && bad > 0 && note("DPO compares good and bad episodes of the same task."),
  ];
}
