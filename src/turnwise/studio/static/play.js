/** The view to play and to chat with a checkpoint: choose one, and the page of a loaded one. */

import { fetchRuns, get } from "/static/api.js";
import { breadcrumb, button, failure, h, input, note, put, replace, select } from "/static/dom.js";
import { bind } from "/static/keys.js";
import { address, go } from "/static/router.js";
import { ChatPane } from "./chat_pane.js";
import { EpisodePane } from "./episode_pane.js";
import { post } from "./requests.js";

const POLL_MS = [100, 200, 400, 800];
const NEWEST = "";

export async function showPlay(main, query, signal) {
  if (query.has("agent")) await new AgentPage(main, query.get("agent"), signal).start();
  else await showChoice(main, query, signal);
}

/** A link beside a checkpoint. */
export function checkpointTools(run, checkpoint) {
  return [h("a", { class: "button", href: address("play", { run: run.id, checkpoint: checkpoint.name }) }, "Play")];
}

async function showChoice(main, query, signal) {
  const runs = (await fetchRuns(signal)).filter((run) => run.kind === "run");
  const { agents } = await get("studio/agents", {}, signal);
  put(main, h("h1", {}, "Play and chat"), agents.length > 0 && loadedList(agents));
  const run = query.get("run") ?? runs[0]?.id;
  if (!run) return put(main, note("No run has a checkpoint yet. ", h("a", { href: address("new_run") }, "Start a run"), "."));
  const { checkpoints } = await get("run", { run }, signal);
  const ids = runs.map(({ id }) => id);
  const wanted = { run, checkpoint: query.get("checkpoint") ?? NEWEST, temperature: null };
  const message = h("div", { role: "status" });
  const load = button("Load", () => submit(), { class: "primary", disabled: !checkpoints.length });
  const submit = async () => {
    load.disabled = true;
    try {
      go("play", { agent: (await post("agents", wanted, signal)).id });
    } catch (error) {
      load.disabled = false;
      if (error.name !== "AbortError") replace(message, failure(error));
    }
  };
  const names = [[NEWEST, "the newest"], ...checkpoints.map(({ name, step }) => [name, `${name} (step ${step})`])];
  put(
    main,
    h(
      "section",
      { class: "card" },
      h("h2", {}, "Load a checkpoint"),
      h(
        "div",
        { class: "tools" },
        select("Run", ids.includes(run) ? ids : [run, ...ids], run, (id) => go("play", { run: id })),
        select("Checkpoint", names, wanted.checkpoint, (name) => (wanted.checkpoint = name)),
        input("Temperature", "", (text) => (wanted.temperature = text.trim() === "" ? null : Number(text)), {
          inputmode: "decimal",
          placeholder: "as in evaluations",
          size: 16,
        }),
        load,
      ),
      !checkpoints.length && note("This run has no checkpoint yet."),
      message,
    ),
  );
  setTimeout(() => load.focus()); // when the view is in the page
}

function loadedList(agents) {
  const items = agents.map(({ id, run, checkpoint, ended }) =>
    h("li", {}, h("a", { href: address("play", { agent: id }) }, `${run} · ${checkpoint || "newest checkpoint"}`), ended && " (ended)"),
  );
  return h("section", { class: "card" }, h("h2", {}, "Loaded"), h("ul", {}, items));
}

/** A loaded checkpoint: an episode and a conversation beside each other. */
class AgentPage {
  constructor(main, id, signal) {
    Object.assign(this, { main, id, signal, version: -1, answer: {} });
    this.message = h("div", { role: "status", class: "play-message" });
    this.send = this.send.bind(this);
    this.episode = new EpisodePane(this.send, (turn) => `/api/studio/agents/${encodeURIComponent(id)}/html?turn=${turn}&state=${this.version}`, signal);
    this.chat = new ChatPane(this.send, signal);
  }

  async start() {
    const state = await this.fetch();
    const name = state.checkpoint || "newest checkpoint";
    put(
      this.main,
      h(
        "div",
        { class: "title" },
        breadcrumb(address("run", { run: state.run }), state.run, `Play and chat with ${name}`),
        button("Close", () => this.close(), { title: "Frees the memory of the model" }),
      ),
      this.message,
      h("div", { class: "play" }, this.episode.element, this.chat.element),
    );
    this.show(state);
    if (state.busy) this.follow();
    bind("i", "write a reply of your own", () => this.episode.focus(), this.signal);
    bind("m", "write to the model", () => this.chat.focus(), this.signal);
  }

  fetch() {
    return get(`studio/agents/${encodeURIComponent(this.id)}`, { after: this.version }, this.signal);
  }

  /** Send a command and show its result; return whether it succeeded. */
  async send(command) {
    try {
      await post(`agents/${encodeURIComponent(this.id)}/command`, command, this.signal);
    } catch (error) {
      if (error.name !== "AbortError") replace(this.message, failure(error));
      return false;
    }
    this.setBusy(true);
    return this.follow();
  }

  /** Wait until the process has answered. */
  async follow() {
    for (let round = 0; !this.signal.aborted; round++) {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS[Math.min(round, POLL_MS.length - 1)]));
      let state = null;
      try {
        state = await this.fetch();
      } catch (error) {
        if (error.name !== "AbortError") replace(this.message, failure(error));
        return false;
      }
      if (!state.busy) {
        this.show(state);
        return !this.answer.error;
      }
    }
    return false;
  }

  setBusy(isBusy) {
    this.main.dataset.busy = isBusy;
    this.episode.setBusy(isBusy);
    this.chat.setBusy(isBusy);
    if (isBusy) replace(this.message, note(this.version < 1 ? "Loading the model …" : "Waiting …"));
  }

  show(state) {
    this.version = state.version;
    this.answer = state.answer ?? this.answer;
    const { error, hint } = this.answer;
    if (this.answer.environments) {
      this.episode.show(this.answer);
      this.chat.show(this.answer);
    }
    this.setBusy(state.busy || !this.answer.environments || state.ended);
    if (state.busy) return;
    if (error) replace(this.message, failure({ message: error }));
    else replace(this.message, note(hint || `Loaded. The model replies ${this.answer.sampler}.`));
  }

  async close() {
    await post(`agents/${encodeURIComponent(this.id)}/close`).catch(() => null);
    go("play");
  }
}
