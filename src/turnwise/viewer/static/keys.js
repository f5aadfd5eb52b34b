/** Keys: each view says which it has; `?` shows them all. */

let bindings = [];

/** `key` as in KeyboardEvent.key; several by a list. Bindings of a view end with its `signal`. */
export function bind(key, meaning, action, signal = undefined) {
  const binding = { keys: [].concat(key), meaning, action };
  bindings.push(binding);
  signal?.addEventListener("abort", () => (bindings = bindings.filter((each) => each !== binding)));
}

/** Says what a key does whose handling is elsewhere. */
export function explain(key, meaning, signal) {
  bind(key, meaning, null, signal);
}

function isTyping(target) {
  return target.closest?.("input:not([type=checkbox]):not([type=range]), textarea, select") !== null;
}

/** Keys that a focused control needs for itself: space on a button, arrows on a slider. */
function isOwn(event) {
  const target = event.target;
  if (event.key === " " || event.key === "Enter") return target.closest?.("button, a, summary, input, label") !== null;
  return event.key.startsWith("Arrow") && target.closest?.("[data-arrows], input") !== null;
}

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (isTyping(event.target) || isOwn(event) || document.getElementById("keys").open) return;
    const binding = bindings.findLast((each) => each.action && each.keys.includes(event.key));
    if (!binding) return;
    event.preventDefault();
    binding.action(event);
  });
}

const SHOWN = { " ": "space", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };

export function shownBindings() {
  return bindings.map(({ keys, meaning }) => ({ keys: keys.map((key) => SHOWN[key] ?? key), meaning }));
}
