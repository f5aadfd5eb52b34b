/** What the server knows, as JSON. */

export class ApiError extends Error {}

/** GET /api/`name`. Parameters that are null or "" are left out; `signal` ends a request whose view is gone. */
export async function get(name, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  let response;
  try {
    response = await fetch(`/api/${name}?${query}`, { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer: is `turnwise view` still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(answer.error ?? `the server answered ${response.status}`);
  return answer;
}
