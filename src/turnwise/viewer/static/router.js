/** Addresses of views: `#/view?name=value`, which can be shared and which the back button returns to. */

export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: path || "runs", query: new URLSearchParams(query) };
}

/** `entries`: an object; a list repeats the name, null and "" leave it out. */
export function address(view, entries = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(entries)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "" && each !== false) query.append(name, String(each));
    }
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

/** Go to a view. `replace`: the back button skips the current address. */
export function go(view, entries, { replace = false } = {}) {
  const hash = address(view, entries);
  if (hash === location.hash) return window.dispatchEvent(new HashChangeEvent("hashchange"));
  if (replace) location.replace(hash);
  else location.hash = hash;
}

/** Update the address to what the view shows, without showing the view again. */
export function remember(view, entries) {
  history.replaceState(null, "", address(view, entries));
}
