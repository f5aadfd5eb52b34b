/** Every view has an address: `#/view?name=value`, which can be shared and which the back button knows. */

export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: path || "runs", query: new URLSearchParams(query) };
}

/** `entries`: an object; lists give a name several times, null and "" leave it out. */
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

/** Goes to a view. `replace`: the back button skips the address that is left. */
export function go(view, entries, { replace = false } = {}) {
  const hash = address(view, entries);
  if (hash === location.hash) return window.dispatchEvent(new HashChangeEvent("hashchange"));
  if (replace) location.replace(hash);
  else location.hash = hash;
}

/** Writes into the address what the view already shows, without showing it again. */
export function remember(view, entries) {
  history.replaceState(null, "", address(view, entries));
}
