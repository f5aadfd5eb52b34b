"""Names that settings had in earlier versions, for error messages and the configurations of older runs."""

ADVANTAGE = (
    *("gamma", "lam", "gamma_turn", "lam_turn", "whiten", "whiten_over", "by_std"),
    *("episode_weight", "step_weight", "outcome_weight", "epsilon"),
)
LOSS = {name: name for name in ("clip_low", "clip_high", "dual_clip", "tau_positive", "tau_negative")} | {
    "ratio_level": "level",
    "cov_share": "share",
    "cov_low": "low",
    "cov_high": "high",
    "cov_kl_coef": "coef",
    "vespo_k_positive": "k_positive",
    "vespo_lambda_positive": "lambda_positive",
    "vespo_k_negative": "k_negative",
    "vespo_lambda_negative": "lambda_negative",
    "awr_beta": "beta",
    "awr_max_weight": "max_weight",
    "dpo_beta": "beta",
    "dpo_sft_coef": "sft_coef",
}
CORRECTION = ("level", "low", "high", "pool", "statistic", "token_weights", "difference", "normalise")
ARCHER = ("replay", "critic_updates", "critic_batch", "states", "encoder", "target_rate", "correction")

RENAMED: dict[str, str] = {
    "algo.method": "algo.estimator",
    "algo.reject": "algo.rejection",
    "algo.normalise_over": "algo.normalise.over",
    "algo.constant_length": "algo.aggregation.constant_length",
    "algo.value_clip": "critic.value_clip",
    "algo.value_coef": "critic.value_coef",
    "train.muon_learning_rate": "train.optimizer.learning_rate",
    "train.betas": "train.optimizer.betas",
    "train.weight_decay": "train.optimizer.weight_decay",
    "train.final_share": "train.schedule.final_share",
    **{f"algo.{name}": f"algo.advantage.{name}" for name in ADVANTAGE},
    **{f"algo.{old}": f"algo.loss.{name}" for old, name in LOSS.items()},
    **{f"algo.correction_{name}": f"algo.correction.{name}" for name in CORRECTION},
    **{f"algo.reject_{name}": f"algo.rejection.{name}" for name in ("statistic", "pool", "low", "high", "veto")},
    **{f"algo.filter_{name}": f"algo.filter.{name}" for name in ("by", "scale", "refill", "value", "largest")},
    "algo.filter_keep_zero": "algo.filter.keep_zero",
    **{f"archer.{name}": f"algo.estimator.{name}" for name in (*ARCHER, "token_baseline", "expectile")},
}
"""Old name -> name today. Several alternatives may have a setting: the chosen one gets it."""
