"""Settings of earlier versions, for error messages and the configurations of older runs: renamed, or removed."""

from typing import Any

ADVANTAGE = (*("gamma", "lam", "gamma_turn", "lam_turn", "whiten", "by_std"),)
LOSS = {name: name for name in ("clip_low", "clip_high", "dual_clip")} | {
    "ratio_level": "level",
    "cov_share": "share",
    "awr_beta": "beta",
    "dpo_beta": "beta",
    "dpo_sft_coef": "sft_coef",
}
BOUNDED = {"correction": "correction", "rejection": "reject"}
"""Choices with bounds -> prefix of their settings in early versions."""
ARCHER = ("replay", "states", "correction", "expectile")
CRITIC = {"critic_updates": "updates", "critic_batch": "batch"} | {"target_rate": "target_rate"}

RENAMED: dict[str, str] = {
    "algo.method": "algo.estimator",
    "algo.reject": "algo.rejection",
    "algo.normalise_over": "algo.normalise.over",
    "algo.constant_length": "algo.aggregation.constant_length",
    "algo.value_clip": "critic.value_clip",
    "algo.value_coef": "critic.value_coef",
    "train.muon_learning_rate": "train.optimizer.learning_rate",
    "train.weight_decay": "train.optimizer.weight_decay",
    "train.final_share": "train.schedule.final_share",
    "context.mode": "context",
    "context.summary_every": "context.every",
    **{f"context.{old}": "context.summary" for old in ("summary_tokens", "tokens", "summary_by", "by")},
    **dict.fromkeys(("rollout.retry", "rollout.retry.rounds"), "rollout.retry_unsolved"),
    **dict.fromkeys(("algo.exploration", "algo.exploration.target"), "algo.action_entropy_target"),
    "lora.part": "model.train_vision",
    **{f"selfplay.{name}": f"selfplay.opponent.{name}" for name in ("snapshot_every", "snapshots", "ladder_games")},
    "system.cache_share": "engine.gpu_memory_utilization",
    **{f"diagnose.{old}": "diagnose.answer" for old in ("act", "rollbacks", "rollback", "max_rollbacks")},
    "diagnose.information_every": "diagnose.every",
    "diagnose.gradients_every": "diagnose.every",
    "agent.timeout_s": "rollout.timeout_s",
    "agent.on_timeout": "agent.train_on",
    "agent.on_crash": "agent.train_on",
    **{f"{section}.encoder": "critic" for section in ("archer", "algo.estimator", "critic")},
    **{f"algo.{name}": f"algo.advantage.{name}" for name in ADVANTAGE},
    **{f"algo.{old}": f"algo.loss.{name}" for old, name in LOSS.items()},
    **{f"algo.correction_{name}": f"algo.correction.{name}" for name in ("level", "normalise")},
    **{f"algo.reject_{name}": f"algo.rejection.{name}" for name in ("statistic", "pool")},
    **{
        f"algo.{owner}{name}": f"algo.{choice}.bounds"
        for choice, prefix in BOUNDED.items()
        for owner in (f"{choice}.", f"{prefix}_")
        for name in ("low", "high")
    },
    **{f"algo.correction{old}": "algo.correction.level" for old in (".pool", "_pool")},
    **{f"algo.{old}": "algo.advantage.whiten" for old in ("advantage.whiten_over", "whiten_over")},
    **{f"algo.filter_{name}": f"algo.filter.{name}" for name in ("by", "scale", "refill", "value", "largest")},
    "algo.filter_keep_zero": "algo.filter.keep_zero",
    **{f"archer.{name}": f"algo.estimator.{name}" for name in ARCHER},
    **{
        f"{section}.{old}": f"critic.{name}" for section in ("archer", "algo.estimator") for old, name in CRITIC.items()
    },
}
"""Old name -> name today. Several alternatives may have a setting: the chosen one gets it."""

SUMMARY_PROMPT = (
    "Your context will be cleared. Sum up for yourself what you need in order to go on: the goal, what you did and "
    "found, and your plan."
)

REMOVED: dict[str, tuple[Any, str]] = {
    "system.deterministic": (True, "Equal seeds give equal results wherever they can."),
    "rollout.top_p": (1.0, "Training samples from the whole distribution; set eval.top_p for evaluations."),
    "rollout.top_k": (0, "Training samples from the whole distribution; set eval.top_k for evaluations."),
    "context.slack": (0, "A window slides at every turn."),
    "context.memory": ("exchanges", "The memory has observations and actions."),
    "context.memory_chars": (2000, "The memory has at most 2,000 characters."),
    "context.memory_rewards": (False, "The memory has no rewards."),
    "context.summary_at": ("none", "A summary is due at half of rollout.max_tokens, or after context.every turns."),
    "context.summary_prompt": (SUMMARY_PROMPT, "The model is always asked with the same prompt."),
    "rollout.retry.temperature": (1.3, "Unsolved tasks are played again at the temperature 1.3."),
    "agent.program": ("", "The program is found in PATH: add its folder."),
    "agent.step_limit": (0, "rollout.timeout_s and rollout.max_tokens end an episode."),
    "model.warmup_seed": (0, "The warm-up has the same seed in every run."),
    "curriculum.floor": (0.1, "Tasks that are always or never solved have a tenth of the largest weight."),
    "curriculum.memory": (0.5, "A task's earlier results count half when it is played again."),
    **{
        f"algo.{name}": old
        for last, old in {
            "step_weight": (1.0, "The weight of gigpo's steps is the paper's 1."),
            "outcome_weight": (0.5, "turn_grpo weighs turn and outcome alike."),
        }.items()
        for name in (last, f"advantage.{last}")
    },
    **dict.fromkeys(("algo.loss.max_weight", "algo.awr_max_weight"), (20.0, "The weights of awr are at most 20.")),
    **{
        f"algo.{name}": (value, "sapo has the temperatures of its paper.")
        for last, value in {"tau_positive": 1.0, "tau_negative": 1.05}.items()
        for name in (last, f"loss.{last}")
    },
    **dict.fromkeys(
        ("algo.correction_statistic", "algo.correction.statistic"),
        ("ratio", "masked bounds the ratio; algo.rejection bounds k2 or k3 with any algo.correction."),
    ),
    **dict.fromkeys(
        ("algo.correction_token_weights", "algo.correction.token_weights"),
        (True, "A token that masked keeps has its own weight."),
    ),
    **dict.fromkeys(
        ("algo.correction_difference", "algo.correction.difference"), (0.2, "two_sided drops at a difference of 0.2.")
    ),
    **dict.fromkeys(
        ("algo.reject_veto", "algo.rejection.veto"),
        (1e-4, "Choose algo.rejection veto, which rejects segments with a token whose ratio is below 1e-4."),
    ),
    "algo.advantage.epsilon": (1e-6, "Standard deviations are divided by after adding 1e-6."),
    "algo.epsilon": (1e-6, "Standard deviations are divided by after adding 1e-6."),
    "algo.advantage.episode_weight": (1.0, "The episode's advantage has weight 1, as that of gigpo's steps."),
    "algo.episode_weight": (1.0, "The episode's advantage has weight 1, as that of gigpo's steps."),
    "algo.estimator.token_baseline": (False, "Every token of an utterance gets the utterance's advantage."),
    "archer.token_baseline": (False, "Every token of an utterance gets the utterance's advantage."),
    **dict.fromkeys(("algo.loss.low", "algo.cov_low"), (1.0, "clip_cov selects covariances between 1 and 5.")),
    **dict.fromkeys(("algo.loss.high", "algo.cov_high"), (5.0, "clip_cov selects covariances between 1 and 5.")),
    **dict.fromkeys(("algo.loss.coef", "algo.cov_kl_coef"), (1.0, "The penalty of kl_cov has coefficient 1.")),
    **{
        name: (value, "vespo has the constants of its paper.")
        for old, value in {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0}.items()
        for name in (f"algo.loss.{old}", f"algo.vespo_{old}")
    },
    "algo.entropy_tokens": (
        "sampled",
        "All tokens get the entropy bonus; algo.action_entropy_target pays for varied actions instead.",
    ),
    "algo.exploration.coef": (0.1, "The coefficient is 0.1 while algo.action_entropy_target is reached."),
    "algo.exploration.max_coef": (1.0, "The coefficient is at most 1."),
    "algo.exploration.tasks": ("all", "All groups get the bonus."),
    "algo.kl_horizon": (10000.0, "An adaptive algo.kl_coef changes by a factor of at most 1.2 in 10,000 trajectories."),
    "train.optimizer.betas": ([0.9, 0.95], "The betas of AdamW are 0.9 and 0.95."),
    "train.betas": ([0.9, 0.95], "The betas of AdamW are 0.9 and 0.95."),
    "sft.held_out": (0.05, "Without an environment, 5 % of the conversations are held out."),
    "data.capacity": (100_000, "All episodes of data.sources are kept, up to 1,000,000."),
    "data.pair_gap": (0.0, "The episodes of a pair have different rewards."),
    "data.min_reward": ("none", "Set data.keep to the lowest total reward of an episode that is kept."),
    "diagnose.alarms": (True, "Alarms are always reported."),
    "diagnose.information_prompts": (8, "A measurement scores 8 trajectories."),
    "diagnose.gradient_buckets": (4, "A measurement has 4 quantiles."),
    "checkpoint.keep_best": (True, "The best checkpoint is kept if eval.every measures success."),
    "record.pictures_per_step": (1, "A trajectory per step is drawn."),
    "record.report": (True, "A run that ends always has a report."),
    "system.decode_steps": (4, "The host reads sampled tokens after every 4 steps."),
    "cluster.gpus_per_engine": ("none", "An engine has engine.tensor_parallel GPUs, 1 by default."),
    "cluster.gpus_per_learner": ("none", "A learner rank has one GPU if the cluster has any."),
    "cluster.wait_s": (60.0, "A run waits 60 s for room on the cluster."),
}
"""Name -> the value that all runs have now, as in config.toml, and what to do or expect without the setting."""
