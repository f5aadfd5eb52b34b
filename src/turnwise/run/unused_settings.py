"""Settings that have an effect only with certain values of others.

An override without effect is an error. A recipe may contain such settings, because it serves several methods.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.filters import FILTERS
from turnwise.algos.losses import LOSSES
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.algos.rewards import NORMALISERS
from turnwise.config.agent import AGENT_ENV
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.engine.engines import ENGINES
from turnwise.models.loading.catalogue import SMOLLM2_VISION, WARMED_UP
from turnwise.user_code.references import is_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Setting that decides whether others have an effect."""

    key: str
    enables: Callable[[Any], bool]
    """Return True for values with which the others have an effect."""
    fix: str


def check_setting_is_used(config: Config, key: str) -> None:
    """Raise UserError if the setting has no effect with this configuration."""
    name = key.replace("-", "_")
    for keys, switch in SWITCHES:
        if name not in keys:
            continue
        if switch.key == "algo.advantage" and config.algo.method != "on_policy":
            if name in _archer_settings(config):
                continue
            switch = ON_POLICY
        if not switch.enables(value := _value(config, switch.key)):
            shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else value
            raise UserError(f"{name} has no effect with {switch.key} {shown}. Leave it out, or {switch.fix}.")


def _archer_settings(config: Config) -> tuple[str, ...]:
    """Return the settings of advantages and critics that ArCHer uses, which replaces algo.advantage."""
    used: tuple[str, ...] = ("algo.gamma_turn", "algo.whiten", "critic.learning_rate", "critic.warmup_steps")
    if config.algo.method == "archer" and config.archer.token_baseline:
        used += ("critic.kind", "algo.value_clip", "algo.value_coef")
    return used


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _one_of(key: str, names: Collection[str]) -> Switch:
    return Switch(
        key=key, enables=lambda value: value in names or is_reference(value), fix=f"choose {', '.join(names)}"
    )


def _on(key: str, fix: str) -> Switch:
    return Switch(key=key, enables=bool, fix=fix.format(key=key))


def _off(key: str, fix: str) -> Switch:
    return Switch(key=key, enables=lambda value: not value, fix=fix)


def _algorithm_switches() -> Iterator[tuple[tuple[str, ...], Switch]]:
    """Yield the settings that advantages, losses, corrections and filters declare to use."""
    tables: dict[str, Mapping[str, Any]] = {
        "advantage": ADVANTAGES,
        "loss": LOSSES,
        "correction": CORRECTIONS,
        "filter": FILTERS,
    }
    for table, options in tables.items():
        for field in sorted({field for option in options.values() for field in option.reads}):
            users = [name for name, option in options.items() if field in option.reads]
            yield (f"algo.{field}",), _one_of(f"algo.{table}", users)


def _engine_switches() -> Iterator[tuple[tuple[str, ...], Switch]]:
    """Yield the settings that engines declare to read."""
    for key in sorted({key for kind in ENGINES.values() for key in kind.reads}):
        yield (key,), _one_of("engine.kind", [name for name, kind in ENGINES.items() if key in kind.reads])


ON_POLICY = _one_of("algo.method", ["on_policy"])
WITH_CRITIC = [name for name, advantage in ADVANTAGES.items() if advantage.needs_critic]

SWITCHES: tuple[tuple[tuple[str, ...], Switch], ...] = (
    *_algorithm_switches(),
    (
        ("critic.kind", "critic.learning_rate", "critic.warmup_steps", "algo.value_clip", "algo.value_coef"),
        _one_of("algo.advantage", WITH_CRITIC),
    ),
    (("algo.advantage", "algo.filter", "algo.loss_tokens", "algo.advantage_tokens", "algo.placement"), ON_POLICY),
    (
        ("archer.critic_updates", "archer.critic_batch", "archer.target_rate", "archer.encoder"),
        _one_of("algo.method", ["archer", "archer_offline", "awac"]),
    ),
    (("archer.replay", "archer.token_baseline", "archer.correction"), _one_of("algo.method", ["archer"])),
    (("archer.states",), _one_of("algo.method", ["archer", "awac"])),
    (("archer.expectile",), _one_of("algo.method", ["archer_offline"])),
    (("algo.normalise_over",), _one_of("algo.normalise", [name for name in NORMALISERS if name != "identity"])),
    (("algo.placement",), _one_of("algo.normalise", ["identity"])),
    (("algo.placement",), _one_of("reward.combine", ["sum"])),
    (("algo.filter_by", "algo.filter_scale"), _one_of("algo.filter", [name for name in FILTERS if name != "none"])),
    (("algo.correction_pool", "algo.correction_token_weights"), _one_of("algo.correction_level", ["turn", "sequence"])),
    (("algo.correction_pool",), _one_of("algo.correction_statistic", ["ratio"])),
    (("algo.whiten_over",), _on("algo.whiten", "set {key} to true")),
    (
        ("algo.reject_statistic", "algo.reject_pool", "algo.reject_low", "algo.reject_high"),
        _one_of("algo.reject", ["token", "turn", "sequence"]),
    ),
    (("algo.reject_pool",), _one_of("algo.reject", ["turn", "sequence"])),
    (("algo.kl_estimator", "algo.kl_in", "algo.kl_target", "algo.kl_horizon"), _on("algo.kl_coef", "raise {key}")),
    (("algo.kl_horizon",), _on("algo.kl_target", "set {key}")),
    (("algo.constant_length",), _one_of("algo.aggregation", ["seq-mean-token-sum-norm"])),
    (("model.warmup_steps", "model.warmup_seed"), _one_of("model.name", [*WARMED_UP, SMOLLM2_VISION])),
    (
        ("sft.count", "sft.epochs", "sft.batch", "sft.learning_rate", "sft.think"),
        _on("sft.demos", "run `turnwise sft`"),
    ),
    (
        (
            *("agent.tasks", "agent.reward", "agent.success_at", "agent.timeout_s", "agent.on_timeout"),
            *("agent.on_crash", "agent.pass_env", "agent.random_reply"),
        ),
        _one_of("env.kind", [AGENT_ENV]),
    ),
    (("agent.pass_env",), _on("agent.command", "set {key}")),
    (("agent.random_reply",), _one_of("model.name", WARMED_UP)),
    (("agent.random_reply",), _on("model.warmup_steps", "raise {key}")),
    (("data.pair_gap",), _one_of("algo.advantage", ["preference"])),
    (
        ("data.capacity", "data.episodes", "data.keep", "data.min_reward", "data.pair_gap"),
        _on("data.sources", "name stored episodes"),
    ),
    (
        ("rollout.temperature", "rollout.trial_s", "reward.format_penalty", "reward.weights", "algo.filter_scale"),
        _off("data.sources", "play the environment: name no stored episodes"),
    ),
    (("curriculum.floor", "curriculum.memory"), _on("curriculum.pool", "raise {key}")),
    (
        ("selfplay.random_moves", "selfplay.snapshot_every", "selfplay.snapshots", "selfplay.ladder_games"),
        _one_of("selfplay.opponent", ["self", "past"]),
    ),
    (("lora.alpha", "lora.targets", "lora.part"), _on("lora.rank", "raise {key}")),
    *_engine_switches(),
    (("engine.tensor_parallel", "engine.gpu_memory_utilization"), _off("engine.urls", "start the servers with it")),
    (("train.muon_learning_rate",), _one_of("train.optimizer", ["muon"])),
    (("train.final_share",), _one_of("train.schedule", ["linear", "cosine"])),
    (("diagnose.max_rollbacks",), _on("diagnose.rollback", "set {key} to true")),
    (("diagnose.information_prompts",), _on("diagnose.information_every", "raise {key}")),
    (("diagnose.gradient_buckets",), _on("diagnose.gradients_every", "raise {key}")),
    (("eval.top_p", "eval.top_k"), _on("eval.temperature", "raise {key}, because 0 is greedy")),
    (("record.pictures_every", "record.pictures_per_step"), _on("record.trajectories", "raise {key}")),
    (("record.pictures_per_step",), _on("record.pictures_every", "raise {key}")),
    (("checkpoint.keep_best",), _on("eval.every", "raise {key}")),
)
"""(settings, switch). A setting has an effect only if all its switches enable it."""
