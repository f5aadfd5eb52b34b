"""Published methods as `--algo.preset`, and settings that do not go together."""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.filters import FILTERS
from turnwise.algos.losses import LOSSES, Gspo, Ppo
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.config.keys import all_keys
from turnwise.config.load import build, read_settings, to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec
from turnwise.recipes.presets import find_method, method_names, method_path
from turnwise.run.check_settings import sections_of
from turnwise.run.configure import configure
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.validate import CheckedRun, check_settings, check_states

PAIRS = {"dpo": [("algo.advantage", "preference"), ("algo.aggregation", "seq-mean-token-sum")]}
"""Settings that a loss of pairs needs."""
OFFLINE = ("archer_offline", "awac", "bc", "filtered_bc")
"""Presets that train on stored episodes."""


def check(config: Config, env: str, override_keys: Iterable[str] = ()) -> None:
    check_settings(config, override_keys)
    spec = load_spec(env)
    run = CheckedRun(config=config, environments=EnvironmentMix(specs={spec.name: spec}, entries=()))
    check_states(config.algo, run)


def refused(override_keys: tuple[str, ...] = (), env: str = "frozen_lake", **settings: Any) -> str:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    with pytest.raises(UserError) as error:
        check(build({}, list(named.items()), load_code=True), env, override_keys)
    return str(error.value)


def test_method_presets_fit_every_recipe() -> None:
    wanted = {"starpo_s", "starpo_ppo", "starpo_grpo", "dapo", "dr_grpo", "gspo", "reinforce_pp", "bi_level"}
    assert wanted <= set(method_names())
    for name in method_names():
        assert find_method(name).summary
        for recipe in ("bandit", "frozen_lake", "sokoban", "sokoban_smollm2"):
            data = [("data.sources", ["runs/old"])] if name in OFFLINE else []
            config = configure(recipe, overrides=[("algo.preset", name), *data])
            check(config, config.env.kind)
            assert config.algo.preset == name


def test_method_presets_have_the_dual_clip_of_their_source() -> None:
    """A preset that leaves it out would get the default of 3, which most papers do not have."""
    algos = {name: read_settings(method_path(name))["algo"] for name in method_names()}
    has_it = {name for name, algo in algos.items() if "dual_clip" in LOSSES[algo["loss"]["kind"]].model_fields}
    assert has_it == {name for name, algo in algos.items() if "dual_clip" in algo["loss"]}
    losses = {name: configure("bandit", overrides=[("algo.preset", name)]).algo.loss for name in has_it}
    assert all(isinstance(loss, Ppo | Gspo) for loss in losses.values())
    without = {name for name, loss in losses.items() if loss.model_dump()["dual_clip"] is None}
    assert without == {"dapo", "dr_grpo", "gspo", "reinforce_pp"}


def test_method_preset_overrides_the_recipe_but_not_the_user() -> None:
    plain, method = configure("frozen_lake"), configure("frozen_lake", overrides=[("algo.preset", "starpo_s")])
    assert (plain.algo.advantage.kind, method.algo.advantage.kind) == ("bi_level_gae", "gae")
    assert method.algo.filter.kind == "quarter" and method.train == plain.train
    typed = configure("frozen_lake", overrides=[("algo.preset", "starpo_s"), ("algo.filter", "none")])
    assert typed.algo.filter.kind == "none" and typed.algo.advantage.kind == "gae"


def test_run_with_a_method_preset_is_reproduced(tmp_path: Path) -> None:
    config = configure("frozen_lake", overrides=[("algo.preset", "starpo_s"), ("algo.loss.clip_high", 0.5)])
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(to_toml(config), encoding="utf-8")
    assert configure(start_from=str(tmp_path / "run")).algo == config.algo


def test_unknown_method_suggests_the_closest() -> None:
    with pytest.raises(UserError, match=r'Unknown algo\.preset "starpos": did you mean "starpo_s"'):
        configure("frozen_lake", overrides=[("algo.preset", "starpos")])


CHOICES = ["estimator", "advantage", "loss", "correction", "rejection", "normalise", "filter", "aggregation"]


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_algorithm_name_is_refused(name: str) -> None:
    assert refused(**{f"algo__{name}": "nonsense"}).startswith(f'Unknown algo.{name} "nonsense"')


def test_unknown_score_of_a_filter_is_refused() -> None:
    error = refused(algo__filter="quarter", algo__filter__by="nonsense")
    assert error.startswith("algo.filter.by = nonsense: must be one of reward_std, reward, ")


IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("compares the members of a group", {"algo__advantage": "opo", "rollout__group_size": 1, "rollout__groups": 64}),
    (
        "algo.filter.by reward_std compares",
        {"algo__advantage": "gae", "algo__filter": "quarter", "rollout__group_size": 1},
    ),
    ("reward.combine each compares", {"algo__advantage": "gae", "reward__combine": "each", "rollout__group_size": 1}),
    ("every return 0", {"algo__advantage": "gae", "algo__normalise": "mean", "rollout__group_size": 1}),
    ("no token would be trained", {"algo__correction": "truncated", "algo__correction__bounds": (3.0, 2.0)}),
    ("at most 1, which disables the bound", {"algo__loss__clip_low": 1.5}),
    ("at most 1, which disables the bound", {"algo__loss__clip_low": 1.5, "algo__loss": "cispo"}),
    ("Set train.epochs to 1", {"algo__loss": "reinforce", "train__epochs": 2}),
    ("the policy would never be trained", {"algo__advantage": "gae", "critic__warmup_steps": 9, "train__steps": 9}),
    (
        "with algo.filter quarter. Remove it, or choose absolute.",
        {"algo__filter": "quarter", "algo__filter__refill": 1},
    ),
    ("adapts algo.kl_coef, which is 0", {"algo__kl_target": 0.1}),
    ("adapts algo.entropy_coef, which is 0", {"algo__entropy_target": 0.1, "algo__entropy_coef": 0.0}),
    ("has an expected gradient of 0", {"algo__kl_coef": 0.1, "algo__kl_estimator": "k1"}),
    ("algo.old_logprobs sampler makes it always 1", {"algo__correction": "truncated"}),
    ("algo.old_logprobs sampler makes it always 1", {"algo__rejection": "token"}),
    ("algo.old_logprobs sampler makes it always 1", {"algo__rejection": "veto"}),
    ("Choose algo.rejection veto, which rejects", {"algo__rejection__veto": 1e-4}),
    ("everything would be rejected", {"algo__rejection": "token", "algo__rejection__bounds": (3.0, 2.0)}),
    (
        "does not see ratios below 1",
        {"algo__rejection": "sequence", "algo__rejection__pool": "max", "algo__old_logprobs": "learner"},
    ),
    ("algo.loss.share = 0.0: must be a number above 0", {"algo__loss": "kl_cov", "algo__loss__share": 0.0}),
    ("at most 1, which disables the bound", {"algo__loss__clip_low": 1.5, "algo__loss": "clip_cov"}),
    ("with algo.advantage grpo. Remove it, or choose gigpo, turn_gae", {"algo__advantage__gamma_turn": "adaptive"}),
    (
        "gamma_turn = adaptive: must be a number",
        {"algo__advantage__gamma_turn": "adaptive", "algo__advantage": "gigpo"},
    ),
    (
        "with algo.advantage gae. Remove it, or choose",
        {"algo__advantage__gamma_turn": 0.9, "algo__advantage": "gae"},
    ),
    ("trains an adapter, and lora.rank is 0", {"model__name": "tiny_vlm", "model__train_vision": "only"}),
    ("already normalises", {"reward__combine": "each", "algo__normalise": "mean"}),
    ("needs one number for the environment's reward", {"reward__weights": (1.0, 2.0)}),
    ("missing.py does not exist", {"reward__functions": ("missing.py:brief",)}),
    ('unknown part "thinking": did you mean "think"', {"algo__loss_tokens": "thinking"}),
    ('unknown part "thinking": did you mean "think"', {"algo__loss_tokens": "thinking"}),
]


@pytest.mark.parametrize(("reason", "settings"), IMPOSSIBLE)
def test_conflicting_settings_are_refused_with_the_reason(reason: str, settings: dict[str, Any]) -> None:
    settings = {"train__mini_batch": 4, **settings}
    assert reason in refused(**settings)


@pytest.mark.parametrize("names", [("a.py:f", "b.py:f"), ("a.py:env",)])
def test_reward_names_are_distinct(names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in names:
        file, _, function = name.partition(":")
        Path(file).write_text(f"def {function}(trajectory):\n    return 0.0\n")
    assert "need different names" in refused(reward__functions=names, train__mini_batch=4)


def test_valid_settings_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + bytes(100))
    for settings in (
        {"algo.loss.clip_low": 1.0},
        {"algo.loss.clip_low": 1.5, "algo.loss": "geo_mean"},  # there a bound of the log-ratio
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
        ("model.name: ./nowhere does not exist", {"model__name": "./nowhere"}),
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


LEARNER = {"algo.old_logprobs": "learner"}
ARCHER = {"algo.estimator": "archer", "critic": "utterances"}
OTHER_KIND: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("algo.advantage.gamma", 0.9, {"algo.advantage": "grpo"}, {"algo.advantage": "gae"}),
    ("algo.loss.dual_clip", 2.0, {"algo.loss": "reinforce"}, {"algo.loss": "gspo"}),
    ("algo.correction.bounds", [0.0, 3.0], {"algo.correction": "two_sided"}, {"algo.correction": "masked", **LEARNER}),
    ("algo.correction.normalise", True, {"algo.correction": "masked"}, {"algo.correction": "decoupled", **LEARNER}),
    ("algo.rejection.bounds", [0.0, 3.0], {}, {"algo.rejection": "token", **LEARNER}),
    ("algo.rejection.pool", "sum", {"algo.rejection": "token"}, {"algo.rejection": "turn", **LEARNER}),
    ("algo.loss.share", 0.5, {}, {"algo.loss": "kl_cov"}),
    ("algo.filter.value", 0.5, {"algo.filter": "quarter"}, {"algo.filter": "top_p"}),
    ("algo.filter.by", "reward", {}, {"algo.filter": "quarter"}),
    ("algo.filter.scale", "root", {}, {"algo.filter": "quarter"}),
    ("algo.normalise.over", "batch", {}, {"algo.normalise": "mean"}),
    ("algo.aggregation.constant_length", 10, {}, {"algo.aggregation": "seq-mean-token-sum-norm"}),
    ("algo.estimator.replay", 10, {"algo.estimator": "awac"}, ARCHER),
    ("algo.estimator.states", 99, {"algo.estimator": "archer_offline"}, ARCHER),
    ("critic.updates", 2, {"critic": "head"}, ARCHER),
    ("critic.value_clip", 0.1, ARCHER, {"algo.advantage": "gae", "critic": "head"}),
    ("train.optimizer.learning_rate", 0.1, {}, {"train.optimizer": "muon"}),
    ("train.schedule.final_share", 0.1, {}, {"train.schedule": "cosine"}),
    ("engine.weights_folder", "weights", {}, {"engine": "vllm", "engine.urls": ["http://localhost:1"]}),
]
"""(setting, value, settings that choose an alternative without it, settings that choose one with it)"""


@pytest.mark.parametrize(("key", "value", "without", "having"), OTHER_KIND, ids=lambda value: str(value))
def test_setting_of_another_kind_is_refused(
    key: str, value: Any, without: dict[str, Any], having: dict[str, Any]
) -> None:
    choice = key.rpartition(".")[0]
    with pytest.raises(UserError, match=f"^{key} has no effect with {choice} ") as error:
        build({}, [(key, value), *without.items()])
    assert having[choice] in str(error.value).partition("or choose ")[2].rstrip(".").split(", ")
    with pytest.raises(UserError, match=f"^{key} has no effect with "):
        build({}, [*without.items(), (key.replace("_", "-"), value)])
    check(build({}, [*having.items(), (key, value)]), "frozen_lake", [key])


STORED = {"data.sources": ["runs/old"]}
TRUNCATED = {"algo.correction": "truncated", **LEARNER}
UNREAD: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("algo.advantage", "gae", ARCHER, {}),
    ("algo.advantage.by_std", False, {"algo.advantage": "pass_at_k", **ARCHER}, {"algo.advantage": "pass_at_k"}),
    ("algo.filter", "quarter", ARCHER, {}),
    ("algo.filter.by", "reward", {"algo.filter": "quarter", **ARCHER}, {"algo.filter": "quarter"}),
    ("algo.action_entropy_target", 0.6, ARCHER, {}),
    ("algo.loss_tokens", "answer", ARCHER, {}),
    ("algo.advantage_tokens", "answer", ARCHER, {}),
    ("algo.placement", "trajectory", ARCHER, {}),
    ("algo.placement", "trajectory", {"algo.normalise": "mean"}, {}),
    ("algo.placement", "trajectory", {"reward.combine": "process"}, {}),
    ("algo.kl_estimator", "k2", {}, {"algo.kl_coef": 0.1}),
    ("critic.value_clip", 0.1, {}, {"algo.advantage": "gae"}),
    ("critic", "head", {"algo.advantage": "rloo"}, {"algo.advantage": "bi_level_gae"}),
    ("critic.warmup_steps", 1, {}, {"algo.advantage": "gae"}),
    ("critic.learning_rate", 0.1, {}, ARCHER),
    ("model.warmup_steps", 5, {"model.name": "smollm2-135m"}, {}),
    ("sft.count", 5, {}, {}),
    ("agent.success_at", 0.5, {}, {}),
    ("data.keep", "succeeded", {}, STORED),
    ("rollout.temperature", 0.5, STORED, {}),
    ("reward.format_penalty", 0.5, STORED, {}),
    ("reward.weights", (2.0,), STORED, {}),
    ("algo.filter.scale", "root", {"algo.filter": "quarter", **STORED}, {"algo.filter": "quarter"}),
    ("selfplay.random_moves", 2, {}, {}),
    ("lora.alpha", 2.0, {}, {"lora.rank": 2}),
    ("eval.top_p", 0.9, {"eval.temperature": 0.0}, {}),
    ("record.pictures_every", 2, {"record.trajectories": 0}, {}),
]
"""(setting, value, settings with which it has no effect, settings with which it has one; equal ones are not tried)"""


@pytest.mark.parametrize(("key", "value", "unread", "read"), UNREAD, ids=lambda value: str(value))
def test_setting_without_effect_is_refused(key: str, value: Any, unread: dict[str, Any], read: dict[str, Any]) -> None:
    settings = {name.replace(".", "__"): each for name, each in [*unread.items(), (key, value)]}
    assert refused(override_keys=(key,), **settings).startswith(f"{key} has no effect with ")
    assert "has no effect" in refused(override_keys=(key.replace("_", "-"),), **settings)
    check(build({}, [*unread.items(), (key, value)]), "frozen_lake")  # from a recipe it may stand there unread
    if read != unread:
        check(build({}, [*read.items(), (key, value)]), "frozen_lake", [key])


def test_setting_without_effect_error_names_the_choices() -> None:
    assert refused(train__schedule__final_share=0.1) == (
        "train.schedule.final_share has no effect with train.schedule constant. Remove it, or choose linear, cosine."
    )
    assert refused(override_keys=("lora.alpha",)) == (
        "lora.alpha has no effect with lora.rank 0. Remove it, or raise lora.rank."
    )


def test_settings_named_by_sections_are_in_the_schema() -> None:
    """`Section.uses` and the causes of `Section.idle` name settings as text."""
    config = build({}, [("algo.advantage", "step_gae"), ("algo.advantage.whiten", False), *TRUNCATED.items()])
    for path, section in sections_of(config):
        assert section.uses.keys() | section.idle().keys() <= type(section).model_fields.keys()
        assert {cause.partition(" ")[0] for cause, _ in section.idle().values()} <= all_keys().keys(), path


def test_every_algorithm_passes_the_checks() -> None:
    needs = {"algo.old_logprobs": "learner"}
    for key, names in (("advantage", ADVANTAGES), ("loss", LOSSES), ("correction", CORRECTIONS), ("filter", FILTERS)):
        for name in names:
            count = [("algo.filter.count", 2)] if name == "top_count" else []
            count += [("data.sources", ["runs/old"])] if name == "clone" else []
            check(build({}, [(f"algo.{key}", name), *needs.items(), *count, *PAIRS.get(name, [])]), "frozen_lake")
