/** The token view: every token of a trajectory, coloured by a quantity such as its advantage. */

import { fetchTrajectory } from "./api.js";
import { h, put, replace, select } from "./dom.js";
import { bind, explain } from "./keys.js";
import { isDark } from "./palette.js";
import { QUANTITIES, legendValues, numbersOf, rangeOf, styleOf, valueText } from "./quantities.js";
import { remember } from "./router.js";
import { Chunks, ranges } from "./token_chunks.js";
import { inspector } from "./token_inspector.js";
import { nameToken, short } from "./format.js";
import { addHeader, entriesOf } from "./trajectory_navigation.js";
import { marked } from "./visible.js";

export async function showTokens(main, query, signal) {
  const answer = await fetchTrajectory(query.get("run"), query.get("number"), signal);
  addHeader(main, "tokens", query, answer.row, signal);
  const onchoice = (by) => {
    remember("tokens", { ...entriesOf(query), by });
    query.set("by", by);
  };
  new TokensView(main, answer, { by: query.get("by"), onchoice }, signal).start();
}

export class TokensView {
  /** `by`: name of the quantity to colour by; `onchoice(name)`: called when another one is chosen. */
  constructor(main, { row, tokens }, { by, onchoice }, signal) {
    Object.assign(this, { main, row, vocabulary: tokens ?? {}, onchoice, signal, chunks: new Chunks(signal), list: [] });
    this.range = Object.fromEntries(Object.keys(QUANTITIES).map((name) => [name, rangeOf(row.turns, name)]));
    this.by =
      by in QUANTITIES ? by : (Object.keys(QUANTITIES).find((name) => this.range[name].count) ?? "advantage");
  }

  start() {
    this.legend = h("div", { class: "token-legend" });
    this.inspector = inspector();
    this.body = h("div", {
      class: "tokens",
      role: "group",
      "aria-label": "Tokens; move with the arrow keys",
      "data-arrows": true,
    });
    put(this.main, this.tools(), this.legend, h("div", { class: "token-view" }, this.body, this.inspector.element));
    this.fill();
    this.fillLegend();
    this.listen();
  }

  tools() {
    const choices = Object.entries(QUANTITIES).map(([name, { title }]) => {
      const radio = h("input", {
        type: "radio",
        name: "by",
        value: name,
        checked: name === this.by,
        onchange: () => this.setBy(name),
      });
      const isMissing = this.range[name].count === 0;
      return h(
        "label",
        { class: isMissing ? "none" : null, title: isMissing ? "Not recorded for this trajectory" : null },
        radio,
        h("span", {}, title),
      );
    });
    const turns = this.row.turns.map((_, index) => [index, `turn ${index + 1}`]);
    const jump =
      turns.length > 1 &&
      select("Go to", turns, 0, (index) =>
        this.body.querySelector(`[data-turn="${index}"]`).scrollIntoView({ block: "start" }),
      );
    return h(
      "div",
      { class: "tools" },
      h("fieldset", { class: "segmented" }, h("legend", {}, "Colour by"), choices),
      jump,
    );
  }

  setBy(name) {
    this.by = name;
    this.onchoice(name);
    for (const radio of this.main.querySelectorAll("input[name=by]")) radio.checked = radio.value === name;
    this.chunks.refill();
    this.fillLegend();
  }

  fillLegend() {
    const range = this.range[this.by];
    const { title, meaning } = QUANTITIES[this.by];
    if (!range.count)
      return replace(
        this.legend,
        h(
          "p",
          { class: "note" },
          `${title} was not recorded: the trajectory was not used for training, or the run is too old.`,
        ),
      );
    const swatches = legendValues(this.by, range.limit).map((value) =>
      h(
        "span",
        { class: "token sample", style: styleOf(this.by, value, range.limit, isDark()) },
        valueText(this.by, value),
      ),
    );
    const numbers =
      this.by === "mask"
        ? `${Math.round(range.mean * range.count)} of ${range.count} sampled tokens are in the loss`
        : `${range.count} tokens · lowest ${short(range.low)} · mean ${short(range.mean)} · highest ` +
          short(range.high);
    return replace(
      this.legend,
      h("span", { class: "scale" }, swatches),
      h("span", { class: "numbers" }, numbers),
      h("span", { class: "faint" }, meaning, "; grey: context (not sampled)"),
    );
  }

  /** Return {text, special} of an id, or undefined. */
  named(id) {
    return nameToken(id, this.vocabulary);
  }

  textOf(id) {
    return this.named(id)?.text ?? String(id);
  }

  /** Add the turns; a turn that does not extend the previous one starts a new segment. */
  fill() {
    let segment = 0;
    this.row.turns.forEach((turn, index) => {
      if (!turn.extends || index === 0) {
        segment += 1;
        put(
          this.body,
          h(
            "h3",
            { class: "segment" },
            `Segment ${segment}`,
            h("small", {}, index ? "a new context starts here" : "the first context"),
          ),
        );
      }
      const head = h(
        "h4",
        {},
        `Turn ${index + 1}`,
        h("small", {}, `${turn.context_ids.length} context · ${turn.action_ids.length} sampled`),
      );
      put(
        this.body,
        h(
          "section",
          { class: "token-turn", dataset: { turn: index } },
          head,
          this.run(index, segment, "context", turn.context_ids),
          this.run(index, segment, "action", turn.action_ids),
        ),
      );
    });
  }

  run(turn, segment, kind, ids) {
    const chunks = ranges(ids, (id) => this.textOf(id)).map(([start, end]) => {
      const texts = ids.slice(start, end).map((id) => this.textOf(id));
      const characters = texts.reduce((sum, text) => sum + text.length, 0);
      const lines = texts.reduce((sum, text) => sum + text.split("\n").length - 1, 0);
      const chunk = this.chunks.add(
        () => ids.slice(start, end).map((id, offset) => this.token(turn, segment, kind, id, start + offset)),
        characters,
        lines,
      );
      this.list.push({ turn, kind, start, end, chunk });
      return chunk;
    });
    return h("div", { class: `token-run ${kind}` }, chunks);
  }

  token(turn, segment, kind, id, index) {
    const known = this.named(id);
    const text = this.textOf(id);
    const style =
      kind === "action"
        ? styleOf(this.by, numbersOf(this.row.turns[turn], index)[this.by], this.range[this.by].limit, isDark())
        : null;
    const struck = kind === "action" && this.by === "mask" && Number(numbersOf(this.row.turns[turn], index).mask) === 0;
    const names = ["token", kind, known?.special && "special", !known && "id-only", struck && style && "struck"];
    const span = h("span", {
      class: names.filter(Boolean).join(" "),
      tabindex: "-1",
      style,
      dataset: { turn, kind, index, id, segment },
    });
    span.textContent = marked(text).replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t") || "∅";
    if (this.focusable === undefined && kind === "action") {
      this.focusable = `${turn} ${index}`;
    }
    if (this.focusable === `${turn} ${index}` && kind === "action") span.tabIndex = 0;
    return span;
  }

  inspect(target) {
    const { turn, kind, index, id, segment } = target.dataset;
    const source = this.row.turns[Number(turn)];
    const position = Number(index);
    const isInside = ([, start, end]) => position >= start && position < end;
    const span = kind === "action" ? source.spans.find(isInside)?.[0] : null;
    this.inspector.show({
      id: Number(id) < 0 ? imageName(source, position) : Number(id), // an image's id is too long for a number
      text: this.named(id)?.text ?? null,
      special: this.named(id)?.special,
      kind,
      turn: Number(turn) + 1,
      segment: Number(segment),
      index: position,
      span,
      version: Array.isArray(source.policy_version) ? source.policy_version[position] : source.policy_version,
      numbers: kind === "action" ? numbersOf(source, position) : null,
    });
  }

  listen() {
    const { signal } = this;
    const inspect = (event) => event.target.classList.contains("token") && this.inspect(event.target);
    let pointer = "";
    this.body.addEventListener(
      "pointerover",
      (event) => {
        const at = `${event.clientX} ${event.clientY}`;
        if (at !== pointer) inspect(event); // otherwise the page was scrolled under a resting pointer
        pointer = at;
      },
      { signal },
    );
    this.body.addEventListener("focusin", inspect, { signal });
    this.body.addEventListener(
      "click",
      (event) => event.target.classList.contains("token") && this.focus(event.target),
      { signal },
    );
    this.body.addEventListener("keydown", (event) => this.onKey(event), { signal });
    window.addEventListener(
      "turnwise-theme",
      () => {
        this.chunks.refill();
        this.fillLegend();
      },
      { signal },
    );
    bind("c", "colour by the next quantity", () => this.cycle(), signal);
    explain(["ArrowLeft", "ArrowRight"], "in the tokens: previous or next token", signal);
    explain(["ArrowUp", "ArrowDown"], "in the tokens: previous or next turn", signal);
    bind("i", "focus the tokens", () => this.enter(0), signal);
  }

  cycle() {
    const names = Object.keys(QUANTITIES);
    this.setBy(names[(names.indexOf(this.by) + 1) % names.length]);
  }

  onKey(event) {
    const target = event.target;
    if (!target.classList.contains("token") || event.ctrlKey || event.metaKey || event.altKey) return;
    const turn = Number(target.dataset.turn);
    const moves = {
      ArrowRight: () => this.step(target, 1),
      ArrowLeft: () => this.step(target, -1),
      ArrowDown: () => this.enter(turn + 1),
      ArrowUp: () => this.enter(turn - 1),
      Home: () => this.enter(turn),
      End: () =>
        this.focusAt(
          this.list.findLast((each) => each.turn === turn),
          -1,
        ),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }

  /** Focus the next (1) or previous (-1) token, in the neighbouring chunk at the end of this one. */
  step(target, direction) {
    const neighbour = direction > 0 ? target.nextElementSibling : target.previousElementSibling;
    if (neighbour) return this.focus(neighbour);
    const index = this.list.findIndex((each) => each.chunk === target.parentElement) + direction;
    if (this.list[index]) this.focusAt(this.list[index], direction > 0 ? 0 : -1);
  }

  /** Focus the first sampled token of a turn, or of its context if none was sampled. */
  enter(turn) {
    const chunks = this.list.filter((each) => each.turn === turn);
    const first = chunks.find((each) => each.kind === "action") ?? chunks[0];
    if (first) this.focusAt(first, 0);
  }

  focusAt({ chunk }, index) {
    this.chunks.fill(chunk);
    this.focus([...chunk.children].at(index));
  }

  focus(token) {
    this.body.querySelector(".token[tabindex='0']")?.setAttribute("tabindex", "-1");
    this.focusable = token.dataset.kind === "action" ? `${token.dataset.turn} ${token.dataset.index}` : null;
    token.tabIndex = 0;
    token.focus();
  }
}

/** Return which token of which image is at this position of a turn's context. */
function imageName(turn, position) {
  const spans = Array.isArray(turn.images) ? turn.images : [];
  const span = spans.find(({ start, end }) => position >= start && position < end);
  return span ? `image ${String(span.hash).slice(0, 40)}, token ${position - span.start}` : "image";
}
