/** Fields of the form of a new run, made from the schema of the settings. */

import { h, replace } from "/static/dom.js";

let numFields = 0;

/** A labelled field for one setting. `onchange(name, text)` is called when its text has changed. */
export class Field {
  /** `setting`: {name, doc, allowed, names, types, optional, takes_own, bounds}. */
  constructor(setting, onchange) {
    this.setting = setting;
    this.id = `field-${(numFields += 1)}`;
    this.control = this.makeControl();
    this.control.addEventListener("change", () => onchange(setting.name, this.control.value.trim()));
    this.mark = h("span", { class: "mark", hidden: true }, "changed");
    this.error = h("span", { class: "field-error", id: `${this.id}-error`, hidden: true });
    this.element = h(
      "div",
      { class: "setting", dataset: { name: setting.name } },
      h("label", { for: this.id }, h("code", {}, setting.name), this.mark),
      this.control,
      h("span", { class: "help", id: `${this.id}-help` }, `${setting.doc} (${setting.allowed})`),
      this.error,
    );
  }

  makeControl() {
    const { names, optional, takes_own: takesOwn, types } = this.setting;
    const shared = { id: this.id, "aria-describedby": `${this.id}-help ${this.id}-error` };
    const choices = types.includes("boolean") && types.length === 1 ? ["true", "false"] : names;
    if (choices.length && !takesOwn) {
      const all = optional ? [...choices, "none"] : choices;
      return h("select", shared, all.map((name) => h("option", { value: name }, name)));
    }
    const isNumber = types.every((type) => type === "integer" || type === "number");
    const list = choices.length ? h("datalist", { id: `${this.id}-names` }, choices.map((name) => h("option", { value: name }))) : null;
    if (list) document.body.append(list);
    this.list = list;
    return h("input", {
      ...shared,
      type: "text",
      autocomplete: "off",
      spellcheck: "false",
      inputmode: isNumber && !optional ? "decimal" : null,
      list: list?.id,
    });
  }

  /** Show the value that the run has. A value that is being typed stays. */
  show(value, isChanged) {
    if (document.activeElement !== this.control && this.control.value !== value) {
      if (this.control.tagName === "SELECT" && ![...this.control.options].some((option) => option.value === value))
        this.control.append(h("option", { value }, value));
      this.control.value = value;
    }
    this.mark.hidden = !isChanged;
  }

  fail(message) {
    this.error.hidden = !message;
    replace(this.error, message ?? "");
    if (message) this.control.setAttribute("aria-invalid", "true");
    else this.control.removeAttribute("aria-invalid");
  }

  remove() {
    this.list?.remove();
  }
}
