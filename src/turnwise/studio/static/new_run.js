/** The form of a new run or a fork: made from the schema of the settings, checked by the server, planned, started. */

import { get } from "/static/api.js";
import { breadcrumb, button, failure, h, input, note, put, replace, select } from "/static/dom.js";
import { address, go, remember } from "/static/router.js";
import { Field } from "./fields.js";
import { post } from "./requests.js";

/** Settings at the top of the form; all others are below, by section. */
const COMMON = [
  "record.name",
  "seed",
  "model.name",
  "train.steps",
  "train.learning_rate",
  "rollout.groups",
  "rollout.group_size",
  "algo.advantage",
  "algo.loss",
  "eval.every",
  "train.max_minutes",
];
/** Settings that the studio sets itself. */
const HIDDEN = ["record.folder", "record.parent", "env.params", "env.mix"];
const CHECK_DELAY_MS = 250;

export async function showNewRun(main, query, signal) {
  const form = await get("studio/form", {}, signal);
  await new NewRunView(main, form, query, signal).start();
}

class NewRunView {
  constructor(main, form, query, signal) {
    Object.assign(this, { main, form, signal, settings: {}, fields: new Map(), weights: false, plan: null, timer: 0 });
    this.parent = query.get("from");
    this.target = query.get("target") ?? "";
    this.command = query.get("command") === "sft" ? "sft" : "train";
    for (const pair of query.getAll("set")) {
      const [name, ...rest] = pair.split("=");
      this.settings[name] = rest.join("=");
    }
    this.startPart = h("section", { class: "card new-run-start" });
    this.body = h("div", { class: "new-run-settings" });
    this.bar = h("section", { class: "card new-run-bar", "aria-label": "Check, plan and start" });
    this.message = h("div", { role: "status", class: "new-run-message" });
    this.actions = h("div", { class: "actions" });
  }

  async start() {
    const title = this.parent ? `Fork of ${this.parent}` : "New run";
    put(
      this.main,
      h("div", { class: "title" }, breadcrumb("#/jobs", "Jobs", title)),
      this.startPart,
      this.bar,
      this.body,
    );
    put(this.bar, this.message, this.actions);
    this.fillStart();
    this.fillSections();
    this.signal.addEventListener("abort", () => {
      clearTimeout(this.timer);
      for (const field of this.fields.values()) field.remove();
    });
    await this.check();
  }

  fillStart() {
    const { recipes, environments } = this.form;
    if (this.parent)
      return put(
        this.startPart,
        note("Takes the settings of ", h("a", { href: address("run", { run: this.parent }) }, this.parent), "."),
        this.weightsChoice(),
      );
    const names = [
      ...recipes.map(({ name, doc }) => [name, `recipe: ${doc}`]),
      ...environments.filter(({ name }) => !recipes.some((recipe) => recipe.name === name)).map(({ name, doc }) => [name, doc]),
    ];
    const list = h("datalist", { id: "targets" }, names.map(([value, doc]) => h("option", { value }, doc)));
    const target = input("Train on", this.target, (text) => this.choose({ target: text.trim() }), {
      list: "targets",
      id: "target",
      placeholder: "recipe, environment, or FILE.py:Class",
    });
    const commands = [
      ["train", "reinforcement learning"],
      ["sft", "fine-tuning on demonstrations"],
    ];
    const command = select("by", commands, this.command, (value) => this.choose({ command: value }));
    return put(this.startPart, h("div", { class: "tools" }, target, command), list);
  }

  /** A fork starts with new weights, or continues with those of its parent. */
  weightsChoice() {
    const box = h("input", {
      type: "checkbox",
      id: "weights",
      onchange: () => {
        this.weights = box.checked;
        this.scheduleCheck();
      },
    });
    return h("label", { class: "check" }, box, "Continue from its last checkpoint instead of its initial model");
  }

  choose(change) {
    Object.assign(this, change);
    remember("new_run", { target: this.target, command: this.command === "sft" ? "sft" : null });
    this.scheduleCheck();
  }

  fillSections() {
    const { sections, settings } = this.form;
    const shown = settings.filter(({ name }) => !HIDDEN.includes(name));
    const byName = new Map(shown.map((setting) => [setting.name, setting]));
    const common = COMMON.map((name) => byName.get(name)).filter(Boolean);
    this.params = h("div");
    this.paramsSection = h("section", { class: "card", hidden: true }, h("h2", {}, "Environment"), this.params);
    const find = input("Find a setting", "", () => {}, { type: "search", placeholder: "name or description", id: "find-setting" });
    find.querySelector("input").addEventListener("input", (event) => this.filter(event.target.value));
    put(
      this.body,
      h("section", { class: "card" }, h("h2", {}, "Main settings"), this.fieldList(common)),
      this.paramsSection,
      h("div", { class: "tools" }, h("h2", {}, "All settings"), find),
      sections.map(({ name, doc }) => {
        const own = shown.filter((setting) => (setting.section || setting.name) === name && !COMMON.includes(setting.name));
        if (!own.length) return null;
        const count = h("span", { class: "faint" });
        return h("details", { class: "card section", dataset: { section: name } }, h("summary", {}, h("b", {}, name), " ", doc, " ", count), this.fieldList(own));
      }),
    );
  }

  fieldList(settings) {
    const fields = settings.map((setting) => new Field(setting, (name, text) => this.change(name, text)));
    for (const field of fields) this.fields.set(field.setting.name, field);
    return h("div", { class: "settings" }, fields.map((field) => field.element));
  }

  filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    for (const section of this.body.querySelectorAll("details.section")) {
      let found = 0;
      for (const element of section.querySelectorAll(".setting")) {
        const matches = words.every((word) => element.textContent.toLowerCase().includes(word));
        element.classList.toggle("filtered", !matches);
        found += matches && !element.hidden;
      }
      section.hidden = found === 0;
      section.open = words.length > 0 && found > 0;
    }
  }

  /** Take a changed field. Text that is equal to the value without it is not a setting of the run. */
  change(name, text) {
    if (text === "" && name !== "rollout.prefix") delete this.settings[name];
    else this.settings[name] = text;
    this.scheduleCheck();
  }

  scheduleCheck() {
    clearTimeout(this.timer);
    this.plan = null;
    this.showActions(false);
    this.timer = setTimeout(() => this.check(), CHECK_DELAY_MS);
  }

  request() {
    const start = this.parent ? { start_from: this.parent, weights: this.weights } : { target: this.target };
    return { command: this.command, ...start, settings: this.settings };
  }

  async check() {
    this.plan = null;
    if (!this.parent && !this.target) {
      this.body.hidden = true;
      replace(this.message, note("Choose what to train on: a recipe, an environment, or a file of your own."));
      return this.showActions(false);
    }
    const wanted = JSON.stringify(this.request());
    replace(this.message, note("Checking the settings …"));
    const answer = await post("check", this.request(), this.signal).catch((error) => ({ error: error.message, name: error.name }));
    if (this.signal.aborted || wanted !== JSON.stringify(this.request())) return undefined;
    this.showValues(answer);
    if (answer.error) {
      this.showError(answer.error);
      return this.showActions(false);
    }
    this.body.hidden = false;
    replace(this.message, note("The settings are valid."));
    return this.showActions(true);
  }

  /** Show the values of all settings; those that the chosen alternatives do not have are hidden. */
  showValues({ settings, params, error }) {
    for (const field of this.fields.values()) field.fail(null);
    if (error) return;
    this.showParams(params, settings);
    for (const [name, field] of this.fields) {
      const value = settings[name];
      if (name.startsWith("env.params.")) continue;
      field.element.hidden = value === undefined;
      if (value) field.show(value.value, name in this.settings);
    }
    for (const section of this.body.querySelectorAll("details.section")) {
      const changed = [...section.querySelectorAll(".setting")].filter((each) => settings[each.dataset.name]?.changed);
      replace(section.querySelector("summary .faint"), changed.length ? `${changed.length} not at the default` : "");
    }
  }

  /** The parameters of the environment, which depend on what is trained on. */
  showParams(params, settings) {
    const names = params.map(({ name }) => name).join();
    if (this.paramNames !== names) {
      this.paramNames = names;
      for (const [name, field] of [...this.fields].filter(([each]) => each.startsWith("env.params."))) {
        field.remove();
        this.fields.delete(name);
      }
      this.paramsSection.hidden = !params.length;
      replace(this.params, this.fieldList(params));
    }
    for (const { name, default: standard } of params)
      this.fields.get(name).show(settings[name]?.value ?? standard, name in this.settings);
  }

  /** Show an error beside the field that it names, and at the top. */
  showError(text) {
    replace(this.message, failure({ message: text }));
    const named = [...this.fields.keys()].filter((name) => text.includes(name)).sort((one, other) => other.length - one.length)[0];
    this.fields.get(named)?.fail(text);
  }

  showActions(isValid) {
    const canPlan = this.command === "train";
    replace(
      this.actions,
      canPlan && button("Plan", () => this.makePlan(), { disabled: !isValid, id: "plan" }),
      button("Start", () => this.submit(), {
        disabled: !isValid || (canPlan && !this.plan),
        id: "start",
        class: "primary",
        title: canPlan && !this.plan ? "Plan first" : null,
      }),
      Object.keys(this.settings).length > 0 && button("Undo all changes", () => this.undo()),
    );
  }

  undo() {
    this.settings = {};
    this.scheduleCheck();
  }

  async makePlan() {
    const wanted = JSON.stringify(this.request());
    this.showActions(false);
    replace(this.message, note("Planning: this checks everything that the run needs, which takes some seconds …"));
    const plan = await post("plan", this.request(), this.signal).catch((error) => ({ error: error.message }));
    if (this.signal.aborted || wanted !== JSON.stringify(this.request())) return;
    if (plan.error) this.showError(plan.error);
    else {
      this.plan = plan;
      replace(this.message, planElement(plan));
    }
    this.showActions(true);
    document.getElementById(plan.error ? "plan" : "start").focus();
  }

  async submit() {
    try {
      await post("jobs", this.request(), this.signal);
      go("jobs");
    } catch (error) {
      if (error.name !== "AbortError") this.showError(error.message);
    }
  }
}

function planElement(plan) {
  const cells = (row, tag) => row.map((cell) => h(tag, tag === "th" ? { scope: "col" } : {}, cell));
  const table = plan.memory_rows.length > 0 &&
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "plan-memory" },
        h("caption", { class: "hidden" }, "Memory"),
        h("thead", {}, h("tr", {}, cells(plan.memory_headers, "th"))),
        h("tbody", {}, plan.memory_rows.map((row) => h("tr", {}, cells(row, "td")))),
      ),
    );
  return h("div", { class: "plan" }, h("h2", {}, "Plan"), plan.lines.map((line) => h("p", {}, line)), table);
}
