"""Runs with ArCHer: they learn from the replay, and a stopped one continues bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import episodes, learnt, metrics, quiet, small, unknown_metrics
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.record.trajectories import open_replay
from turnwise.run.conflicting_settings import check_conflicts
from turnwise.run.train import train
from turnwise.training.archer import Archer
from turnwise.training.utterance_critic import UtteranceCriticLearner

DIAGNOSTICS = (
    "q_loss",
    "v_loss",
    "q_mean",
    "v_mean",
    "return_mean",
    "overestimation",
    "q_error",
    "v_error",
    "target_drift",
    "critic_improvement",
    "critic_trust",
    "effective_samples",
    "replay_trajectories",
)


def lake(folder: Path, **settings: Any) -> Config:
    given = {
        "env.kind": "frozen_lake",
        "env.params.max_turns": 3,
        "env.params.max_actions_per_turn": 1,
        "rollout.max_new_tokens": 8,
        "rollout.max_tokens": 768,
        "algo.method": "archer",
        "algo.loss": "reinforce",
        "algo.gamma_turn": 0.9,
        "archer.critic_updates": 2,
        "archer.critic_batch": 4,
        "archer.states": 8,
        "archer.token_baseline": True,
        "critic.warmup_steps": 1,
        "eval.every": 0,
        "eval.episodes": 1,
    }
    return small(folder, **({name.replace(".", "__"): value for name, value in given.items()} | settings))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archer")
    assert train(lake(folder), console=quiet())["finished"]
    return folder / "run"


def test_archer_run_records_the_critic_and_its_diagnostics(finished: Path) -> None:
    assert unknown_metrics(finished) == []
    steps = [row for row in metrics(finished) if "rollout/episodes" in row]
    assert all(f"train/{name}" in row for row in steps for name in DIAGNOSTICS)
    assert [row["train/replay_trajectories"] for row in steps] == [8.0, 16.0, 24.0]
    errors = [row["train/overestimation"] for row in steps]
    assert errors[0] == pytest.approx(0, abs=1e-5) and abs(errors[1]) > 1e-4, "measured before the step's updates"
    assert steps[0]["train/critic_trust"] == 0
    assert steps[0]["train/effective_samples"] == pytest.approx(1.0), "all of it is the policy's own"
    assert "train/policy_loss" not in steps[0] and "train/policy_loss" in steps[1], "the critic warms up alone"
    tensors = learnt(finished)
    for part in ("critic.trunk", "critic.q_heads", "average.0", "optimizer.0"):
        assert any(name.startswith(f"utterance_critic.{part}") for name in tensors), part


@pytest.mark.parametrize(("error", "last", "every"), [(SystemExit, 6, 1), (UserError, 4, 50)])
def test_archer_stopped_and_resumed_ends_bit_for_bit_the_same(
    error: type[BaseException], last: int, every: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in step 3, or failed in step 2, when its episodes are in the replay and the critic is half trained."""
    updates, update = 0, UtteranceCriticLearner.update

    def fail_late(self: UtteranceCriticLearner, *args: Any, **kwargs: Any) -> dict[str, float]:
        nonlocal updates
        updates += 1
        if updates == last:
            raise error
        return update(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(UtteranceCriticLearner, "update", fail_late)
        with pytest.raises(error):
            train(lake(tmp_path, checkpoint__every=every), console=quiet())
    assert train(lake(tmp_path, checkpoint__every=every), resume=True, console=quiet())["finished"]
    run = tmp_path / "run"
    left, right = learnt(finished), learnt(run)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert metrics(finished) == metrics(run) and episodes(finished) == episodes(run)
    digests = [[each.digest for each in open_replay(each / "replay", 10000).entries] for each in (finished, run)]
    assert digests[0] == digests[1] and len(digests[0]) == 24


def test_archer_replay_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    sample = Archer.sample

    async def counted(self: Archer, *args: Any) -> Any:
        found = await sample(self, *args)
        sizes.append(len(self.replay))
        return found

    monkeypatch.setattr(Archer, "sample", counted)
    train(lake(tmp_path, archer__replay=10, archer__token_baseline=False, train__steps=2), console=quiet())
    assert sizes == [8, 10]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selfplay__opponent": "self"}, "learns from episodes of many steps, and selfplay.opponent self plays"),
        ({"data__sources": ["runs/old"]}, "or choose algo.method archer_offline"),
        ({"algo__method": "archer_offline"}, "trains on stored episodes alone. Name them (data.sources)"),
        ({"algo__method": "awac"}, "algo.method awac trains on stored episodes alone. Name them (data.sources)"),
        (
            {"algo__method": "awac", "env__kind": "agent", "data__sources": ["runs/old"]},
            "an agent acts by itself. Choose algo.method archer_offline",
        ),
    ],
)
def test_archer_refuses_settings_that_contradict_it(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        check_conflicts(lake(tmp_path, **settings))
    assert message in str(error.value)
