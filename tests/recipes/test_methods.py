"""Published methods as `--algo.preset`, and settings that do not go together."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.filters import FILTERS
from turnwise.algos.losses import LOSSES
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.config.keys import all_keys
from turnwise.config.load import build, read_settings, to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec
from turnwise.recipes.presets import find_method, method_names, method_path
from turnwise.run.configure import configure
from turnwise.run.unused_settings import SWITCHES
from turnwise.run.validate import check_environment, check_settings

PAIRS = {"dpo": [("algo.advantage", "preference"), ("algo.aggregation", "seq-mean-token-sum")]}
"""Settings that a loss of pairs needs."""


def check(config: Config, env: str, override_keys: Iterable[str] = ()) -> None:
    check_settings(config, override_keys)
    check_environment(config, load_spec(env))


def refused(override_keys: tuple[str, ...] = (), env: str = "frozen_lake", **settings: Any) -> str:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    with pytest.raises(UserError) as error:
        check(build({}, list(named.items())), env, override_keys)
    return str(error.value)


def test_method_presets_fit_every_recipe() -> None:
    wanted = {"starpo_s", "starpo_ppo", "starpo_grpo", "dapo", "dr_grpo", "gspo", "reinforce_pp", "bi_level"}
    assert wanted <= set(method_names())
    for name in method_names():
        assert find_method(name).summary
        for recipe in ("bandit", "frozen_lake", "sokoban", "sokoban_smollm2"):
            data = [("data.sources", ["runs/old"])] if name in ("archer_offline", "awac") else []
            config = configure(recipe, overrides=[("algo.preset", name), *data])
            check(config, config.env.kind)
            assert config.algo.preset == name


def test_method_presets_have_the_dual_clip_of_their_source() -> None:
    """A preset that leaves it out would get the default of 3, which most papers do not have."""
    algos = {name: read_settings(method_path(name))["algo"] for name in method_names()}
    reads = {name for name, algo in algos.items() if "dual_clip" in LOSSES[algo["loss"]].reads}
    assert reads == {name for name, algo in algos.items() if "dual_clip" in algo}
    without = {name for name in reads if configure("bandit", overrides=[("algo.preset", name)]).algo.dual_clip is None}
    assert without == {"dapo", "dr_grpo", "gspo", "reinforce_pp"}


def test_method_preset_overrides_the_recipe_but_not_the_user() -> None:
    plain, method = configure("frozen_lake"), configure("frozen_lake", overrides=[("algo.preset", "starpo_s")])
    assert (plain.algo.advantage, method.algo.advantage) == ("bi_level_gae", "gae")
    assert method.algo.filter == "quarter" and method.train == plain.train
    typed = configure("frozen_lake", overrides=[("algo.preset", "starpo_s"), ("algo.filter", "none")])
    assert typed.algo.filter == "none" and typed.algo.advantage == "gae"


def test_run_with_a_method_preset_is_reproduced(tmp_path: Path) -> None:
    config = configure("frozen_lake", overrides=[("algo.preset", "starpo_s"), ("algo.clip_high", 0.5)])
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(to_toml(config), encoding="utf-8")
    assert configure(start_from=str(tmp_path / "run")).algo == config.algo


def test_unknown_method_suggests_the_closest() -> None:
    with pytest.raises(UserError, match=r'Unknown algo\.preset "starpos": did you mean "starpo_s"'):
        configure("frozen_lake", overrides=[("algo.preset", "starpos")])


@pytest.mark.parametrize("name", ["advantage", "loss", "correction", "normalise", "filter", "filter_by", "aggregation"])
def test_unknown_algorithm_name_is_refused(name: str) -> None:
    assert refused(**{f"algo__{name}": "nonsense"}).startswith(f'Unknown algo.{name} "nonsense"')


IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("compares the members of a group", {"algo__advantage": "opo", "rollout__group_size": 1, "rollout__groups": 64}),
    (
        "algo.filter_by reward_std compares",
        {"algo__advantage": "gae", "algo__filter": "quarter", "rollout__group_size": 1},
    ),
    ("reward.combine each compares", {"algo__advantage": "gae", "reward__combine": "each", "rollout__group_size": 1}),
    ("every return 0", {"algo__advantage": "gae", "algo__normalise": "mean", "rollout__group_size": 1}),
    ("no token would be trained", {"algo__correction_low": 3.0}),
    ("must be below 1", {"train__betas": (0.9, 1.0)}),
    ("must be below 1", {"train__betas": (1.0, 0.9)}),
    ("at most 1, which disables the bound", {"algo__clip_low": 1.5}),
    ("at most 1, which disables the bound", {"algo__clip_low": 1.5, "algo__loss": "cispo"}),
    ("Set train.epochs to 1", {"algo__loss": "reinforce", "train__epochs": 2}),
    ("the policy would never be trained", {"algo__advantage": "gae", "critic__warmup_steps": 9, "train__steps": 9}),
    ("diagnose.alarms is false", {"diagnose__rollback": True, "diagnose__alarms": False}),
    ("need different names", {"reward__functions": ("a.py:f", "b.py:f")}),
    ("need different names", {"reward__functions": ("a.py:env",)}),
    ("samples until enough groups pass a threshold", {"algo__filter": "quarter", "algo__filter_refill": 1}),
    ("adapts algo.kl_coef, which is 0", {"algo__kl_target": 0.1}),
    ("has an expected gradient of 0", {"algo__kl_coef": 0.1, "algo__kl_estimator": "k1"}),
    ("which is always 1 with algo.old_logprobs sampler", {"algo__correction": "truncated"}),
    ("which is always 1 with algo.old_logprobs sampler", {"algo__reject": "token"}),
    ("which is always 1 with algo.old_logprobs sampler", {"algo__reject_veto": 1e-4}),
    ("everything would be rejected", {"algo__reject_low": 3.0}),
    (
        "does not see ratios below 1",
        {"algo__reject": "sequence", "algo__reject_pool": "max", "algo__old_logprobs": "learner"},
    ),
    ("clip_cov would select no token", {"algo__loss": "clip_cov", "algo__cov_low": 5.0}),
    ("kl_cov would select no token", {"algo__loss": "kl_cov", "algo__cov_share": 0.0}),
    ("at most 1, which disables the bound", {"algo__clip_low": 1.5, "algo__loss": "clip_cov"}),
    ("has no critic", {"algo__gamma_turn": "adaptive"}),
    ("does not discount by turn", {"algo__gamma_turn": "adaptive", "algo__advantage": "gae"}),
    ("already normalise", {"reward__combine": "each", "algo__normalise": "mean"}),
    ("needs one number for the environment's reward", {"reward__weights": (1.0, 2.0)}),
    ("missing.py does not exist", {"reward__functions": ("missing.py:brief",)}),
    ('unknown part "thinking": did you mean "think"', {"algo__loss_tokens": "thinking"}),
]


@pytest.mark.parametrize(("reason", "settings"), IMPOSSIBLE)
def test_conflicting_settings_are_refused_with_the_reason(reason: str, settings: dict[str, Any]) -> None:
    settings = {"train__mini_batch": 4, **settings}
    assert reason in refused(**settings)


def test_valid_settings_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    for settings in (
        {"algo.clip_low": 1.0, "train.betas": (0.0, 0.999)},
        {"algo.clip_low": 1.5, "algo.loss": "geo_mean"},  # there a bound of the log-ratio
        {"algo.kl_coef": 0.1, "algo.kl_in": "reward", "algo.kl_estimator": "k3"},
        {"train.epochs": 2},
        {"model.name": "Qwen/Qwen2.5-0.5B-Instruct", "model.device": "cpu"},
        {"model.name": str(tmp_path)},
        {"model.name": f"{tmp_path}/model.gguf", "model.chat_template": f"{tmp_path}/model.gguf"},
    ):
        check(build({}, list(settings.items())), "frozen_lake")


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ('Unknown model "tny": did you mean "tiny"?', {"model__name": "tny"}),
        ('Unknown model ""', {"model__name": ""}),
        ('Unknown model "./nowhere"', {"model__name": "./nowhere"}),
        ('Unknown model "runs/a/checkpoints/best"', {"model__name": "runs/a/checkpoints/best"}),
        ('Unknown model "models/a.gguf"', {"model__name": "models/a.gguf"}),
        ('Unknown model.device "gpu"', {"model__device": "gpu"}),
        ("model.chat_template: nowhere.jinja does not exist", {"model__chat_template": "nowhere.jinja"}),
    ],
)
def test_impossible_model_is_refused_before_loading(message: str, settings: dict[str, Any]) -> None:
    assert refused(**settings).startswith(message)


def test_same_state_groups_need_an_environment_that_names_its_states(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import turnwise as tw\nclass Plain(tw.TextEnv):\n    def reset(self, rng): return ''\n"
        "    def step(self, action): return tw.won('')\n"
    )
    assert "no state_key()" in refused(env=f"{tmp_path}/plain.py:Plain", algo__advantage="gigpo")
    check(build({}, [("algo.advantage", "gigpo")]), "frozen_lake")


UNREAD: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("algo.gamma", 0.9, {"algo.advantage": "grpo"}, {"algo.advantage": "gae"}),
    ("algo.dual_clip", 2.0, {"algo.loss": "reinforce"}, {"algo.loss": "gspo"}),
    (
        "algo.correction_high",
        3.0,
        {"algo.correction": "two_sided"},
        {"algo.correction": "masked", "algo.old_logprobs": "learner"},
    ),
    (
        "algo.correction_pool",
        "mean",
        {"algo.correction": "masked", "algo.old_logprobs": "learner"},
        {"algo.correction": "masked", "algo.old_logprobs": "learner", "algo.correction_level": "turn"},
    ),
    (
        "algo.correction_pool",
        "mean",
        {
            "algo.correction": "masked",
            "algo.old_logprobs": "learner",
            "algo.correction_level": "turn",
            "algo.correction_statistic": "k3",
        },
        {"algo.correction": "masked", "algo.old_logprobs": "learner", "algo.correction_level": "turn"},
    ),
    (
        "algo.correction_normalise",
        True,
        {"algo.correction": "masked", "algo.old_logprobs": "learner"},
        {"algo.correction": "decoupled", "algo.old_logprobs": "learner"},
    ),
    ("algo.reject_high", 3.0, {}, {"algo.reject": "token", "algo.old_logprobs": "learner"}),
    (
        "algo.reject_pool",
        "sum",
        {"algo.reject": "token", "algo.old_logprobs": "learner"},
        {"algo.reject": "turn", "algo.old_logprobs": "learner"},
    ),
    ("algo.cov_low", 0.5, {"algo.loss": "kl_cov"}, {"algo.loss": "clip_cov"}),
    ("algo.vespo_k_positive", 1.0, {}, {"algo.loss": "vespo"}),
    ("algo.whiten_over", "token", {"algo.advantage": "gae"}, {"algo.advantage": "turn_gae"}),
    (
        "algo.whiten_over",
        "token",
        {"algo.advantage": "step_gae", "algo.whiten": False},
        {"algo.advantage": "step_gae"},
    ),
    ("algo.filter_value", 0.5, {"algo.filter": "quarter"}, {"algo.filter": "top_p"}),
    ("algo.filter_by", "reward", {}, {"algo.filter": "quarter"}),
    ("algo.filter_scale", "root", {}, {"algo.filter": "quarter"}),
    ("algo.value_clip", 0.1, {}, {"algo.advantage": "gae"}),
    ("algo.normalise_over", "batch", {}, {"algo.normalise": "mean"}),
    ("algo.placement", "trajectory", {"algo.normalise": "mean"}, {}),
    ("algo.placement", "trajectory", {"reward.combine": "process"}, {}),
    ("algo.kl_estimator", "k2", {}, {"algo.kl_coef": 0.1}),
    ("algo.kl_horizon", 5.0, {"algo.kl_coef": 0.1}, {"algo.kl_coef": 0.1, "algo.kl_target": 0.1}),
    ("algo.constant_length", 10, {}, {"algo.aggregation": "seq-mean-token-sum-norm"}),
    ("critic.kind", "head", {"algo.advantage": "rloo"}, {"algo.advantage": "bi_level_gae"}),
    ("critic.warmup_steps", 1, {}, {"algo.advantage": "gae"}),
    ("model.warmup_steps", 5, {"model.name": "smollm2-135m"}, {}),
    ("train.muon_learning_rate", 0.1, {}, {"train.optimizer": "muon"}),
    ("train.final_share", 0.1, {}, {"train.schedule": "cosine"}),
    ("diagnose.max_rollbacks", 2, {}, {"diagnose.rollback": True}),
    ("diagnose.information_prompts", 4, {}, {"diagnose.information_every": 5}),
    ("diagnose.gradient_buckets", 3, {}, {"diagnose.gradients_every": 5}),
    ("eval.top_p", 0.9, {"eval.temperature": 0.0}, {}),
    ("checkpoint.keep_best", True, {}, {"eval.every": 2}),
]


@pytest.mark.parametrize(("key", "value", "unread", "read"), UNREAD, ids=lambda value: str(value))
def test_setting_without_effect_is_refused(key: str, value: Any, unread: dict[str, Any], read: dict[str, Any]) -> None:
    settings = {name.replace(".", "__"): each for name, each in [*unread.items(), (key, value)]}
    assert refused(override_keys=(key,), **settings).startswith(f"{key} has no effect with ")
    assert "has no effect" in refused(override_keys=(key.replace("_", "-"),), **settings)
    check(build({}, [*unread.items(), (key, value)]), "frozen_lake")  # from a recipe it may stand there unread
    check(build({}, [*read.items(), (key, value)]), "frozen_lake", [key])


def test_setting_without_effect_error_names_the_choices() -> None:
    assert refused(override_keys=("train.final_share",), train__final_share=0.1) == (
        "train.final_share has no effect with train.schedule constant. Leave it out, or choose linear, cosine."
    )
    assert refused(override_keys=("diagnose.max_rollbacks",)) == (
        "diagnose.max_rollbacks has no effect with diagnose.rollback false. "
        "Leave it out, or set diagnose.rollback to true."
    )


def test_settings_named_by_switches_are_in_the_schema() -> None:
    internal = {"algo.epsilon", "algo.filter_epsilon"}
    named = {key for keys, switch in SWITCHES for key in (*keys, switch.key)}
    assert named - internal <= all_keys().keys()


def test_every_algorithm_passes_the_checks() -> None:
    needs = {"algo.old_logprobs": "learner"}
    for key, names in (("advantage", ADVANTAGES), ("loss", LOSSES), ("correction", CORRECTIONS), ("filter", FILTERS)):
        for name in names:
            count = [("algo.filter_value", 2)] if name == "top_count" else []
            check(build({}, [(f"algo.{key}", name), *needs.items(), *count, *PAIRS.get(name, [])]), "frozen_lake")
