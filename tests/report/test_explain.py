"""Each sentence about a run comes from one rule, with the numbers in it."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from turnwise.algos import alarms
from turnwise.record.rows import EvaluationRecord
from turnwise.record.steps import EpisodeSource, IdleReason, StepRecord
from turnwise.report import explain as explaining
from turnwise.report import run_facts
from turnwise.report.alarm_advice import ALARM_ADVICE, advise
from turnwise.report.explain import explain
from turnwise.report.html_report import render_report
from turnwise.report.progress import EXPLANATIONS
from turnwise.report.run_facts import Behaviour, RunFacts, files_of, read_facts

NOTHING: dict[str, Any] = {
    "steps": (),
    "evaluations": {},
    "outcomes": {},
    "sides": ("before training", "after it"),
    "behaviours": None,
    "alarms": (),
    "finished": True,
}


def facts(**given: Any) -> RunFacts:
    return RunFacts(**{**NOTHING, **given})


def steps(idle: Mapping[int, IdleReason] | None = None, **metrics: Sequence[float]) -> list[StepRecord]:
    """Return steps with metrics by name, with __ for /: rollout__success=[0.1, 0.2]."""
    count = max(map(len, metrics.values()))
    return [
        StepRecord.of(
            number + 1,
            EpisodeSource.PLAYED,
            {name.replace("__", "/"): values[number] for name, values in metrics.items() if number < len(values)},
            idle=(idle or {}).get(number + 1),
            dropped_reason="sandbox is gone" if "rollout__dropped" in metrics else None,
        )
        for number in range(count)
    ]


def behaviour(**given: Any) -> Behaviour:
    return Behaviour(**{"episodes": 10, "turns": 40, "tokens": 400, "actions": {}, "tools": {}, **given})


def evaluation(success: float, low: float | None = None, high: float | None = None) -> EvaluationRecord:
    numbers = {"success": success, "success_low": low, "success_high": high}
    return EvaluationRecord(
        step=0, name="x", metrics={name: value for name, value in numbers.items() if value is not None}
    )


def texts(given: RunFacts, topic: str | None = None) -> list[str]:
    return [each.text for each in explain(given) if topic in (None, each.topic)]


def test_a_run_without_facts_gets_no_sentence() -> None:
    assert explain(facts()) == []
    assert explain(facts(steps=steps(rollout__success=[0.5] * 30))) == []


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (
            (0.8, 0.7, 0.9),
            "Success rose from 20.0 % before training to 80.0 % after it (95 % interval 70.0 to 90.0 %).",
        ),
        ((0.05, 0.0, 0.09), "Success fell from 20.0 % before training to 5.0 % after it (95 % interval 0.0 to 9.0 %)."),
        (
            (0.3, 0.2, 0.4),
            "Success did not change measurably: 20.0 % before training, 30.0 % after (95 % interval 20.0",
        ),
    ],
)
def test_success_is_compared_by_its_intervals(after: tuple[float, float, float], text: str) -> None:
    (found,) = texts(facts(evaluations={"before": evaluation(0.2, 0.1, 0.3), "after": evaluation(*after)}))
    assert found.startswith(text)
    assert texts(facts(evaluations={"after": evaluation(*after)})) == []
    assert texts(facts(evaluations={"before": evaluation(0.1), "after": evaluation(*after)})) == []


def test_rise_names_the_steps_of_half_and_most_of_it() -> None:
    rise = [0.1] * 10 + [0.6] * 10 + [1.0] * 10
    (found,) = texts(facts(steps=steps(rollout__success=rise)))
    assert found == (
        "In training, half of the rise from 10.0 % to 100.0 % came by step 15, and nine tenths by step 24 of 30."
    )
    assert texts(facts(steps=steps(rollout__success=[0.1] * 20 + [0.14] * 20))) == []


def test_fall_of_success_names_its_peak_and_what_to_do() -> None:
    found = facts(steps=steps(rollout__success=[0.8] * 10 + [0.3] * 10))
    assert texts(found, "learning") == ["Success in training fell from 80.0 % at step 5 to 30.0 % at the end."]
    assert "eval.every" in texts(found, "advice")[0]
    assert texts(facts(steps=steps(rollout__success=[0.8] * 10 + [0.75] * 10))) == []


def test_action_whose_share_changed_most_is_named() -> None:
    sides = behaviour(actions={"left": 50, "right": 50}), behaviour(actions={"left": 20, "right": 70, "up": 10})
    assert texts(facts(behaviours=sides)) == [
        '"left" is 20.0 % of its actions after it, and was 50.0 % before training.'
    ]
    few = behaviour(actions={"left": 10}), behaviour(actions={"right": 10})
    assert texts(facts(behaviours=few)) == []
    same = behaviour(actions={"left": 50, "right": 50}), behaviour(actions={"left": 55, "right": 45})
    assert texts(facts(behaviours=same)) == []
    many = behaviour(actions={str(number): 9 for number in range(60)})
    assert texts(facts(behaviours=(many, behaviour(actions={"1": 99})))) == []


def test_tool_use_is_compared() -> None:
    sides = behaviour(tools={"search": 5}, failed_calls=4), behaviour(tools={"search": 30, "read": 10}, failed_calls=2)
    assert texts(facts(behaviours=sides)) == [
        "It makes 4.0 tool calls per episode after it; before training it made 0.5.",
        "5.0 % of its calls fail, and 80.0 % did before training.",
    ]
    assert texts(facts(behaviours=(behaviour(), behaviour(tools={"search": 10})))) == [
        "It makes 1.0 tool calls per episode after it; before training it made 0.0.",
        "0.0 % of its calls fail.",
    ]
    assert texts(facts(behaviours=(behaviour(tools={"x": 30}), behaviour(tools={"x": 32})))) == []


def test_lengths_are_compared() -> None:
    sides = behaviour(turns=50, tokens=500), behaviour(turns=20, tokens=800)
    assert texts(facts(behaviours=sides, sides=("in step 1", "in step 9"))) == [
        "Its episodes have 2.0 turns in step 9, and had 5.0 in step 1.",
        "Its answers have 40 tokens in step 9, and had 10 in step 1.",
    ]
    assert texts(facts(behaviours=(behaviour(), behaviour(turns=44, tokens=440)))) == []


def test_invalid_turns_are_compared_and_many_get_advice() -> None:
    found = facts(behaviours=(behaviour(invalid=30), behaviour(invalid=10)))
    assert texts(found, "behaviour") == ["25.0 % of its turns are invalid after it, and 75.0 % were before training."]
    assert texts(found, "advice")[0].startswith("25.0 % of the turns have no valid action: fine-tune")
    assert texts(facts(behaviours=(behaviour(invalid=4), behaviour(invalid=2)))) == []


def outcomes(solved: str, environment: str = "lake") -> dict[tuple[str, int], str]:
    words = {"1": "succeeded", "0": "failed", "t": "truncated_turns"}
    return {(environment, seed): words[each] for seed, each in enumerate(solved)}


def test_tasks_gained_and_lost_are_counted_on_the_same_tasks() -> None:
    found = facts(outcomes={"before": outcomes("0011"), "after": outcomes("1101")})
    assert texts(found, "success") == ["Of 4 tasks, 2 are solved now that were not before, and 1 no longer are."]
    assert texts(facts(outcomes={"before": outcomes("11"), "after": outcomes("11")})) == []
    assert texts(facts(outcomes={"before": outcomes("0", "a"), "after": outcomes("1", "b")})) == []


def test_failed_tasks_say_how_they_end_and_which_environment_fails_most() -> None:
    found = facts(outcomes={"after": outcomes("1t0t", "lake") | outcomes("1110", "sokoban")})
    assert texts(found, "failures") == [
        "4 of 8 tasks fail after training; 2 of them: out of turns.",
        "lake fails most often: 75.0 % of its tasks.",
    ]
    assert texts(found, "advice") == []
    assert "env.params.max_turns" in texts(facts(outcomes={"after": outcomes("1tt0")}), "advice")[0]
    assert texts(facts(outcomes={"after": outcomes("100")})) == [
        "2 of 3 tasks fail after training; 2 of them: failed by the rules."
    ]


@pytest.mark.parametrize(
    ("success", "advice"),
    [(0.95, "make them harder"), (0.02, "too hard to be solved by chance"), (0.5, "curriculum.pool")],
)
def test_equal_rewards_are_explained_by_the_success(success: float, advice: str) -> None:
    found = facts(steps=steps(rollout__zero_std_groups=[0.8] * 10, rollout__success=[success] * 10))
    assert texts(found, "learning") == [
        "In 80.0 % of the groups of the last 5 steps all episodes got the same reward, so there was nothing to learn "
        "from them."
    ]
    assert advice in texts(found, "advice")[0]
    assert texts(facts(steps=steps(rollout__zero_std_groups=[0.6] * 10))) == []


def test_fallen_entropy_is_reported_unless_the_task_is_solved() -> None:
    entropy = [1.0] * 5 + [0.1] * 5
    found = facts(steps=steps(train__entropy=entropy, rollout__success=[0.4] * 10))
    assert texts(found, "learning") == [
        "Entropy fell to 10.0 % of its start (1 to 0.1 nats): the agent hardly explores any more."
    ]
    assert "algo.entropy_coef" in texts(found, "advice")[0]
    assert texts(facts(steps=steps(train__entropy=entropy, rollout__success=[0.95] * 10))) == []
    assert texts(facts(steps=steps(train__entropy=[1.0] * 5 + [0.3] * 5))) == []


def test_cut_answers_name_the_limit() -> None:
    found = facts(steps=steps(rollout__length_stops=[0.0] * 5 + [0.25] * 5))
    assert texts(found) == [
        "25.0 % of the turns are cut at rollout.max_new_tokens.",
        "Raise rollout.max_new_tokens, so that answers can end.",
    ]
    assert texts(facts(steps=steps(rollout__length_stops=[0.05] * 5))) == []


def test_idle_steps_give_their_most_frequent_reason() -> None:
    idle = {1: IdleReason.FILTERED, 2: IdleReason.FILTERED, 3: IdleReason.ZERO_GRADIENT}
    (found,) = texts(facts(steps=steps(idle, rollout__reward=[0.0] * 10)))
    assert found.startswith(f"3 of 10 steps trained nothing. In 2 of them {EXPLANATIONS[IdleReason.FILTERED]}")
    assert texts(facts(steps=steps({1: IdleReason.FILTERED}, rollout__reward=[0.0] * 10))) == []


def test_dropped_episodes_give_the_last_failure() -> None:
    found = facts(steps=steps(rollout__dropped=[1.0] * 4, rollout__episodes=[9.0] * 4))
    assert texts(found) == [
        "10.0 % of the episodes were dropped because their environment or engine failed; the last failure: sandbox is "
        "gone"
    ]
    assert texts(facts(steps=steps(rollout__dropped=[1.0], rollout__episodes=[99.0]))) == []


def test_rise_at_the_end_suggests_training_longer() -> None:
    rise = [0.3 + 0.01 * number for number in range(40)]
    (found,) = texts(facts(steps=steps(rollout__success=rise)), "advice")
    assert found.startswith("Success still rose at the end, by 8.0 points since step 32: train longer")
    assert texts(facts(steps=steps(rollout__success=rise), finished=False), "advice") == []


def test_training_above_evaluation_suggests_more_tasks() -> None:
    found = facts(steps=steps(rollout__success=[0.9] * 5), evaluations={"after": evaluation(0.6, 0.5, 0.7)})
    assert texts(found) == [
        "Success is 90.0 % on the training tasks of the last steps and 60.0 % in the evaluation.",
        "Train on more and more varied tasks: those of the evaluation are not like them.",
    ]
    assert texts(facts(steps=steps(rollout__success=[0.7] * 5), evaluations={"after": evaluation(0.6, 0.5, 0.7)})) == []


def test_each_kind_of_alarm_gets_advice_once() -> None:
    raised = [(7, "all rewards equal: echo trap; step 7"), (9, "x: echo trap; step 9"), (8, "norm: a spike; step 8")]
    found = texts(facts(alarms=raised))
    assert found[0].startswith("After the alarm of step 7, the first of 2 (echo trap): ")
    assert found[1].startswith("After the alarm of step 8 (a spike): ")
    assert len(found) == 2


def test_every_detector_of_alarms_has_advice() -> None:
    """A spike of the gradient has two texts."""
    source = Path(alarms.__file__).read_text()
    assert [part for part in ALARM_ADVICE if part not in source] == []
    assert len(ALARM_ADVICE) == len(alarms.DETECTORS) + 1
    assert [advise(f"x: {part}; y") for part in ALARM_ADVICE] == list(ALARM_ADVICE.values())
    assert advise("another text") is None


def test_sentences_are_sorted_by_topic() -> None:
    found = explain(
        facts(
            steps=steps(rollout__length_stops=[0.5] * 5),
            outcomes={"before": outcomes("00"), "after": outcomes("10")},
            behaviours=(behaviour(invalid=30), behaviour(invalid=10)),
        )
    )
    topics = [sentence.topic for sentence in found]
    assert list(dict.fromkeys(topics)) == list(explaining.TITLES)
    assert topics == sorted(topics, key=list(explaining.TITLES).index)


def turn(actions: Sequence[str], **given: Any) -> dict[str, Any]:
    return {"action_ids": [1, 2, 3], "invalid": not actions, "info": {"actions": list(actions)}, **given}


def write_run(path: Path, episodes: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]] = ()) -> Path:
    (path / "trajectories").mkdir(parents=True)
    (path / "config.toml").write_text('[env]\nkind = "lake"\n')
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    with (path / "trajectories/index.jsonl").open("w") as index:
        for episode in episodes:
            name = f"eval_{episode['evaluation']}" if "evaluation" in episode else "step"
            file = path / f"trajectories/{name}_{episode['step']:06d}.jsonl"
            offset, line = file.stat().st_size if file.exists() else 0, json.dumps({"turns": episode["turns"]})
            with file.open("a") as stored:
                stored.write(line + "\n")
            entry = {key: value for key, value in episode.items() if key != "turns"}
            index.write(json.dumps({**entry, "offset": offset, "length": len(line)}) + "\n")
    return path


def episode(seed: int, status: str, turns: Sequence[Mapping[str, Any]], step: int = 0, **given: Any) -> dict[str, Any]:
    return {"step": step, "environment": "lake", "seed": seed, "status": status, "turns": turns, **given}


def test_facts_are_read_from_the_folder(tmp_path: Path) -> None:
    calls = {"calls": [{"name": "search", "failed": True}, {"name": "search", "failed": False}]}
    episodes = [
        episode(1, "failed", [turn(["left"]), turn([])], evaluation="before"),
        episode(2, "failed", [turn(["left", "up"])], evaluation="before"),
        episode(1, "succeeded", [turn(["right"], info=calls), turn([], info={"summary": True})], 9, evaluation="after"),
        episode(5, "failed", [turn(["down"])], 3),
    ]
    rows = [
        {"step": 0, "eval/name": "before", "eval/success": 0.5},
        {"step": 1, "rollout/success": 0.5},
        {"no": "step"},
    ]
    found = read_facts(files_of(write_run(tmp_path / "run", episodes, rows)), finished=True)
    assert found.behaviours is not None
    before, after = found.behaviours
    assert (before.episodes, before.turns, before.tokens, before.invalid) == (2, 3, 9, 1)
    assert before.actions == {"left": 2, "up": 1}
    assert (after.turns, after.tools, after.failed_calls) == (1, {"search": 2}, 1)
    assert found.outcomes["before"] == {("lake", 1): "failed", ("lake", 2): "failed"}
    assert [record.step for record in found.steps] == [1]
    assert list(found.evaluations) == ["before"]


def test_metrics_of_all_rules_are_read() -> None:
    used = set(re.findall(r'"((?:rollout|train)/\w+)"', Path(explaining.__file__).read_text()))
    assert used
    assert used <= set(run_facts.EXPLAINED_METRICS)


@pytest.mark.parametrize("source", ["rollout", "data"])
def test_facts_of_steps_leave_out_metrics_that_no_rule_reads(source: str, tmp_path: Path) -> None:
    rows = [
        {"step": 1, "train/entropy": 0.5, "train/loss": 0.1, f"{source}/success": 0.25, f"{source}/reward": 1.0},
        {"step": 2, "train/loss": 0.1, f"{source}/reward": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_facts(files_of(tmp_path), finished=True).steps
    assert (first.rollout, first.training) == ({"success": 0.25}, {"entropy": 0.5})
    assert first.source is second.source is EpisodeSource("data" if source == "data" else "rollout")
    assert not second.rollout and not second.training


def test_runs_without_evaluations_compare_their_first_and_last_steps(tmp_path: Path) -> None:
    episodes = [episode(seed, "failed", [turn([f"act{step}"])], step) for step in (1, 2, 9) for seed in (1, 2)]
    found = read_facts(files_of(write_run(tmp_path / "run", episodes)), finished=False)
    assert found.sides == ("in step 1", "in step 9")
    assert found.behaviours is not None
    assert [side.actions for side in found.behaviours] == [{"act1": 2}, {"act9": 2}]


def test_reading_is_bounded_and_survives_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [episode(seed, "failed", [turn(["left"])], step) for step in (1, 2) for seed in range(30)]
    run = write_run(tmp_path / "run", episodes)
    monkeypatch.setattr(run_facts, "MAX_EPISODES", 10)
    found = read_facts(files_of(run), finished=False)
    assert found.behaviours is not None
    assert [side.episodes for side in found.behaviours] == [10, 10]
    monkeypatch.setattr(run_facts, "MAX_BYTES", 200)
    small = read_facts(files_of(run), finished=False).behaviours
    assert small is not None
    assert 0 < small[0].episodes < 5
    (run / "trajectories/step_000002.jsonl").write_bytes(b"\xff not json")
    (run / "metrics.jsonl").write_text('{"step": 1, "eval/name": ["x"]}\n[1]\n{"step": "x"}\n')
    broken = read_facts(files_of(run), finished=False)
    assert broken.behaviours is not None
    assert broken.behaviours[1].episodes == 0
    assert explain(broken) == []
    assert explain(read_facts(files_of(tmp_path / "missing"), finished=False)) == []


def test_report_shows_the_sentences_as_text(tmp_path: Path) -> None:
    hostile = "<script>x</script>"
    many = [turn([hostile if seed % 2 else "left"] * 40) for seed in range(2)]
    episodes = [
        episode(1, "failed", [turn(["left"] * 40)], evaluation="before"),
        episode(1, "succeeded", many, 5, evaluation="after"),
    ]
    page = render_report(write_run(tmp_path / "run", episodes))
    assert "<h2>In words</h2>" in page
    assert "Of 1 tasks, 1 are solved now" in page
    assert hostile not in page
    assert "&lt;script&gt;" in page
