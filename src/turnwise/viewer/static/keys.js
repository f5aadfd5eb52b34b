/** Keyboard shortcuts: each view registers its own; `?` lists them. */

let bindings = [];

/** Bind a key, or a list of keys, as in KeyboardEvent.key. The binding ends when `signal` aborts. */
export function bind(key, meaning, action, signal = undefined) {
  const binding = { keys: [].concat(key), meaning, action };
  bindings.push(binding);
  signal?.addEventListener("abort", () => (bindings = bindings.filter((each) => each !== binding)));
}

/** List a key that is handled elsewhere. */
export function explain(key, meaning, signal) {
  bind(key, meaning, null, signal);
}

function isTyping(target) {
  return target.closest?.("input:not([type=checkbox]):not([type=range]), textarea, select") !== null;
}

/** Return whether the focused control handles the key itself: space on a button, arrows on a slider. */
function isHandledByControl(event) {
  const target = event.target;
  if (event.key === " " || event.key === "Enter") return target.closest?.("button, a, summary, input, label") !== null;
  return event.key.startsWith("Arrow") && target.closest?.("[data-arrows], input") !== null;
}

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (isTyping(event.target) || isHandledByControl(event) || document.getElementById("keys").open) return;
    const binding = bindings.findLast((each) => each.action && each.keys.includes(event.key));
    if (!binding) return;
    event.preventDefault();
    binding.action(event);
  });
}

const KEY_LABELS = { " ": "space", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };

export function listBindings() {
  return bindings.map(({ keys, meaning }) => ({ keys: keys.map((key) => KEY_LABELS[key] ?? key), meaning }));
}
