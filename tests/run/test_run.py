import json
import math
import random
import re
import signal
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import turnwise as tw
from runs_for_tests import STEPS, WARMUP_STEPS, episodes, learnt, metrics, printed, quiet, small, unknown_metrics
from turnwise.cli.main import main
from turnwise.config.load import build, read_settings, to_toml
from turnwise.core.errors import Outage, UserError
from turnwise.core.learner import Needs
from turnwise.envs.text_env import Outcome
from turnwise.models.loading.load import load_model
from turnwise.record.jsonl import read_jsonl
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import trajectory_from_row
from turnwise.rollout.collect import CollectedGroups, Collector
from turnwise.run import build_parts, load_policy, training_run
from turnwise.run.evaluation.evaluate import evaluate_into_folder
from turnwise.run.evaluation.plan import plan_evaluation
from turnwise.run.evaluation.results import EvaluationResults
from turnwise.run.export import export
from turnwise.run.train import train, train_seeds
from turnwise.run.training_run import resolve
from turnwise.training import loop
from turnwise.training.checkpoints import Checkpoints, read_state
from turnwise.training.learner import LocalLearner
from turnwise.training.update import Update, update


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs")
    train(small(folder), console=quiet())
    return folder / "run"


def assert_same_run(ours: Path, theirs: Path) -> None:
    assert metrics(ours) == metrics(theirs)
    assert episodes(ours) == episodes(theirs)
    mine, other = learnt(ours), learnt(theirs)
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_head_critic_takes_its_values_from_the_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, score = list[Needs](), LocalLearner.score
    monkeypatch.setattr(
        LocalLearner, "score", lambda self, batches, needs: asked.append(needs) or score(self, batches, needs)
    )
    train(small(tmp_path, critic__kind="head", train__steps=1, eval__every=0), console=quiet())
    assert asked and not any(needs.values for needs in asked)


def test_recorded_trajectory_has_every_token(run: Path) -> None:
    folder = RunFolder.open(run)
    named = {row["id"]: row["text"] for _, row in read_jsonl(run / "trajectories/tokens.jsonl")}
    for entry in folder.read_index():
        row = folder.read_trajectory(entry)
        assert row["start"]["rows"] and entry["turns"] == len(row["turns"])
        for turn in row["turns"]:
            assert "".join(named[each] for each in turn["context_ids"]) == turn["context"]
            assert {len(turn[name]) for name in ("loss_mask", "advantages")} == {len(turn["action_ids"])}


def test_run_folder_is_complete(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.toml", "metrics.jsonl", "summary.json", "curve.svg", "trajectories", "checkpoints"} <= names
    assert sorted(path.name for path in (run / "trajectories").iterdir()) == [
        f"eval_after_{STEPS:06d}.jsonl",
        "eval_before_000000.jsonl",
        *(f"eval_validation_{step:06d}.jsonl" for step in range(1, STEPS)),
        "index.jsonl",
        *(f"step_{step:06d}.jsonl" for step in range(1, STEPS + 1)),
        "tokens.jsonl",
    ]
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {"best", f"step_{STEPS - 1:06d}", f"step_{STEPS:06d}"}


def test_summary_agrees_with_the_metrics(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) == {
        *("success_before", "success_after", "interval", "wall_s"),
        *("steps", "dropped", "dropped_no_reward", "dropped_reason", "eval_dropped"),
        *("idle_steps", "episodes", "tokens", "seed"),
    }
    rows = RunFolder.open(run).read_metrics()
    evaluations = {row["eval/name"]: row for row in rows if "eval/name" in row}
    steps = [row for row in rows if "rollout/episodes" in row]
    assert summary["success_before"] == evaluations["before"]["eval/success"]
    assert summary["success_after"] == evaluations["after"]["eval/success"]
    assert summary["interval"][0] <= summary["success_after"] <= summary["interval"][1]
    assert (summary["steps"], summary["episodes"], summary["seed"]) == (STEPS, 8 * STEPS, 0)
    assert summary["idle_steps"] == 0
    assert summary["tokens"] == sum(each["tokens"] for each in RunFolder.open(run).read_index())
    between = [row for row in rows if row.get("eval/name") == "validation"]
    timed = sum(row["time/total_s"] for row in [*steps, *between]) + rows[0]["time/warmup_s"]
    assert summary["wall_s"] == pytest.approx(timed)


def test_metrics_have_a_row_for_every_step_and_evaluation(run: Path) -> None:
    rows = RunFolder.open(run).read_metrics()
    kinds = [row.get("eval/name") or ("step" if "rollout/episodes" in row else "warm-up") for row in rows]
    between = ["step", "validation"] * (STEPS - 1)
    assert kinds == ["warm-up", "before", *between, "step", "after"]
    assert [row["step"] for row in rows if "rollout/episodes" in row] == list(range(1, STEPS + 1))
    for row in rows:
        assert "nonfinite" not in row
        if "rollout/episodes" in row:
            assert {"rollout/success", "rollout/reward", "train/entropy", "train/kl", "train/grad_norm"} <= set(row)
            assert {"train/value_loss", "time/rollout_s", "time/update_s", "time/tokens_per_s"} <= set(row)
            assert row["train/mismatch"] < 1e-4, "sampler and learner are the same function"
            assert row["train/grad_norm"] > 0


def test_evaluations_are_recorded_as_trajectories(run: Path) -> None:
    loaded = tw.load_run(run)
    measured = {(row["eval/name"], row["step"]): row for row in loaded.metrics() if "eval/name" in row}
    assert set(measured) == {("before", 0), ("validation", 1), ("validation", 2), ("after", STEPS)}
    for (name, step), row in measured.items():
        episodes = loaded.trajectories(step, evaluation=name)
        assert {(each["evaluation"], each["step"]) for each in episodes} == {(name, step)}
        assert [each["group"] for each in episodes] == list(range(8)) and row["time/record_s"] > 0
        assert sum(each["status"] == "succeeded" for each in episodes) == row["eval/success"] * 8
        assert sum(trajectory_from_row(each).total_reward for each in episodes) / 8 == pytest.approx(row["eval/reward"])
    before, after = (loaded.trajectories(evaluation=name) for name in ("before", "after"))
    assert [row["task"] for row in before] == [row["task"] for row in after]
    assert {row["task"]["split"] for row in before} == {"test"}
    assert not any("evaluation" in row for row in loaded.trajectories())


def test_record_trajectories_0_records_no_episodes(tmp_path: Path) -> None:
    train(small(tmp_path, record__trajectories=0, train__steps=1), console=quiet())
    assert not list((tmp_path / "run" / "trajectories").iterdir())


def test_recorded_trajectories_are_the_trained_ones(run: Path) -> None:
    folder = RunFolder.open(run)
    index = folder.read_index()
    assert [entry["step"] for entry in index] == [step for step in range(1, STEPS + 1) for _ in range(8)]
    for entry in index:
        row = folder.read_trajectory(entry)
        trajectory = trajectory_from_row(row)
        assert trajectory.task.split == "train"
        assert (trajectory.num_sampled, trajectory.status.value) == (entry["tokens"], entry["status"])
        assert [len(turn["advantages"]) for turn in row["turns"]] == [len(t.action_ids) for t in trajectory.turns]
    starts = {(entry["step"], entry["group"], entry["seed"]) for entry in index}
    assert len(starts) == 2 * STEPS, "members of a group share their task, groups do not"


def test_stored_configuration_reproduces_the_run(run: Path, tmp_path: Path) -> None:
    config = build(read_settings(run / "config.toml"))
    assert config == resolve(small(run.parent))
    assert tomllib.loads((run / "config.toml").read_text())["system"]["threads"] == 1
    moved = config.model_copy(update={"record": config.record.model_copy(update={"folder": str(tmp_path)})})
    train(moved, console=quiet())
    assert_same_run(tmp_path / "run", run)


def test_another_seed_gives_another_run(run: Path, tmp_path: Path) -> None:
    train(small(tmp_path, seed=1, train__steps=1), console=quiet())
    ours, theirs = (episodes(each)[:8] for each in (tmp_path / "run", run))
    assert {entry["seed"] for entry in ours}.isdisjoint(entry["seed"] for entry in theirs)
    steps = [next(row for row in metrics(each) if "rollout/episodes" in row) for each in (tmp_path / "run", run)]
    assert steps[0] != steps[1]
    befores = [
        next(row for row in metrics(each) if row.get("eval/name") == "before") for each in (tmp_path / "run", run)
    ]
    assert befores[0] == befores[1], "the start and its evaluation are the same, so that seeds can be compared"


def test_every_recorded_metric_is_in_the_catalogue(run: Path) -> None:
    assert unknown_metrics(run) == []


def test_best_checkpoint_has_the_best_validation(run: Path) -> None:
    found = [(row["step"], row["eval/success"]) for row in metrics(run) if row.get("eval/name") == "validation"]
    best = read_state(run / "checkpoints/best")
    best_success = best.parts["validation"]["best_success"]
    assert best_success == max(success for _, success in found)
    assert best.step == next(step for step, success in found if success == best_success)


def test_existing_run_folder_is_not_overwritten(run: Path) -> None:
    before = metrics(run)
    with pytest.raises(UserError, match="already contains a finished run"):
        train(small(run.parent), console=quiet())
    advice = rf"is finished\. To train it .* `turnwise train --from {run} --model\.name {run}`.* `turnwise eval {run}`$"
    with pytest.raises(UserError, match=advice):
        train(small(run.parent), resume=True, console=quiet())
    assert metrics(run) == before


class Killed(BaseException):
    """Not caught anywhere, like SIGKILL."""


def test_kill_while_the_report_is_written_leaves_a_run_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise Killed

    short = {"train__steps": 1, "eval__every": 0, "eval__episodes": 1}
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(training_run, "write_report", kill)
        train(small(tmp_path, **short), console=quiet())
    assert not (tmp_path / "run/summary.json").exists()
    assert train(small(tmp_path, **short), resume=True, console=quiet())["finished"]
    assert "not finished" not in (tmp_path / "run/report.html").read_text()


def test_stop_after_the_summary_reports_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio cancels a task that is about to return, so that its summary is lost."""
    write = RunFolder.write_summary

    def write_and_stop(self: RunFolder, summary: dict[str, Any]) -> None:
        write(self, summary)
        signal.raise_signal(signal.SIGINT)

    short = {"train__steps": 1, "eval__every": 0, "eval__episodes": 1}
    monkeypatch.setattr(RunFolder, "write_summary", write_and_stop)
    with pytest.raises(KeyboardInterrupt, match=r"^stopped; .*run is finished$"):
        train(small(tmp_path, **short), console=quiet())


def test_resuming_a_finished_run_writes_a_missing_report(run: Path) -> None:
    (run / "report.html").unlink()
    with pytest.raises(UserError, match="is finished"):
        train(small(run.parent), resume=True, console=quiet())
    assert (run / "report.html").exists()


Moment = Callable[[pytest.MonkeyPatch], None]


def in_an_episode(*, round: int, group_size: int, call: int = 0) -> Moment:
    """Ctrl-C after the third episode of a rollout, or of an evaluation: its groups are of one, its round is 0."""

    def moment(patch: pytest.MonkeyPatch) -> None:
        plain, calls = Collector.collect, list[tuple[int, int]]()

        async def collect(self: Collector, *given: Any, progress: Any, **others: Any) -> CollectedGroups:
            calls.append((others["round"], others["group_size"]))
            here = calls[-1] == (round, group_size) and calls.count(calls[-1]) == call + 1

            def note(done: int, total: int) -> None:
                if here and done == 3:
                    signal.raise_signal(signal.SIGINT)
                progress(done, total)

            return await plain(self, *given, progress=note, **others)

        patch.setattr(Collector, "collect", collect)

    return moment


def in_the_second_update(patch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any) -> Update:
        step = given[3]
        if step == 1:
            signal.raise_signal(signal.SIGINT)
        return update(*given)

    patch.setattr(loop, "update", interrupted)


MOMENTS = {
    "in the second rollout": (in_an_episode(round=1, group_size=4), 1),
    "in the second update": (in_the_second_update, 2),
    "in the first validation": (in_an_episode(round=0, group_size=1, call=1), 1),
}


@pytest.mark.parametrize(
    "name",
    [
        "in the second rollout",
        "in the second update",
        pytest.param("in the first validation", marks=pytest.mark.soak),  # then killed and resumed: a test below
    ],
)
def test_ctrl_c_leaves_a_run_that_resumes_with_the_same_bits(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """By the command line, with all that it says."""
    moment, done = MOMENTS[name]
    settings = [f"--record.folder={tmp_path}", "--record.name=run", "--checkpoint.every=50"]
    with monkeypatch.context() as patch:
        moment(patch)
        assert main(["train", "--from", str(run), *settings]) == 130
    assert f"resume with: turnwise train --resume {tmp_path}/run" in capsys.readouterr().err
    kept = [path.name for path in (tmp_path / "run/checkpoints").iterdir() if path.name != "best"]
    assert kept == [f"step_{done:06d}"]
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert_same_run(tmp_path / "run", run)
    assert read_state(tmp_path / "run/checkpoints/best") == read_state(run / "checkpoints/best")


def test_kill_between_validation_and_best_checkpoint_keeps_the_best(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the first validation, resumed, and killed when that is recorded and its checkpoint is not."""
    save, config = Checkpoints.save, small(tmp_path, checkpoint__every=50)

    def kill_at_best(self: Checkpoints, *given: Any, best: bool = False) -> Path:
        if best:
            raise Killed
        return save(self, *given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        in_an_episode(round=0, group_size=1, call=1)(patch)
        train(config, console=quiet())
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "save", kill_at_best)
        train(config, resume=True, console=quiet())
    train(config, resume=True, console=quiet())
    assert_same_run(tmp_path / "run", run)
    assert read_state(tmp_path / "run/checkpoints/best") == read_state(run / "checkpoints/best")


def test_time_limit_ends_with_evaluation_and_summary_and_can_be_resumed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console, calls = quiet(), iter([False, True])
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_out_of_time", lambda self, began: next(calls))
        stopped = train(small(tmp_path, train__max_minutes=1), console=console)
    assert stopped["finished"] is False and stopped["steps"] == 1 and "success_after" in stopped
    shown = printed(console)
    assert "success after" in shown and "trained nothing" not in shown and "next:" not in shown
    assert "stopped by train.max_minutes 1.0 after 1 steps; resume with: turnwise train --resume" in shown
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["finished"] is False and summary["success_after"] == stopped["success_after"]
    assert not tw.load_run(tmp_path / "run").finished
    assert "stopped by its time limit" in (tmp_path / "run/report.html").read_text()
    train(small(tmp_path), resume=True, console=quiet())
    assert_same_run(tmp_path / "run", run)
    assert tw.load_run(tmp_path / "run").finished


def test_time_limit_before_the_first_step_leaves_no_summary(tmp_path: Path) -> None:
    console = quiet()
    stopped = train(small(tmp_path, train__max_minutes=1e-6), console=console)
    assert stopped["finished"] is False and stopped["steps"] == 0
    assert "resume with: turnwise train --resume" in printed(console)
    assert not (tmp_path / "run/summary.json").exists()


def test_time_limit_stops_a_warm_up_and_the_resumed_run_repeats_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    console = quiet()
    stopped = train(small(tmp_path, train__max_minutes=1e-6), console=console)
    assert stopped["finished"] is False and stopped["steps"] == 0
    assert f"the warm-up of tiny had done 1 of {WARMUP_STEPS} steps" in printed(console)
    assert not list((tmp_path / "cache").rglob("*.safetensors")), "a warm-up that was cut is not cached"
    train(small(tmp_path), resume=True, console=quiet())
    assert_same_run(tmp_path / "run", run)


def test_warm_up_counts_against_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One second per step of the warm-up, by a clock of its own; the loop gets the rest of the minute."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    seconds, given = iter(range(100)), list[float | None]()
    monkeypatch.setattr(load_policy, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    init = loop.Loop.__init__

    def keep_limit(self: loop.Loop, *, limits: loop.LoopLimits, **parts: Any) -> None:
        given.append(limits.seconds)
        init(self, limits=replace(limits, seconds=None), **parts)

    monkeypatch.setattr(loop.Loop, "__init__", keep_limit)
    train(small(tmp_path, train__max_minutes=1, train__steps=1), console=quiet())
    assert given == [60.0 - WARMUP_STEPS]


IDLE = {
    "Raise rollout.max_tokens": {"rollout__max_tokens": 13, "algo__advantage": "grpo", "algo__kl_coef": 0.0},
    "or change algo.loss_tokens": {"algo__loss_tokens": "think"},
    "or change algo.advantage_tokens": {
        "algo__advantage": "grpo",
        "algo__advantage_tokens": "think",
        "algo__entropy_coef": 0.0,
        "algo__kl_coef": 0.0,
    },
    "another algo.filter": {"algo__filter": "absolute", "algo__filter__value": 100.0},
}


@pytest.mark.parametrize("advice", IDLE)
def test_idle_run_is_reported_once_and_at_its_end(advice: str, tmp_path: Path) -> None:
    console = quiet()
    summary = train(small(tmp_path, train__steps=2, eval__every=0, **IDLE[advice]), console=console)
    output = printed(console)
    assert output.count("trained nothing") == 1 and output.count("No step trained anything") == 1
    assert "step 1 trained nothing" in output and advice in output
    assert summary["idle_steps"] == 2


def test_seeds_give_one_run_each_and_one_table(tmp_path: Path) -> None:
    console = quiet()
    summaries = train_seeds(small(tmp_path, train__steps=1, eval__every=0), [3, 5], console=console)
    assert [summary["seed"] for summary in summaries] == [3, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-seed3", "run-seed5"]
    table = printed(console).rpartition("seed ")[2]
    assert "mean" in table and "over seeds" in table


def test_seeds_may_reach_the_time_limit(tmp_path: Path) -> None:
    console = quiet()
    summaries = train_seeds(small(tmp_path, train__max_minutes=1e-6), [0, 1], console=console)
    assert [summary["finished"] for summary in summaries] == [False, False]
    assert printed(console).count("resume with") == 2


class GuessNumber(tw.TextEnv):
    """I think of a number between 1 and 100."""

    max_turns = 7

    def reset(self, rng: random.Random) -> str:
        self.secret = rng.randint(1, 100)
        return "Guess my number (1-100)."

    def step(self, action: str) -> Outcome:
        guess = int(action)
        if guess == self.secret:
            return tw.won("Correct!")
        return tw.goes_on("higher" if guess < self.secret else "lower")


def test_user_environment_class_trains(tmp_path: Path) -> None:
    run = tw.train(
        env=GuessNumber,
        model="tiny",
        steps=1,
        model__warmup_steps=3,
        rollout__groups=2,
        rollout__group_size=2,
        rollout__max_new_tokens=8,
        rollout__stop=("</answer>", "never said"),
        train__mini_batch=4,
        eval__episodes=2,
        record__folder=str(tmp_path),
        record__name="mine",
        system__threads=1,
    )
    assert (run.summary["steps"], run.summary["episodes"]) == (1, 4)
    config = build(read_settings(tmp_path / "mine/config.toml"))
    assert config.env.kind == f"{__file__}:GuessNumber"
    assert config.rollout.stop == ("</answer>", "never said")
    row = RunFolder.open(tmp_path / "mine").read_index()[0]
    assert row["environment"] == "GuessNumber"


class Flaky(tw.TextEnv):
    """Breaks at times."""

    max_turns = 1

    def reset(self, rng: random.Random) -> str:
        if self.rng.random() < 0.3:
            raise ConnectionError("the server is gone")
        return "Go."

    def step(self, action: str) -> Outcome:
        return tw.won()


def test_failed_episodes_are_retried_counted_and_not_trained_on(tmp_path: Path) -> None:
    result = tw.train(
        env=Flaky,
        steps=2,
        model__warmup_steps=0,
        rollout__groups=3,
        rollout__group_size=4,
        rollout__max_new_tokens=4,
        rollout__attempts=2,
        train__mini_batch=12,
        eval__episodes=6,
        record__folder=str(tmp_path),
        record__name="flaky",
        system__threads=1,
    )
    rows = [row for row in metrics(tmp_path / "flaky") if "rollout/episodes" in row]
    assert sum(row.get("rollout/env_errors", 0) for row in rows) > 0
    dropped = [row for row in rows if row["rollout/dropped"]]
    assert dropped and result.summary["dropped"] == sum(row["rollout/dropped"] for row in dropped)
    reason = dropped[-1]["rollout/dropped_reason"]
    assert re.fullmatch(r".* raised ConnectionError: the server is gone at test_run\.py:\d+", reason)
    assert result.summary["dropped_reason"] == reason
    for row in rows:
        assert row["rollout/episodes"] == 12 - row["rollout/dropped"]
    index = RunFolder.open(tmp_path / "flaky").read_index()
    assert len(index) == sum(row["rollout/episodes"] for row in rows)
    attempts = [RunFolder.open(tmp_path / "flaky").read_trajectory(entry)["attempt"] for entry in index]
    assert set(attempts) == {0, 1}


@pytest.mark.parametrize(("step", "saved"), [(0, "No step has finished yet"), (2, "Finished steps are saved")])
def test_explain_failure_reports_whether_steps_are_saved(step: int, saved: str, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "") as folder:
        (folder.checkpoints / f"step_{step:06d}").mkdir(parents=True)
        message = rf"^gone\. {saved}; resume with: turnwise train --resume .*run$"
        with pytest.raises(Outage, match=message), training_run.explain_failure(folder, resume=False):
            raise Outage("gone.")


def test_environment_that_always_fails_is_a_one_line_error(tmp_path: Path) -> None:
    class Broken(Flaky):
        def reset(self, rng: random.Random) -> str:
            raise ConnectionError("the server is gone")

    for _ in range(2):  # the first leaves no folder that would stop the second
        with pytest.raises(
            UserError,
            match=r"^Broken\.reset raised ConnectionError: the server is gone at test_run.py:\d+ \(in a trial",
        ):
            tw.train(
                env=Broken,
                steps=1,
                model__warmup_steps=0,
                record__folder=str(tmp_path),
                record__name="broken",
                eval__episodes=2,
            )
        assert not list(tmp_path.iterdir())


def test_resume_without_a_checkpoint_explains_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like after a kill in the first step, with settings that cannot work."""
    config = small(tmp_path, eval__every=0)
    with RunFolder.create(tmp_path / "run", to_toml(config)):
        pass

    def failing(*given: Any, **others: Any) -> None:
        raise UserError("no such model: add it")

    with monkeypatch.context() as patch:
        patch.setattr(build_parts, "load_policy_of_run", failing)
        with pytest.raises(UserError, match=r"^no such model: add it. .*run has no checkpoint yet: .* delete it and"):
            train(config, resume=True, console=quiet())
    assert (tmp_path / "run/config.toml").exists(), "another start made it"
    console = quiet()
    train(config, resume=True, console=console)
    assert "run has no checkpoint yet. It starts again" in printed(console)


def test_export_is_a_plain_model_with_equal_outputs(run: Path, tmp_path: Path) -> None:
    export(str(run), tmp_path / "model")
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert not files & {"learner.safetensors", "state.json"}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Teacher, Trader"}], add_generation_prompt=True, return_dict=False
    )
    ours = load_model(str(run / f"checkpoints/step_{STEPS:06d}"), attn_implementation="eager").model
    trained = learnt(run)
    assert all(torch.equal(trained[name], tensor) for name, tensor in theirs.named_parameters())
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits
        torch.testing.assert_close(logits, ours(torch.tensor([ids])).logits, atol=1e-5, rtol=1e-4)
    with pytest.raises(UserError, match="already exists"):
        export(str(run), tmp_path / "model")


def evaluated(*words: str, overrides: Any = ()) -> EvaluationResults:
    with TemporaryDirectory() as folder:
        return evaluate_into_folder(plan_evaluation(words, overrides=overrides), Path(folder), console=quiet())


def test_evaluating_a_run_reproduces_its_last_evaluation(run: Path) -> None:
    found = evaluated(str(run))
    after = next(row for row in metrics(run) if row.get("eval/name") == "after")
    assert {name: after[f"eval/{name}"] for name in found.evaluations[0].metrics()} == found.evaluations[0].metrics()
    assert (found.environment, found.split) == ("bandit", "test")
    other = evaluated(str(run), overrides=[("eval.episodes", 3), ("eval.split", "validation")])
    assert (other.evaluations[0].episodes, other.split) == (3, "validation")


def test_named_checkpoint_can_be_evaluated_and_exported(run: Path, tmp_path: Path) -> None:
    settings = [("eval.episodes", 8), ("eval.split", "validation")]
    (found,) = evaluated(f"{run}/checkpoints/step_{STEPS - 1:06d}", overrides=settings).evaluations
    then = next(row for row in metrics(run) if row["step"] == STEPS - 1 and row.get("eval/name") == "validation")
    assert {name: then[f"eval/{name}"] for name in found.metrics()} == found.metrics()
    export(f"{run}/checkpoints/best/", tmp_path / "model")
    ours, best = (load_file(each / "model.safetensors") for each in (tmp_path / "model", run / "checkpoints/best"))
    assert all(torch.equal(ours[name], tensor) for name, tensor in best.items())
    with pytest.raises(UserError, match=r'has no checkpoint "step_9": .*best'):
        evaluated(f"{run}/checkpoints/step_9")


def test_evaluating_a_model_needs_an_environment(run: Path) -> None:
    with pytest.raises(UserError, match="name the environment after it"):
        evaluated("tiny")
    settings = [("eval.episodes", 4), ("model.warmup_steps", WARMUP_STEPS), ("rollout.max_new_tokens", 12)]
    (found,) = evaluated("tiny", "bandit", overrides=settings).evaluations
    assert found.episodes == 4
    assert all(math.isfinite(value) for value in found.metrics().values())


def test_run_without_a_complete_checkpoint_is_refused(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", to_toml(small(tmp_path))):
        pass
    with pytest.raises(UserError, match="no checkpoint yet"):
        export(str(tmp_path / "run"), tmp_path / "model")
    with pytest.raises(UserError, match="no checkpoint yet"):
        evaluated(str(tmp_path / "run"))
    assert not (tmp_path / "model").exists()
