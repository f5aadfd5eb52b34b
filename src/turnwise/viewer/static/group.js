/** The view of a group: all members of one task at one step, side by side. */

import { fetchTrajectory, get } from "./api.js";
import { breadcrumb, h, note, put } from "./dom.js";
import { mean, percent, signed } from "./format.js";
import { bind } from "./keys.js";
import { address, go } from "./router.js";
import { sideBySide } from "./side_by_side.js";

const MAX_MEMBERS = 32;

export async function showGroup(main, query, signal) {
  const [run, step, group] = ["run", "step", "group"].map((name) => query.get(name));
  const list = await get("trajectories", { run, step, group, sort: "member", limit: MAX_MEMBERS }, signal);
  const answers = await Promise.all(list.rows.map((row) => fetchTrajectory(run, row.number, signal)));
  const columns = answers.map((answer, index) => {
    const { number } = list.rows[index];
    const model = list.rows[index].model;
    const title = model ? `${model} · try ${answer.row.member + 1}` : `member ${answer.row.member}`;
    return { title, href: address("trajectory", { run, number }), answer };
  });
  const rewards = answers.map((answer) => answer.row.reward);
  const successes = answers.filter((answer) => answer.row.status === "succeeded").length;
  const move = (direction) => go("group", { run, step, group: Number(group) + direction }, { replace: true });
  put(
    main,
    h(
      "div",
      { class: "title" },
      breadcrumb(
        address("trajectories", { run, step }),
        run,
        step === "0" ? `task ${group}` : `step ${step} · group ${group}`,
      ),
      h(
        "span",
        { class: "row" },
        h(
          "button",
          { type: "button", onclick: () => move(-1), disabled: Number(group) === 0, title: "k" },
          "‹ Previous",
        ),
        h("button", { type: "button", onclick: () => move(1), title: "j" }, "Next ›"),
      ),
      answers.length > 0 &&
        h(
          "span",
          { class: "faint" },
          `${percent(successes / answers.length)} of ${answers.length} succeeded · mean reward ${signed(mean(rewards))}`,
          list.total > MAX_MEMBERS && ` · the first ${MAX_MEMBERS} of ${list.total}`,
        ),
    ),
    answers.length ? sideBySide(columns, signal) : note("This step has no group with this number."),
  );
  bind("j", "next group", () => move(1), signal);
  bind("k", "previous group", () => Number(group) > 0 && move(-1), signal);
  bind("u", "back to the list", () => go("trajectories", { run, step }), signal);
}
