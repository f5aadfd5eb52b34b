/** A conversation with the model. */

import { button, h, note } from "/static/dom.js";
import { Turns } from "./episode_pane.js";

export class ChatPane {
  /** `send(command)` resolves when the command is done, to whether it succeeded. */
  constructor(send, signal) {
    Object.assign(this, { send, part: null });
    this.turns = new Turns(true, signal);
    this.system = h("textarea", { rows: 2 });
    this.text = h("textarea", { rows: 3, id: "chat-text", onkeydown: (event) => this.onKey(event) });
    this.submit = button("Send", () => this.say(), { class: "primary" });
    this.begin = button("New conversation", () => this.start());
    this.spoken = h("div", { class: "hidden", role: "status" });
    this.over = note("The conversation has reached the model's limit of tokens. Start a new one.");
    this.over.hidden = true;
    this.element = h(
      "section",
      { class: "card", "aria-label": "Conversation" },
      h("h2", {}, "Chat"),
      h("details", {}, h("summary", {}, "System message"), h("label", { class: "play-text" }, h("span", {}, "For the next new conversation"), this.system)),
      this.turns.element,
      this.spoken,
      this.over,
      h("label", { class: "play-text" }, h("span", {}, "Message"), this.text),
      h("div", { class: "tools" }, this.submit, this.begin, this.turns.choice),
    );
  }

  show({ chat }) {
    const text = JSON.stringify(chat);
    if (!chat || text === this.shown) return;
    Object.assign(this, { part: chat, shown: text });
    this.turns.show(chat);
    this.spoken.textContent = chat.row.turns.at(-1)?.message.content ?? "";
    this.over.hidden = !chat.over;
  }

  setBusy(isBusy) {
    this.begin.disabled = isBusy;
    this.submit.disabled = isBusy || Boolean(this.part?.over);
  }

  start() {
    return this.send({ do: "start", part: "chat", text: this.system.value });
  }

  async say() {
    const text = this.text.value.trim();
    if (!text) return;
    if (!this.part && !(await this.start())) return;
    if (await this.send({ do: "say", part: "chat", text })) this.text.value = "";
  }

  focus() {
    this.text.focus();
  }

  onKey(event) {
    if (event.key === "Escape") this.text.blur();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.submit.disabled) this.say();
  }
}
