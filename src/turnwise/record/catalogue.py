"""Every metric of `metrics.jsonl`: what it means, its unit, and where it is shown. `docs/metrics.md` is made from it.

A name in capitals stands for many: `reward/NAME`, `eval/success/ENV`. Imports no torch.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["", "share", "count", "mean", "tokens", "nats", "s", "1/s", "MB", "Elo", "text"]
"""share: from 0 to 1, shown in percent. mean: of a small number, such as turns."""
Place = Literal["report", "watch", "viewer"]
EVERYWHERE: tuple[Place, ...] = ("report", "watch", "viewer")
CHARTS: tuple[Place, ...] = ("report", "viewer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    meaning: str
    unit: Unit = ""
    label: str = ""
    """Title of its chart."""
    places: tuple[Place, ...] = ()
    """Where it has a chart; the viewer lists all others below."""
    line: tuple[str, int] | None = None
    """Label and width in the progress line."""
    from_0_to_1: bool = False
    """Always drawn on that range, so that charts can be compared."""

    @property
    def pattern(self) -> str:
        """Regular expression of its names."""
        return re.sub(r"[A-Z]+", "[^/]+", self.name)


def _family(prefix: str, metrics: Iterable[tuple[str, Unit, str]]) -> tuple[Metric, ...]:
    """Return metrics that have no chart of their own: name, unit, meaning."""
    return tuple(Metric(name=f"{prefix}/{name}", unit=unit, meaning=meaning) for name, unit, meaning in metrics)


SHOWN = (
    Metric(
        name="rollout/success",
        label="success",
        unit="share",
        meaning="Episodes that succeeded.",
        places=EVERYWHERE,
        line=("success", 7),
        from_0_to_1=True,
    ),
    Metric(
        name="rollout/reward",
        label="reward",
        meaning="Mean return of an episode.",
        places=EVERYWHERE,
        line=("reward", 7),
    ),
    Metric(
        name="train/loss",
        label="loss",
        unit="nats",
        meaning="SFT: negative log-likelihood per answer token.",
        places=EVERYWHERE,
        line=("loss", 7),
    ),
    Metric(
        name="rollout/response_tokens",
        label="response tokens",
        unit="tokens",
        meaning="Sampled tokens per episode.",
        places=EVERYWHERE,
        line=("response", 6),
    ),
    Metric(
        name="train/entropy",
        label="entropy",
        unit="nats",
        meaning="Mean entropy of the policy at the sampled tokens.",
        places=EVERYWHERE,
        line=("entropy", 7),
    ),
    Metric(
        name="train/kl",
        label="KL to the reference",
        unit="nats",
        meaning="KL to the reference policy, by algo.kl_estimator.",
        places=EVERYWHERE,
        line=("KL", 8),
    ),
    Metric(
        name="train/approx_kl",
        label="KL of the update",
        unit="nats",
        meaning="KL between the policy that sampled the episodes and the updated one.",
        places=EVERYWHERE,
        line=("step KL", 8),
    ),
    Metric(name="rollout/turns", label="turns", unit="mean", meaning="Turns per episode.", places=("report",)),
    Metric(
        name="train/grad_norm",
        label="gradient norm",
        meaning="Gradient norm of the policy before clipping.",
        places=EVERYWHERE,
        line=("grad norm", 7),
    ),
    Metric(
        name="time/tokens_per_s",
        label="tokens per second",
        unit="1/s",
        meaning="Tokens of the step's episodes per second of the step.",
        places=EVERYWHERE,
        line=("tokens/s", 6),
    ),
    Metric(
        name="rollout/dropped",
        label="dropped episodes",
        unit="count",
        meaning="Episodes that failed and are not trained on.",
        places=("viewer",),
        line=("dropped", 3),
    ),
    Metric(
        name="train/clip_fraction",
        label="clip fraction",
        unit="share",
        meaning="Tokens whose ratio was clipped.",
        places=CHARTS,
    ),
    Metric(
        name="train/mismatch",
        label="sampler-learner mismatch",
        unit="nats",
        meaning="Mean absolute difference of the learner's log-probabilities from the sampler's, in the first update.",
        places=CHARTS,
    ),
    Metric(
        name="train/offpolicy_kl_k3",
        label="KL(sampler | learner), k3",
        unit="nats",
        meaning="KL of the sampler from the learner, k3 estimator.",
        places=CHARTS,
    ),
    Metric(
        name="train/offpolicy_chi2_sequence",
        label="chi-squared per sequence",
        meaning="Chi-squared divergence of the sampler from the learner over sequences.",
        places=("report",),
    ),
    Metric(
        name="train/q_explained",
        label="variance explained by Q",
        meaning="ArCHer: share of the returns' variance that Q explains.",
        places=CHARTS,
    ),
    Metric(
        name="train/v_explained",
        label="variance explained by V",
        meaning="ArCHer: share of the returns' variance that V explains.",
        places=CHARTS,
    ),
    Metric(
        name="train/overestimation",
        label="overestimation: mean of Q - return",
        meaning="ArCHer: mean of Q minus the return.",
        places=CHARTS,
    ),
    Metric(
        name="train/critic_trust",
        label="trust in the critic",
        unit="share",
        meaning="ArCHer: how far new episodes confirm the critic's advantages.",
        places=CHARTS,
        from_0_to_1=True,
    ),
    Metric(
        name="train/target_drift",
        label="target drift",
        meaning="ArCHer: distance of the target critic from the critic.",
        places=CHARTS,
    ),
    Metric(
        name="train/effective_samples",
        label="effective sample share",
        unit="share",
        meaning="Stored utterances that still count under the policy, by their importance weights.",
        places=CHARTS,
        from_0_to_1=True,
    ),
    Metric(
        name="rollout/invalid",
        label="invalid turns",
        unit="share",
        meaning="Turns whose action was invalid.",
        places=("report",),
    ),
    Metric(
        name="rollout/zero_std_groups",
        label="groups with equal rewards",
        unit="share",
        meaning="Groups whose members have equal returns, so that there is no relative advantage.",
        places=("report",),
    ),
)
"""Metrics with a chart or a column in the progress line, in the order shown."""

METRICS = (
    *SHOWN,
    *_family(
        "rollout",
        [
            ("groups", "count", "Groups."),
            ("episodes", "count", "Episodes."),
            ("episodes/ENV", "count", "Episodes of an environment, if there are several."),
            ("success/ENV", "share", "Success in an environment."),
            ("reward/ENV", "", "Mean return in an environment."),
            ("reward_std", "", "Standard deviation of the returns."),
            ("reward_group_std", "", "Mean standard deviation of the returns within a group."),
            ("sampled_tokens", "count", "Sampled tokens."),
            ("context_tokens", "count", "Tokens of prompts and observations."),
            ("turn_tokens", "tokens", "Sampled tokens per turn."),
            ("length_stops", "share", "Turns that were cut at rollout.max_new_tokens."),
            ("calls", "mean", "Tool calls per episode."),
            ("calls_failed", "share", "Tool calls that failed by the agent's fault."),
            ("repetition", "share", "Text that the members of a group share."),
            ("copies", "share", "Members of a group that are copies of another one."),
            ("failed", "share", "Episodes that ended without success."),
            ("truncated_turns", "share", "Episodes cut at the limit of turns."),
            ("truncated_tokens", "share", "Episodes cut at rollout.max_tokens."),
            ("truncated_time", "share", "Episodes cut at rollout.timeout_s."),
            ("truncated_limit", "share", "Imported episodes that a limit cut."),
            ("kept_groups", "count", "Groups that are trained on."),
            ("kept_share", "share", "Groups that passed the filter."),
            ("dropped_members", "count", "Members that failed on every attempt."),
            ("dropped_groups", "count", "Groups that were dropped."),
            ("dropped_no_reward", "count", "Episodes dropped because a reward is missing."),
            ("dropped_reason", "text", "Last failure that dropped an episode."),
            ("env_errors", "count", "Attempts that failed in the environment."),
            ("infra_errors", "count", "Attempts that failed in an engine, a tool server or a network."),
            ("staleness", "mean", "Asynchronous: mean age of the weights that sampled a token, in steps."),
            ("staleness_max", "mean", "Asynchronous: largest age of the weights that sampled a token, in steps."),
        ],
    ),
    *_family("reward", [("NAME", "", "Mean of a reward by its name; `env` is the environment's.")]),
    *_family(
        "train",
        [
            ("idle_reason", "text", "Why the step did not change the policy."),
            ("empty_steps", "count", "1 if there was nothing to train on."),
            ("idle_steps", "count", "1 if no optimizer step was taken."),
            ("skipped_steps", "count", "Optimizer steps skipped so far because a gradient was not finite."),
            ("learning_rate", "", "Learning rate."),
            ("muon_learning_rate", "", "Learning rate of Muon's matrices."),
            ("policy_loss", "", "Policy loss per token, without KL and entropy terms."),
            ("ratio", "", "Mean probability ratio of the new to the old policy."),
            ("clip_fraction_low", "share", "Tokens clipped at the lower bound."),
            ("dual_clip", "share", "Tokens with a negative advantage clipped at algo.dual_clip."),
            ("cov_fraction", "share", "Tokens selected by their covariance (clip_cov, kl_cov)."),
            ("awr_weight", "", "Mean weight of an answer in algo.loss awr."),
            ("awr_clipped", "share", "Answers whose weight was clipped."),
            (
                "dpo_NAME",
                "",
                "Pairs of algo.loss dpo: loss, accuracy, margin, rewards, log-probabilities.",
            ),
            ("advantage_mean", "", "Mean advantage (ArCHer)."),
            ("advantage_std", "", "Standard deviation of the advantages."),
            ("loss_token_share", "share", "Sampled tokens that algo.loss_tokens selects."),
            ("advantage_token_share", "share", "Sampled tokens that algo.advantage_tokens selects."),
            ("kl_coef", "", "KL coefficient of the next step."),
            ("gamma_turn", "", "Adaptive turn discount of the next step."),
            ("value", "", "Mean value of the critic."),
            ("value_loss", "", "Loss of the critic."),
            ("value_clip_fraction", "share", "Values that were clipped."),
            ("explained_variance", "", "Share of the returns' variance that the critic explains."),
            ("critic_grad_norm", "", "Gradient norm of the critic."),
            ("critic_learning_rate", "", "Learning rate of the critic."),
            ("correction_weight", "", "Mean weight of algo.correction."),
            ("correction_outside", "share", "Tokens whose weight algo.correction bounded or dropped."),
            ("rejected", "share", "Tokens that were rejected."),
            ("mismatch_p99", "nats", "99th percentile of the difference of the log-probabilities."),
            ("mismatch_ratio", "", "Mean probability ratio of whole sequences, learner to sampler."),
            ("offpolicy_kl_k1", "nats", "KL of the sampler from the learner, k1 estimator."),
            ("offpolicy_chi2_token", "", "Chi-squared divergence over tokens."),
            ("offpolicy_ppl", "", "Perplexity of the learner."),
            ("offpolicy_ppl_sampler", "", "Perplexity of the sampler."),
            ("offpolicy_ppl_ratio", "", "Ratio of the two perplexities."),
            ("q_loss", "", "ArCHer: loss of Q."),
            ("q_mean", "", "ArCHer: mean of Q."),
            ("q_error", "", "ArCHer: error of Q."),
            ("v_loss", "", "ArCHer: loss of V."),
            ("v_mean", "", "ArCHer: mean of V."),
            ("v_error", "", "ArCHer: error of V."),
            ("return_mean", "", "ArCHer: mean return from a turn on."),
            ("critic_improvement", "", "ArCHer: advantage of fresh utterances that the returns confirm."),
            ("utterance_critic_grad_norm", "", "ArCHer: gradient norm of the critic of utterances."),
            ("replay_trajectories", "count", "ArCHer: trajectories in the replay."),
            ("demonstrations", "count", "SFT: demonstrations of the step."),
            ("answer_tokens", "count", "SFT: tokens that were trained on."),
        ],
    ),
    *_family(
        "eval",
        [
            ("name", "text", "before, validation, after, or a name of your own."),
            ("success", "share", "Success, the mean over tasks."),
            ("success_low", "share", "Lower end of its 95 % interval."),
            ("success_high", "share", "Upper end of its 95 % interval."),
            ("success/ENV", "share", "Success in an environment, if there are several."),
            ("pass_at_K", "share", "Tasks with a success in K tries."),
            ("episodes", "count", "Episodes."),
            ("dropped", "count", "Episodes that failed on every attempt."),
            ("dropped_reason", "text", "Last failure that dropped an episode."),
            ("reward", "", "Mean return."),
            ("turns", "mean", "Turns per episode."),
            ("invalid", "share", "Invalid turns."),
            ("cut", "share", "Turns that were cut at rollout.max_new_tokens."),
            ("sampled_tokens", "tokens", "Sampled tokens per episode."),
        ],
    ),
    *_family("held_out", [("NAME", "nats", "SFT without an environment: loss of held-out demonstrations.")]),
    *_family("sft", [("digest", "text", "Hash of the demonstrations.")]),
    *_family(
        "ladder",
        [
            ("elo", "Elo", "Self-play: rating of the snapshot; the initial policy has 0."),
            ("score", "share", "Points per game against earlier snapshots."),
            ("score/NAME", "share", "Points per game against one snapshot."),
            ("games", "count", "Games."),
        ],
    ),
    *_family(
        "curriculum",
        [
            ("measured", "count", "Tasks with results."),
            ("solved", "share", "Tasks that are nearly always solved."),
            ("unsolved", "share", "Tasks that are nearly never solved."),
        ],
    ),
    *_family(
        "judge",
        [
            ("calls", "count", "Requests of the run so far, including retries."),
            ("tokens", "count", "Tokens of the run so far."),
            ("cached", "count", "Verdicts from the cache."),
            ("retried", "count", "Requests that met a transient failure."),
            ("unreadable", "count", "Answers that were not a verdict."),
            ("left_out", "count", "Group members without a verdict."),
            ("seconds", "s", "Waiting time, summed over concurrent requests."),
        ],
    ),
    *_family(
        "diagnostics",
        [
            ("mutual_information", "nats", "How much the reasoning depends on the prompt."),
            ("mutual_information_bound", "nats", "Largest value that the number of prompts allows."),
            ("mutual_information_zscore", "", "The same in standard deviations of shuffled pairs."),
            ("conditional_entropy", "nats", "Entropy of the reasoning given its prompt."),
            ("reasoning_entropy", "nats", "Entropy of the reasoning over all prompts."),
            ("retrieval_at_K", "share", "Reasonings whose prompt is among the K likeliest."),
            ("retrieval_at_K_above_chance", "share", "The same above chance."),
            ("gradient_TERM_N", "share", "Gradient norm of a loss term by quantile of the groups' reward std."),
        ],
    ),
    *_family("engine", [("published_mb", "MB", "Weights that were copied into the engines.")]),
    *_family(
        "time",
        [
            ("total_s", "s", "The whole step or evaluation."),
            ("PHASE_s", "s", "A phase: rollout, estimate, diagnose, update, record, publish, eval, ladder, warmup."),
            ("engine_s", "s", "Time in which the engine computed."),
            ("capture_s", "s", "Capturing CUDA graphs."),
            ("engine_idle_share", "share", "Time in which no session was open."),
        ],
    ),
)
