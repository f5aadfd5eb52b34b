/** The view of a group: the members of one task at one step, side by side. */

import { get } from "./api.js";
import { h, note, put } from "./dom.js";
import { mean, signed } from "./format.js";
import { bind } from "./keys.js";
import { address, go } from "./router.js";
import { sideBySide } from "./side_by_side.js";
import { fetchTrajectory } from "./trajectory_data.js";

const MOST = 32;

export async function showGroup(main, query, signal) {
  const [run, step, group] = ["run", "step", "group"].map((name) => query.get(name));
  const list = await get("trajectories", { run, step, group, sort: "member", limit: MOST }, signal);
  const answers = await Promise.all(list.rows.map((row) => fetchTrajectory(run, row.number, signal)));
  const columns = answers.map((answer, index) => {
    const { number } = list.rows[index];
    const model = list.rows[index].model;
    const who = model ? `${model} · try ${answer.row.member + 1}` : `member ${answer.row.member}`;
    return { title: who, href: address("trajectory", { run, number }), answer };
  });
  const rewards = answers.map((answer) => answer.row.reward);
  const solved = answers.filter((answer) => answer.row.status === "succeeded").length;
  const turn = (way) => go("group", { run, step, group: Number(group) + way }, { replace: true });
  put(
    main,
    h(
      "div",
      { class: "title" },
      h(
        "nav",
        { class: "crumbs", "aria-label": "Place" },
        h("a", { href: address("trajectories", { run, step }) }, run),
        h("span", {}, "›"),
        h("h1", {}, step === "0" ? `task ${group}` : `step ${step} · group ${group}`),
      ),
      h(
        "span",
        { class: "row" },
        h(
          "button",
          { type: "button", onclick: () => turn(-1), disabled: Number(group) === 0, title: "k" },
          "‹ Previous",
        ),
        h("button", { type: "button", onclick: () => turn(1), title: "j" }, "Next ›"),
      ),
      answers.length > 0 &&
        h(
          "span",
          { class: "faint" },
          `${solved} of ${answers.length} succeeded · mean reward ${signed(mean(rewards))}`,
          list.total > MOST && ` · the first ${MOST} of ${list.total}`,
        ),
    ),
    answers.length ? sideBySide(columns, signal) : note("This step has no such group."),
  );
  bind("j", "next group", () => turn(1), signal);
  bind("k", "previous group", () => Number(group) > 0 && turn(-1), signal);
  bind("u", "up to the list", () => go("trajectories", { run, step }), signal);
}
