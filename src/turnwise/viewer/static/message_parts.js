/** What a model's message says: thinking, answer, calls and the rest, by its tags. */

const TAG = /<(\/?)(think|answer|tool_call)>/g;

/** [{kind: "think" | "answer" | "tool_call" | "plain" | "tag", text}], which together are the whole text. */
export function messageParts(content) {
  const parts = [];
  const add = (kind, text) => text && parts.push({ kind, text });
  let inside = opensInThought(content) ? "think" : "plain";
  let done = 0;
  for (const found of content.matchAll(TAG)) {
    add(inside, content.slice(done, found.index));
    add("tag", found[0]);
    done = found.index + found[0].length;
    inside = found[1] ? "plain" : found[2];
  }
  add(inside, content.slice(done));
  return parts;
}

/** The prompt may have opened the thought: then the message closes what it did not open. */
function opensInThought(content) {
  const close = content.indexOf("</think>");
  return close >= 0 && !content.slice(0, close).includes("<think>");
}
