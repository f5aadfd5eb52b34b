"""Published methods as `--algo.preset`, and settings that do not go together."""

from pathlib import Path
from typing import Any

import pytest

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.corrections import CORRECTIONS
from turnwise.algos.filters import FILTERS
from turnwise.algos.losses import LOSSES
from turnwise.config.load import build, save_toml
from turnwise.core.errors import UserError
from turnwise.envs.registry import load
from turnwise.recipes.checks import check
from turnwise.recipes.configure import configure
from turnwise.recipes.presets import find_method, method_names


def refused(given: tuple[str, ...] = (), env: str = "frozen_lake", **settings: Any) -> str:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    with pytest.raises(UserError) as told:
        check(build({}, list(named.items())), load(env), given)
    return str(told.value)


def test_the_methods_of_the_field_are_there_and_fit_every_recipe() -> None:
    wanted = {"starpo_s", "starpo_ppo", "starpo_grpo", "dapo", "dr_grpo", "gspo", "reinforce_pp", "bi_level"}
    assert wanted <= set(method_names())
    for name in method_names():
        assert find_method(name).summary
        for recipe in ("bandit", "frozen_lake", "sokoban"):
            config = configure(recipe, overrides=[("algo.preset", name)])
            check(config, load(recipe))
            assert config.algo.preset == name


def test_a_method_stands_above_the_recipe_and_below_what_was_typed() -> None:
    plain, method = configure("frozen_lake"), configure("frozen_lake", overrides=[("algo.preset", "starpo_s")])
    assert (plain.algo.advantage, method.algo.advantage) == ("reinforce_pp", "gae")
    assert method.algo.filter == "quarter" and method.train == plain.train
    typed = configure("frozen_lake", overrides=[("algo.preset", "starpo_s"), ("algo.filter", "none")])
    assert typed.algo.filter == "none" and typed.algo.advantage == "gae"


def test_a_run_made_with_a_method_is_repeated_as_it_was(tmp_path: Path) -> None:
    config = configure("frozen_lake", overrides=[("algo.preset", "starpo_s"), ("algo.clip_high", 0.5)])
    (tmp_path / "run").mkdir()
    save_toml(config, tmp_path / "run/config.toml")
    assert configure(start_from=str(tmp_path / "run")).algo == config.algo


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r'unknown algo\.preset "starpos": did you mean "starpo_s"'):
        configure("frozen_lake", overrides=[("algo.preset", "starpos")])


@pytest.mark.parametrize("name", ["advantage", "loss", "correction", "normalise", "filter", "filter_by", "aggregation"])
def test_an_unknown_name_is_refused_with_what_there_is(name: str) -> None:
    assert refused(**{f"algo__{name}": "nonsense"}).startswith(f'unknown algo.{name} "nonsense"')


IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("compares the members of a group", {"algo__advantage": "opo", "rollout__group_size": 1, "rollout__groups": 64}),
    (
        "algo.filter_by reward_std compares",
        {"algo__advantage": "gae", "algo__filter": "quarter", "rollout__group_size": 1},
    ),
    ("reward.combine each compares", {"algo__advantage": "gae", "reward__combine": "each", "rollout__group_size": 1}),
    ("every return 0", {"algo__advantage": "gae", "algo__normalise": "mean", "rollout__group_size": 1}),
    ("nothing would be trained", {"algo__correction_low": 3.0}),
    ("diagnose.alarms is false", {"diagnose__rollback": True, "diagnose__alarms": False}),
    ("told apart by their names", {"reward__functions": ("a.py:f", "b.py:f")}),
    ("told apart by their names", {"reward__functions": ("a.py:env",)}),
    ("ranks groups against each other", {"algo__filter": "quarter", "algo__filter_refill": 1}),
    ("algo.kl_coef is 0", {"algo__kl_target": 0.1}),
    ("no gradient on average", {"algo__kl_coef": 0.1, "algo__kl_estimator": "k1"}),
    ("makes them one", {"algo__correction": "truncated"}),
    ("has no critic", {"algo__gamma_turn": "adaptive"}),
    ("does not discount by turn", {"algo__gamma_turn": "adaptive", "algo__advantage": "gae"}),
    ("normalise already", {"reward__combine": "each", "algo__normalise": "mean"}),
    ("needs one number for the environment's reward", {"reward__weights": (1.0, 2.0)}),
    ("no file missing.py", {"reward__functions": ("missing.py:brief",)}),
    ('neither "sampled" nor "think"', {"algo__loss_tokens": "thinking"}),
]


@pytest.mark.parametrize(("reason", "settings"), IMPOSSIBLE)
def test_what_makes_no_sense_is_refused_with_the_reason(reason: str, settings: dict[str, Any]) -> None:
    settings = {"train__mini_batch": 4, **settings}
    assert reason in refused(**settings)


def test_same_state_groups_need_an_environment_that_names_its_states(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import turnwise as tw\nclass Plain(tw.TextEnv):\n    def reset(self, rng): return ''\n"
        "    def step(self, action): return tw.won('')\n"
    )
    assert "no state_key()" in refused(env=f"{tmp_path}/plain.py:Plain", algo__advantage="gigpo")
    check(build({}, [("algo.advantage", "gigpo")]), load("frozen_lake"))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("algo.gamma", {"algo__advantage": "grpo", "algo__gamma": 0.9}),
        ("algo.dual_clip", {"algo__loss": "reinforce", "algo__dual_clip": 2.0}),
        ("algo.correction_high", {"algo__correction_high": 3.0}),
        ("algo.filter_value", {"algo__filter_value": 0.5}),
    ],
)
def test_a_typed_setting_that_nothing_reads_is_refused(key: str, settings: dict[str, Any]) -> None:
    assert f"{key} has no effect" in refused(given=(key,), **settings)
    named = {name.replace("__", "."): value for name, value in settings.items()}
    check(build({}, list(named.items())), load("frozen_lake"))  # from a recipe it may stand there unread


def test_every_algorithm_passes_the_checks_with_what_it_needs() -> None:
    needs = {"algo.old_logprobs": "learner"}
    for key, names in (("advantage", ADVANTAGES), ("loss", LOSSES), ("correction", CORRECTIONS), ("filter", FILTERS)):
        for name in names:
            check(build({}, [(f"algo.{key}", name), *needs.items()]), load("frozen_lake"))
