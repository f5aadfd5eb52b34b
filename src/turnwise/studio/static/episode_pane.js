/** An episode that is played turn by turn, by the model or by hand. */

import { completeRow } from "/static/api.js";
import { context, statusBadge, turnCard } from "/static/conversation.js";
import { button, h, input, note, put, replace, select } from "/static/dom.js";
import { signed } from "/static/format.js";
import { bind } from "/static/keys.js";
import { stateElement, statesOf } from "/static/states.js";
import { TokensView } from "/static/tokens.js";

const SPLITS = ["test", "validation", "train"];
const ARROWS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };

/** Shared by the episode and the conversation: turns as cards or as tokens. */
export class Turns {
  constructor(isChat, signal) {
    Object.assign(this, { isChat, signal, shown: null, inTokens: false, by: "logprob" });
    this.element = h("div", { class: "turns", role: "group", "aria-label": isChat ? "Conversation" : "Turns" });
    this.box = h("input", { type: "checkbox", onchange: () => this.toggle() });
    this.choice = h("label", { class: "check" }, this.box, "Tokens");
  }

  toggle() {
    this.inTokens = this.box.checked;
    if (this.shown) this.show(this.shown);
  }

  show(part) {
    this.shown = part;
    this.tokens?.abort();
    const row = completeRow(part.row);
    const options = { vocabulary: part.tokens, imageUrl: (hash) => part.images[hash] ?? "", evaluation: "played" };
    if (this.inTokens && row.turns.length) {
      this.tokens = new AbortController();
      const body = h("div", {});
      const view = new TokensView(body, { row, tokens: part.tokens }, { by: this.by, onchoice: (by) => (this.by = by) }, AbortSignal.any([this.signal, this.tokens.signal]));
      replace(this.element, body);
      view.start();
    } else {
      const cards = row.turns.map((turn, index) =>
        turnCard(this.isChat ? { ...turn, reward: null, turn_reward: null } : turn, index, null, options),
      );
      replace(this.element, cards);
    }
    if (part.pending) put(this.element, h("article", { class: "turn pending" }, context({ ...part.pending }, options)));
  }
}

export class EpisodePane {
  /** `send(command)` resolves when the command is done, to whether it succeeded; `htmlUrl(turn)`: see `statesOf`. */
  constructor(send, htmlUrl, signal) {
    Object.assign(this, { send, htmlUrl, signal, isPlaying: false, part: null, environments: [], wanted: { split: "test", task: 0 } });
    this.turns = new Turns(false, signal);
    this.board = h("div", { class: "board" });
    this.result = h("div", { class: "play-result", role: "status" });
    this.actions = h("div", { class: "tools", role: "group", "aria-label": "Actions" });
    this.reply = h("textarea", { rows: 2, id: "play-reply", onkeydown: (event) => this.onKey(event) });
    this.sample = button("Let the agent reply", () => this.command({ do: "sample" }), { title: "a" });
    this.play = button("Let it play on", () => this.togglePlay(), { title: "p", "aria-pressed": "false" });
    this.hint = button("Hint", () => this.command({ do: "hint" }), { title: "h" });
    this.submit = button("Send", () => this.sendReply());
    this.begin = button("New episode", () => this.start(), { class: "primary", title: "n" });
    this.controls = h("div", { class: "tools" });
    this.body = h(
      "div",
      { hidden: true },
      this.board,
      this.result,
      h("div", { class: "tools" }, this.sample, this.play, this.hint, this.turns.choice),
      this.actions,
      h("label", { class: "play-text" }, h("span", {}, "Reply yourself"), this.reply),
      this.submit,
      this.turns.element,
    );
    this.element = h("section", { class: "card", "aria-label": "Episode" }, h("h2", {}, "Play"), this.controls, this.body);
    this.listen();
  }

  listen() {
    const when = (control, action) => () => control.disabled || this.body.hidden || action();
    bind("n", "new episode", () => this.begin.disabled || this.start(), this.signal);
    bind("a", "let the agent reply", when(this.sample, () => this.sample.click()), this.signal);
    bind("p", "let the agent play on, or stop it", () => this.body.hidden || this.togglePlay(), this.signal);
    bind("h", "hint", when(this.hint, () => this.hint.click()), this.signal);
    bind(Object.keys(ARROWS), "act in this direction", (event) => this.act(ARROWS[event?.key]), this.signal);
  }

  show(answer) {
    if (!this.controls.childElementCount) this.fillControls(answer.environments);
    const { episode } = answer;
    this.body.hidden = !episode;
    const text = JSON.stringify(episode);
    if (!episode || text === this.text) return;
    Object.assign(this, { part: episode, text });
    this.turns.show(episode);
    const states = statesOf({ row: completeRow(episode.row), pictures: episode.pictures, htmlUrl: this.htmlUrl });
    replace(this.board, states.length > 0 && stateElement(states.at(-1)));
    replace(this.result, this.describe(episode));
    replace(this.actions, episode.actions.map((name) => button(name, () => this.command({ do: "reply", text: name }), { disabled: episode.over })));
  }

  describe({ row, over }) {
    const last = row.turns.at(-1);
    if (over) return [statusBadge(row.status), ` Total reward ${signed(row.reward)}.`];
    if (!last) return note(`Task ${row.task.seed % 2 ** 40} of the ${row.task.split} split. The episode has begun.`);
    return note(`Turn ${row.turns.length}: reward ${signed(last.turn_reward)}${last.invalid ? ", invalid" : ""}.`);
  }

  fillControls(environments) {
    if (!environments.length) return put(this.controls, note("The run has no environment that can be played by hand."));
    return put(
      this.controls,
      environments.length > 1 && select("Environment", environments, environments[0], (name) => (this.wanted.environment = name)),
      select("Split", SPLITS, "test", (split) => (this.wanted.split = split)),
      input("Task", "0", (text) => (this.wanted.task = Number(text)), { inputmode: "numeric", size: 6 }),
      this.begin,
    );
  }

  setBusy(isBusy) {
    const isOver = this.part?.over ?? true;
    this.begin.disabled = isBusy;
    for (const control of [this.sample, this.hint, this.submit, ...this.actions.children]) control.disabled = isBusy || isOver;
    if (isOver && this.isPlaying) this.togglePlay();
    this.play.disabled = isOver;
    this.isBusy = isBusy;
  }

  start() {
    return this.command({ do: "start", ...this.wanted });
  }

  command(command) {
    return this.send({ part: "episode", ...command });
  }

  async sendReply() {
    const text = this.reply.value.trim();
    if (text && (await this.command({ do: "reply", text }))) this.reply.value = "";
  }

  /** Act in a direction, if the environment has an action of that name. */
  act(direction) {
    if (this.isBusy || this.body.hidden) return;
    [...this.actions.children].find((each) => each.textContent.toLowerCase() === direction)?.click();
  }

  async togglePlay() {
    this.isPlaying = !this.isPlaying;
    this.play.setAttribute("aria-pressed", String(this.isPlaying));
    while (this.isPlaying && !this.signal.aborted && !this.isBusy && !this.part.over)
      if (!(await this.command({ do: "sample" }))) break;
    if (this.isPlaying && !this.isBusy) {
      this.isPlaying = false;
      this.play.setAttribute("aria-pressed", "false");
    }
  }

  focus() {
    if (!this.body.hidden) this.reply.focus();
  }

  onKey(event) {
    if (event.key === "Escape") this.reply.blur();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.submit.disabled) this.sendReply();
  }
}
