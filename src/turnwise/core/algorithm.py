"""Parameters of advantages, losses, off-policy corrections and filters: defined once, here.

`config.AlgoConfig` has all of them, so that the whole section is passed to each algorithm, which reads its own.
"""

from typing import Annotated, Literal

from pydantic import Field

from turnwise.core.section import NonNegative, Section, Share

RatioLevel = Literal["token", "turn", "sequence"]


class AdvantageParams(Section):
    """Each estimator reads only some of them: `Advantage.reads`."""

    gamma: Share = 1.0
    """Discount per sampled token."""
    lam: Share = 1.0
    """GAE lambda per token: 1 uses rewards only, lower values rely more on the critic."""
    gamma_turn: Share = 1.0
    """Discount per turn. An estimator that reads gamma too applies both at the end of a turn."""
    lam_turn: Share = 1.0
    """GAE lambda per turn."""
    whiten: bool = True
    """Whiten advantages over the batch, after returns are computed."""
    whiten_over: Literal["turn", "token"] = "turn"
    """Unit that whitening counts once: a turn or each of its tokens."""
    by_std: bool = True
    """Divide by the standard deviation of the compared values."""
    episode_weight: NonNegative = 1.0
    """Weight of the episode's advantage in gigpo."""
    step_weight: NonNegative = 1.0
    """Weight of the advantage among steps from the same state in gigpo."""
    outcome_weight: Share = 0.5
    """Share of the trajectory's advantage in turn_grpo; the turn's own advantage has the rest."""
    epsilon: NonNegative = 1e-6
    """Added to standard deviations before dividing by them."""


class LossParams(Section):
    """Each loss reads only some of them: `Loss.reads`."""

    clip_low: NonNegative = 0.2
    """Lower clip range: the ratio is clipped at 1 - clip_low (geo_mean: the log-ratio at -clip_low)."""
    clip_high: NonNegative = 0.28
    """Upper clip range: the ratio is clipped at 1 + clip_high (geo_mean: the log-ratio at clip_high)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """Bound of the loss for negative advantages, as a multiple of the advantage; none removes it."""
    ratio_level: RatioLevel = "sequence"
    """Unit that gspo computes one ratio for."""
    tau_positive: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of sapo's soft gate for positive advantages."""
    tau_negative: Annotated[float, Field(gt=0)] = 1.05
    """Temperature of sapo's soft gate for negative advantages, whose gradient raises every other token."""
    cov_share: Share = 2e-4
    """Share of the trained tokens that clip_cov (at most) and kl_cov select; at least one token."""
    cov_low: float = 1.0
    """Lowest covariance of advantage and log-probability that clip_cov selects from."""
    cov_high: float = 5.0
    """Highest covariance that clip_cov selects from."""
    cov_kl_coef: NonNegative = 1.0
    """Coefficient of kl_cov's penalty on the selected tokens."""
    vespo_k_positive: NonNegative = 2.0
    """Exponent k of vespo's weight exp(lambda + k log w - lambda w) for advantages of 0 or more."""
    vespo_lambda_positive: NonNegative = 3.0
    """Decay lambda of that weight for advantages of 0 or more: it peaks at w = k / lambda."""
    vespo_k_negative: NonNegative = 3.0
    """Exponent k for negative advantages."""
    vespo_lambda_negative: NonNegative = 2.0
    """Decay lambda for negative advantages."""
    awr_beta: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of awr's weights exp(advantage / awr_beta): lower values imitate only the best actions."""
    awr_max_weight: Annotated[float, Field(gt=0)] = 20.0
    """Largest weight of awr."""
    dpo_beta: Annotated[float, Field(gt=0)] = 0.1
    """Strength of dpo's constraint to the reference: lower values move further away from it."""
    dpo_sft_coef: NonNegative = 0.0
    """Coefficient of the likelihood of the preferred episode in dpo, per token (RPO); 0 is plain DPO."""


class CorrectionParams(Section):
    """Each correction reads only some of them: `Correction.reads`. rho = pi_old / mu, mu the sampler."""

    correction_level: RatioLevel = "token"
    """Unit whose ratio to the sampler is bounded."""
    correction_low: NonNegative = 0.0
    """Lowest weight (truncated), or lowest statistic that is kept (masked)."""
    correction_high: NonNegative = 2.0
    """Highest weight (truncated), or highest statistic that is kept (masked)."""
    correction_pool: Literal["product", "mean"] = "product"
    """How the tokens of a turn or sequence make one ratio: product (exact, high variance) or geometric mean."""
    correction_statistic: Literal["ratio", "k2", "k3"] = "ratio"
    """Statistic that masked compares with its bounds: rho, or the k2 or k3 estimate of KL(mu | pi_old)."""
    correction_token_weights: bool = True
    """Weigh tokens that masked keeps by their own ratio; false: by that of their turn or sequence."""
    correction_difference: NonNegative = 0.2
    """Largest change of a token's probability from the sampler's before two_sided drops the token."""
    correction_normalise: bool = False
    """Divide the weights of decoupled or truncated by their mean over the optimizer step."""


class RejectionParams(Section):
    """Rejection of tokens, turns or sequences on which the old policy and the sampler disagree."""

    reject: RatioLevel | Literal["none"] = "none"
    """Unit that is left out of training when its statistic is out of bounds; "sequence" is a segment."""
    reject_statistic: Literal["ratio", "k2", "k3"] = "ratio"
    """Statistic that the bounds apply to: rho, k2 = log(rho)^2 / 2 or k3 = rho - 1 - log rho."""
    reject_pool: Literal["sum", "mean", "max"] = "mean"
    """How the tokens of a turn or sequence make one statistic. Log-ratios are pooled: sum gives the exact ratio."""
    reject_low: NonNegative = 0.0
    """Lowest statistic that is trained."""
    reject_high: NonNegative = 2.0
    """Highest statistic that is trained."""
    reject_veto: Share = 0.0
    """Reject a sequence in which any token's rho is below this (1e-4 is usual); 0 disables it."""

    @property
    def rejects(self) -> bool:
        return self.reject != "none" or self.reject_veto > 0


class FilterParams(Section):
    """Each filter reads only some of them: `Filter.reads`."""

    filter_value: NonNegative = 0.9
    """p of top_p and min_p, share of top_k, bound of absolute, number of groups of top_count (no default)."""
    filter_largest: bool = True
    """Prefer groups with high scores."""
    filter_keep_zero: bool = True
    """Keep groups of score 0; false: leave them out first."""
