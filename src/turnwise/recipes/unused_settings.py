"""Settings that only some choices read: one that was typed and has no effect is a mistake, not a wish.

A recipe may hold such settings: it is written for more than one method.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.filters import FILTERS
from turnwise.algos.losses import LOSSES
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.algos.rewards import NORMALISERS
from turnwise.config.schema import Config
from turnwise.core.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The setting that decides whether others are read."""

    key: str
    reads: Callable[[Any], bool]
    """Whether they are, by its value."""
    mend: str


def check_setting_is_used(config: Config, key: str) -> None:
    """Refuses a key that a person typed if the chosen parts do not read it."""
    name = key.replace("-", "_")
    for keys, switch in SWITCHES:
        if name in keys and not switch.reads(value := _value(config, switch.key)):
            shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else value
            raise UserError(f"{name} has no effect with {switch.key} {shown}: leave it out, or {switch.mend}")


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _one_of(key: str, names: Collection[str]) -> Switch:
    return Switch(key=key, reads=lambda value: value in names, mend=f"choose {', '.join(names)}")


def _on(key: str, mend: str) -> Switch:
    return Switch(key=key, reads=bool, mend=mend)


def _by_parts() -> Iterator[tuple[tuple[str, ...], Switch]]:
    """What estimators, losses, corrections and filters say themselves."""
    parts: dict[str, Mapping[str, Any]] = {
        "advantage": ADVANTAGES,
        "loss": LOSSES,
        "correction": CORRECTIONS,
        "filter": FILTERS,
    }
    for part, options in parts.items():
        for field in sorted({field for option in options.values() for field in option.reads}):
            readers = [name for name, option in options.items() if field in option.reads]
            yield (f"algo.{field}",), _one_of(f"algo.{part}", readers)


WITH_CRITIC = [name for name, advantage in ADVANTAGES.items() if advantage.needs_critic]

SWITCHES: tuple[tuple[tuple[str, ...], Switch], ...] = (
    *_by_parts(),
    (
        ("critic.kind", "critic.learning_rate", "critic.warmup_steps", "algo.value_clip", "algo.value_coef"),
        _one_of("algo.advantage", WITH_CRITIC),
    ),
    (("algo.normalise_over",), _one_of("algo.normalise", [name for name in NORMALISERS if name != "identity"])),
    (("algo.placement",), _one_of("algo.normalise", ["identity"])),
    (("algo.placement",), _one_of("reward.combine", ["sum"])),
    (("algo.filter_by", "algo.filter_scale"), _one_of("algo.filter", [name for name in FILTERS if name != "none"])),
    (("algo.correction_pool", "algo.correction_token_weights"), _one_of("algo.correction_level", ["turn", "sequence"])),
    (("algo.correction_pool",), _one_of("algo.correction_statistic", ["ratio"])),
    (("algo.whiten_over",), _on("algo.whiten", "turn that on")),
    (
        ("algo.reject_statistic", "algo.reject_pool", "algo.reject_low", "algo.reject_high"),
        _one_of("algo.reject", ["token", "turn", "sequence"]),
    ),
    (("algo.reject_pool",), _one_of("algo.reject", ["turn", "sequence"])),
    (("algo.kl_estimator", "algo.kl_in", "algo.kl_target", "algo.kl_horizon"), _on("algo.kl_coef", "raise that")),
    (("algo.kl_horizon",), _on("algo.kl_target", "give a target")),
    (("algo.constant_length",), _one_of("algo.aggregation", ["seq-mean-token-sum-norm"])),
    (("model.warmup_steps", "model.warmup_seed"), _one_of("model.name", ["tiny"])),
    (
        ("sft.count", "sft.epochs", "sft.batch", "sft.learning_rate", "sft.think"),
        _on("sft.demos", "imitate with `turnwise sft`"),
    ),
    (("curriculum.floor", "curriculum.memory"), _on("curriculum.pool", "raise that")),
    (
        ("selfplay.random_moves", "selfplay.snapshot_every", "selfplay.snapshots", "selfplay.ladder_games"),
        _one_of("selfplay.opponent", ["self", "past"]),
    ),
    (("lora.alpha", "lora.targets"), _on("lora.rank", "raise that")),
    (("train.muon_learning_rate",), _one_of("train.optimizer", ["muon"])),
    (("train.final_share",), _one_of("train.schedule", ["linear", "cosine"])),
    (("diagnose.max_rollbacks",), _on("diagnose.rollback", "turn that on")),
    (("diagnose.information_prompts",), _on("diagnose.information_every", "raise that")),
    (("diagnose.gradient_buckets",), _on("diagnose.gradients_every", "raise that")),
    (("eval.top_p", "eval.top_k"), _on("eval.temperature", "raise that: it is greedy")),
    (("record.pictures_every", "record.pictures_per_step"), _on("record.trajectories", "raise that")),
    (("record.pictures_per_step",), _on("record.pictures_every", "raise that")),
    (("checkpoint.keep_best",), _on("eval.every", "raise that")),
)
"""(settings, what decides whether they are read); all that name a setting must read it."""
