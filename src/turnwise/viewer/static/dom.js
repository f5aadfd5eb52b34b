/** Elements created without HTML: text stays text, so that nothing that a model wrote can run. */

import { marked, textNodes } from "./visible.js";

/** Create an element. Properties: class, style and dataset (objects), event handlers (onclick), other attributes. */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) setProperty(element, name, value);
  return put(element, ...children);
}

/** Append nodes and text; null and false are left out. */
export function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) element.append(child);
    else element.append(...textNodes(String(child)));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return put(element, ...children);
}

function setProperty(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "class") element.className = value;
  else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
  else if (name === "dataset") Object.assign(element.dataset, value);
  else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else element.setAttribute(name, value === true ? "" : marked(String(value)));
}

/** Return a link to the page above and the title of this one. */
export function breadcrumb(href, above, title) {
  const links = [h("a", { href }, above), h("span", {}, "›"), h("h1", {}, title)];
  return h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, links);
}

export function button(label, onclick, properties) {
  return h("button", { type: "button", onclick, ...properties }, label);
}

/** Create a labelled select. `options`: texts, or pairs of value and text. */
export function select(label, options, chosen, onchange) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  const items = pairs.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text));
  // h() marks invisible characters in attributes, but the value must be read back unchanged.
  items.forEach((item, index) => (item.value = pairs[index][0]));
  return h(
    "label",
    { class: "field" },
    h("span", {}, label),
    h("select", { onchange: (event) => onchange(event.target.value) }, items),
  );
}

export function input(label, value, onchange, properties) {
  const field = h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...properties });
  field.value = value ?? "";
  field.addEventListener("change", () => onchange(field.value));
  return h("label", { class: "field" }, h("span", {}, label), field);
}

export function note(...children) {
  return h("p", { class: "note" }, ...children);
}

export function failure(error) {
  return h("p", { class: "failure", role: "alert" }, error.message);
}
