/** Requests that write. The server accepts them only from this page. */

import { readAnswer } from "/static/api.js";

/** Return the response of POST /api/studio/`path`. */
export async function post(path, body = {}, signal = undefined) {
  return readAnswer(
    fetch(`/api/studio/${path}`, {
      method: "POST",
      signal,
      credentials: "same-origin",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    }),
  );
}
