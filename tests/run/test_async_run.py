"""Training runs with rollout.max_staleness: equal to synchronous ones at 0, and resumed without loss above it."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import learnt, metrics, quiet, small
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.rollout.tasks import EnvMixEntry, TaskSource
from turnwise.run import build_loop, build_source
from turnwise.run.configure import configure
from turnwise.run.train import train
from turnwise.training.learner_thread import LearnerThread
from turnwise.training.sources.played import Played
from turnwise.training.sources.played_ahead import PlayedAhead

GRPO = {"algo__advantage": "grpo", "eval__every": 0, "eval__episodes": 1, "train__mini_batch": 8}
STALE = GRPO | {"rollout__max_staleness": 2, "algo__correction": "truncated", "algo__old_logprobs": "learner"}


def test_staleness_zero_trains_to_the_bits_of_the_synchronous_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same machinery with nothing ahead: background rollouts, a thread for the learner.

    Without evaluations: they share batches with the next step's rollout, and on x86 a row's bits depend on its batch.
    """
    settings = {"train__steps": 3, "eval__every": 0, "eval__episodes": 1}
    train(small(tmp_path / "synchronous", **settings), console=quiet())

    def play_ahead(**settings: Any) -> PlayedAhead:
        return PlayedAhead(Played(**settings), max_staleness=0, steps=3, in_flight=256)

    monkeypatch.setattr(build_source, "Played", play_ahead)
    monkeypatch.setattr(build_loop, "ThisThread", LearnerThread)
    train(small(tmp_path / "asynchronous", **settings), console=quiet())
    ours, theirs = (learnt(tmp_path / name / "run", step=3) for name in ("synchronous", "asynchronous"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def trained_episodes(run: Path, step: int) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in (run / f"trajectories/step_{step:06d}.jsonl").read_text().splitlines()]
    return sorted((row["task"]["seed"], row["member"]) for row in rows)


def planned_episodes(config: Config, step: int) -> list[tuple[int, int]]:
    tasks = TaskSource(mix=(EnvMixEntry(env="bandit"),), run_seed=config.seed).draw(step - 1, config.rollout.groups)
    return sorted((task.seed, member) for task in tasks for member in range(config.rollout.group_size))


class Interrupted(BaseException):
    pass


def test_stopped_asynchronous_run_resumes_without_loss(tmp_path: Path) -> None:
    """Steps 3 to 5 have started when the run is stopped after 2: each episode is trained exactly once in the end."""
    config = small(tmp_path, train__steps=5, **STALE)

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(config, console=quiet(), on_step=stop)
    summary = train(config, console=quiet(), resume=True)
    assert summary["steps"] == 5
    rows = [row for row in metrics(tmp_path / "run") if "rollout/staleness" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    for step in range(1, 6):
        assert trained_episodes(tmp_path / "run", step) == planned_episodes(config, step)


def test_staleness_stays_within_its_bound_and_is_corrected(tmp_path: Path) -> None:
    train(small(tmp_path, train__steps=5, train__learning_rate=3e-3, **STALE), console=quiet())
    rows = [row for row in metrics(tmp_path / "run") if "rollout/staleness" in row]
    assert rows[0]["rollout/staleness_max"] == 0
    assert max(row["rollout/staleness_max"] for row in rows) == 2
    assert all(row["rollout/staleness"] <= row["rollout/staleness_max"] <= 2 for row in rows)
    assert rows[-1]["train/mismatch"] > rows[0]["train/mismatch"], "older weights sampled the tokens"
    assert rows[-1]["engine/published_mb"] > 1


def test_spans_show_who_did_what_in_each_step(tmp_path: Path) -> None:
    train(small(tmp_path, train__steps=4, **STALE), console=quiet())
    rows = [json.loads(line) for line in (tmp_path / "run/spans.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    spans = [span for row in rows for span in row["spans"]]
    assert {lane for lane, *_ in spans} == {"training loop", "rollouts 1", "rollouts 2", "rollouts 3"}
    rollouts = {activity for lane, activity, *_ in spans if lane.startswith("rollouts")}
    assert rollouts == {f"step {step}" for step in range(1, 5)}
    updates = [(start, end) for lane, activity, start, end in spans if (lane, activity) == ("training loop", "update")]
    assert len(updates) == 4
    assert all(end <= start for (_, end), (start, _) in pairwise(updates))


def test_synchronous_run_records_no_spans(tmp_path: Path) -> None:
    train(small(tmp_path, train__steps=1), console=quiet())
    assert not (tmp_path / "run/spans.jsonl").exists()


def test_stale_rollouts_are_corrected_by_default() -> None:
    stale = configure("bandit", overrides=[("rollout.max_staleness", "2")]).algo
    assert (stale.correction.kind, stale.old_logprobs) == ("truncated", "learner")
    fresh = configure("bandit").algo
    assert (fresh.correction.kind, fresh.old_logprobs) == ("none", "sampler")
    chosen = configure("bandit", overrides=[("rollout.max_staleness", "2"), ("algo.old_logprobs", "sampler")]).algo
    assert (chosen.correction.kind, chosen.old_logprobs) == ("none", "sampler")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"env__kind": "tic_tac_toe", "selfplay__opponent": "self"}, "chooses one opponent per step"),
        ({"system__keep_cache": "off"}, "system.keep_cache off frees the KV cache for updates"),
    ],
)
def test_staleness_refuses_settings_that_contradict_it(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        train(small(tmp_path, **STALE | settings), console=quiet())
