"""Runs with ArCHer: they learn from the replay, and a stopped one continues bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import episodes, learnt, metrics, quiet, small, unknown_metrics
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.record.trajectories import open_replay
from turnwise.run.check_settings import check_settings_fit
from turnwise.run.train import train
from turnwise.training.estimators.archer import Archer
from turnwise.training.estimators.utterance_critic import UtteranceCriticLearner

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
        "algo.estimator": "archer",
        "algo.loss": "reinforce",
        "algo.estimator.gamma_turn": 0.9,
        "critic": "utterances",
        "critic.updates": 2,
        "critic.batch": 4,
        "algo.estimator.states": 8,
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
    train(
        lake(tmp_path, algo__estimator__replay=10, train__steps=2),
        console=quiet(),
    )
    assert sizes == [8, 10]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"selfplay__opponent": "self"},
            "learns from episodes of many steps, and selfplay.opponent self changes the opponent",
        ),
        ({"data__sources": ["runs/old"]}, "or choose algo.estimator archer_offline"),
        (
            {"env__kind": "agent", "agent__command": "x"},
            "env.kind agent is not one. Set env.kind to an environment, or",
        ),
        ({"rollout__max_staleness": 1}, "rollout.max_staleness 1 runs rollouts and updates side by side"),
        ({"cluster__engines": 2}, "Set cluster.engines to 0"),
        ({"cluster__learners": 2}, "Set cluster.learners to 0"),
        ({"algo__kl_in": "reward"}, "algo.kl_in reward adds the KL term to rewards. Choose algo.kl_in loss"),
        ({"algo__normalise": "mean"}, "learns from turn rewards as they are, and algo.normalise mean"),
        ({"reward__combine": "each"}, "learns from turn rewards as they are, and reward.combine each"),
        ({"algo__estimator__gamma_turn": "adaptive"}, "algo.estimator.gamma_turn = adaptive: must be a number"),
        ({"train__mini_batch": 9}, "algo.estimator.states 8. Set train.mini_batch to at most 8."),
    ],
)
def test_archer_refuses_settings_that_contradict_it(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        check_settings_fit(lake(tmp_path, **settings))
    assert message in str(error.value)


def test_estimator_and_critic_fit_each_other() -> None:
    for overrides, message in (
        (
            {"algo.estimator": "archer"},
            "archer needs a critic of utterances, and critic trunk is one of tokens. Choose",
        ),
        (
            {"algo.advantage": "gae", "critic": "utterances"},
            "gae needs the values of tokens, and critic utterances is one of utterances. Choose critic trunk or head.",
        ),
    ):
        with pytest.raises(UserError, match=message):
            check_settings_fit(build({}, list(overrides.items())))
    check_settings_fit(build({}, [("critic", "utterances")]))  # grpo has no critic


@pytest.mark.parametrize("estimator", ["archer_offline", "awac"])
def test_offline_estimators_need_stored_episodes(estimator: str) -> None:
    overrides = [("algo.estimator", estimator), ("critic", "utterances")]
    with pytest.raises(
        UserError, match=r"trains on stored episodes alone, .* Name stored episodes \(data\.sources\), or"
    ):
        check_settings_fit(build({}, overrides))
    stored = [*overrides, ("data.sources", ["runs/old"])]
    check_settings_fit(build({}, stored))
    agent = build({}, [*stored, ("env.kind", "agent"), ("agent.command", "x")])
    if estimator == "awac":
        with pytest.raises(
            UserError, match=r"acts? at stored states of an environment, and env\.kind agent is not one"
        ):
            check_settings_fit(agent)
    else:
        check_settings_fit(agent)


def test_archer_does_not_need_what_its_replaced_advantage_does() -> None:
    """It neither compares members of a group nor filters groups, and its environments may be in actors."""
    alone = [
        ("algo.estimator", "archer"),
        ("critic", "utterances"),
        ("rollout.group_size", 1),
        ("algo.filter", "quarter"),
    ]
    check_settings_fit(build({}, [*alone, ("algo.advantage", "remax"), ("cluster.env_workers", 2)]))
