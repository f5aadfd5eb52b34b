from pathlib import Path
from typing import Any

import pytest

from turnwise.config.load import build
from turnwise.core.errors import UserError
from turnwise.recipes.presets import recipe_names
from turnwise.rewards.judge.client import JudgeClient
from turnwise.run import resources, training_run
from turnwise.run.configure import configure
from turnwise.run.setting_names import check_model_name
from turnwise.run.training_run import resolve
from turnwise.run.validate import check_settings, judge_clients


def refused(**settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        given = [(name.replace("__", "."), value) for name, value in settings.items()]
        check_settings(build({}, given, load_code=True))
    return str(caught.value)


@pytest.mark.parametrize("name", recipe_names())
def test_every_preset_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")  # of those with a judge
    check_settings(configure(name))


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    """An unknown estimator must never fall through to something that trains on zeros."""
    assert refused(algo__advantage="grop") == 'Unknown algo.advantage "grop": did you mean "grpo"?'
    assert refused(algo__loss="pppo") == 'Unknown algo.loss "pppo": did you mean "ppo"?'
    assert refused(engine="nativ") == 'Unknown engine "nativ": did you mean "native"?'
    assert "did you mean" in refused(algo__aggregation="tokenmean")
    assert "there are" in refused(algo__advantage="xyz")


def test_archer_needs_a_state_for_each_critic_update() -> None:
    error = refused(
        algo__estimator="archer", algo__estimator__states=7, critic="utterances", critic__updates=8, train__mini_batch=4
    )
    assert error.startswith("algo.estimator.states 7 is less than critic.updates 8: ")
    assert error.endswith("Set algo.estimator.states to at least 8.")


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo"])
def test_group_of_one_is_refused_for_relative_advantages(advantage: str) -> None:
    error = refused(algo__advantage=advantage, rollout__group_size=1, rollout__groups=64)
    assert (
        advantage in error and "Set rollout.groups 32 and rollout.group_size 8, or choose algo.advantage gae" in error
    )
    check_settings(build({}, [("algo.advantage", "gae"), ("rollout.group_size", 1), ("rollout.groups", 64)]))


def test_bootstrapping_needs_a_critic() -> None:
    assert "has no critic" in refused(algo__truncated="bootstrap")
    check_settings(build({}, [("algo.truncated", "bootstrap"), ("algo.advantage", "gae")]))


def test_mini_batch_larger_than_the_batch_is_refused() -> None:
    error = refused(train__mini_batch=9, rollout__groups=2, rollout__group_size=4)
    assert error.startswith("train.mini_batch 9 is more than the trajectories of a step, rollout.groups 2 x ")
    assert error.endswith("Set train.mini_batch to at most 8.")
    check_settings(build({}, [("train.mini_batch", 8), ("rollout.groups", 2), ("rollout.group_size", 4)]))


def test_top_count_needs_a_whole_number_of_groups() -> None:
    assert refused(algo__filter="top_count") == "algo.filter top_count needs algo.filter.count. Give it."
    for count in (0, 2.5):
        error = refused(algo__filter="top_count", algo__filter__count=count)
        assert error == f"algo.filter.count = {count}: must be a whole number of 1 or more"
    check_settings(build({}, [("algo.filter", "top_count"), ("algo.filter.count", 3)]))
    check_settings(build({}, [("algo.filter", "top_k")]))


@pytest.mark.parametrize("name", ["mean", "mean_std", "asym_clip"])
def test_remax_refuses_returns_in_other_units_than_the_greedy_ones(name: str) -> None:
    error = refused(algo__advantage="remax", algo__normalise=name)
    assert f"in the units of the environment, and algo.normalise {name} normalises returns" in error
    for combine in ("each", "process"):
        assert f"reward.combine {combine}" in refused(algo__advantage="remax", reward__combine=combine)
    check_settings(build({}, [("algo.advantage", "remax")]))


JUDGE = {"model": "m", "rubric": "r", "endpoint": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize("mode", ["relative", "pairwise", "absolute"])
@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"algo__advantage": "gae", "rollout__group_size": 1, "rollout__groups": 64}, "rollout.group_size is 1. Set"),
        ({"algo__advantage": "remax"}, "algo.advantage remax scores a greedy episode on its own"),
    ],
)
def test_comparing_judges_need_groups_of_two(
    mode: str, settings: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    settings = settings | {"reward__judges": ({**JUDGE, "cache": str(tmp_path), "mode": mode},)}
    if mode == "absolute":
        check_settings(build({}, [(name.replace("__", "."), value) for name, value in settings.items()]))
    else:
        assert complaint in refused(**settings)


def test_check_asks_for_the_judges_of_the_settings(tmp_path: Path) -> None:
    judge = {**JUDGE, "cache": str(tmp_path)}
    (client,) = judge_clients(build({}, [("reward.judges", (judge,))]).reward)
    assert isinstance(client, JudgeClient)


def test_reward_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def kind(answer, row):\n    return 0.0\n")
    error = refused(reward__functions=(f"{tmp_path}/mine.py:kind",))
    assert error == "the reward kind must take one argument: write function(trajectory)."


def test_check_refuses_more_threads_than_the_machine_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "max_threads", lambda: 300)
    monkeypatch.setattr(resources, "cores", lambda: 8)
    error = "system.threads 9999: this machine allows at most 300. Set it to 8, or raise the process limit."
    assert refused(system__threads=9999) == error
    check_settings(build({}, [("system.threads", 300)]))


def test_default_threads_pass_their_own_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "max_threads", lambda: 3)
    monkeypatch.setattr(resources.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(training_run, "default_threads", resources.default_threads)  # conftest.py has replaced it
    config = resolve(build({}))
    assert config.system.threads == 3
    check_settings(config)
    assert "Set it to 3," in refused(system__threads=64)


@pytest.mark.parametrize(
    ("processes", "pids", "cores", "most"),
    [(-1, "max", 2, 256), (-1, "max", 200, 800), (100, "max", 2, 50), (-1, "60", 2, 30), (1, "max", 2, 1)],
)
def test_max_threads_respects_user_and_container_limits(
    processes: int, pids: str, cores: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pids.max").write_text(f"{pids}\n")
    monkeypatch.setattr(resources, "PIDS_MAX", tmp_path / "pids.max")
    monkeypatch.setattr(resources.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(resources.resource, "getrlimit", lambda _: (processes, processes))
    assert resources.max_threads() == most


@pytest.mark.parametrize(
    "key", ["train.learning_rate", "train.optimizer.learning_rate", "critic.learning_rate", "sft.learning_rate"]
)
def test_learning_rates_above_one_are_refused(key: str) -> None:
    muon = [("train.optimizer", "muon")]
    for value in (1e308, 1.01, 0.0, float("inf"), float("nan")):
        with pytest.raises(UserError, match=rf"^{key} = .*: must be a number above 0 and at most 1"):
            build({}, [*muon, (key, value)])
    build({}, [*muon, (key, 1.0)])


def test_model_name_of_a_run_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake/config.toml").write_text("")
    config = configure("bandit", overrides=[("model.name", "lake"), ("record.folder", str(tmp_path))])
    with pytest.raises(UserError, match=f'Unknown model "lake": did you mean the run "{tmp_path}/lake"'):
        check_model_name(config)
