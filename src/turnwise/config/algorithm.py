"""The settings of the algorithm: rewards, advantages and losses, the critic."""

from typing import Annotated, Any, Literal

from pydantic import Field

from turnwise.config.section import LearningRate, NonNegative, Positive, Section, Share


class RewardConfig(Section):
    format_penalty: NonNegative = 0.1
    """Subtracted once from a turn whose answer could not be read."""
    functions: tuple[str, ...] = ()
    """Rewards of your own, FILE.py:function from a trajectory to a number, or to one number a turn."""
    weights: tuple[float, ...] = ()
    """Of the environment's reward with its format penalty, then of each function; none given: all 1."""
    judges: tuple[dict[str, Any], ...] = ()
    """Models that judge whole episodes, alone or against their group: tables with model, rubric, mode and weight."""
    combine: Literal["sum", "each", "process"] = "sum"
    """"each": normalise every reward within its group, then add; "process": scale those before the last turn."""


class AlgoConfig(Section):
    advantage: str = "grpo"
    """How much better a token was than expected, by the name of the estimator."""
    loss: str = "ppo"
    """The policy loss, by its name."""
    correction: str = "none"
    """The weight of a token where the sampler was not the policy that the ratio divides by, by its name."""
    normalise: str = "identity"
    """Of whole-trajectory returns, before advantages are taken: identity, mean, mean_std or asym_clip."""
    normalise_over: Literal["group", "environment", "batch"] = "group"
    """What a return is compared with."""
    filter: str = "none"
    """Which groups of a step are trained, by the name of the filter."""
    filter_by: str = "reward_std"
    """What groups are ranked by."""
    filter_value: NonNegative = 0.9
    """p of top_p and min_p, share of top_k, bound of absolute; number of groups of top_count, which has no default."""
    filter_largest: bool = True
    """Prefer high scores."""
    filter_keep_zero: bool = True
    """false: groups of score 0 are left out first."""
    filter_scale: Literal["none", "share", "root"] = "none"
    """Factor of the step's learning rates, policy and critic: 1, the share of groups that passed, or its root."""
    filter_refill: Annotated[int, Field(ge=0)] = 0
    """Roll out more tasks until as many groups as rollout.groups pass the filter, at most so many rounds."""
    placement: Literal["turn", "trajectory"] | None = None
    """A turn's reward on its last token, or all on the trajectory's; none: trajectory for reinforce_pp, else turn."""
    gamma: Share = 1.0
    """Discount from a sampled token to the next (gae, bi_level_gae, reinforce, reinforce_pp)."""
    lam: Share = 1.0
    """GAE's lambda between tokens: 1 trusts the rewards alone, less trusts the critic more."""
    gamma_turn: Share | Literal["adaptive"] = 1.0
    """Discount from a turn to the next; "adaptive" follows how far the critic foresees."""
    lam_turn: Share = 1.0
    """GAE's lambda between turns."""
    whiten: bool = True
    """Whiten advantages over the batch (estimators with a critic)."""
    whiten_over: Literal["turn", "token"] = "turn"
    """Whether whitening counts each turn once or each of its tokens (turn_gae, step_gae)."""
    by_std: bool = True
    """Divide by the std of what is compared (gigpo, turn_grpo, pass_at_k)."""
    episode_weight: NonNegative = 1.0
    """gigpo's weight of the whole episode's advantage."""
    step_weight: NonNegative = 1.0
    """gigpo's weight of the advantage among steps from the same state."""
    outcome_weight: Share = 0.5
    """turn_grpo's share of the whole trajectory's advantage; the turn's own has the rest."""
    loss_tokens: str = "sampled"
    """Which sampled tokens the loss is taken over: sampled, think, answer, or FILE.py:function from a turn."""
    advantage_tokens: str = "sampled"
    """Which sampled tokens advantages are taken over; the others get 0."""
    clip_low: NonNegative = 0.2
    """The ratio is clipped below at 1 - this."""
    clip_high: NonNegative = 0.28
    """The ratio is clipped above at 1 + this."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """Bounds the loss of a negative advantage at this many times it; None: no bound."""
    ratio_level: Literal["token", "turn", "sequence"] = "sequence"
    """What gspo takes one ratio over."""
    tau_positive: Annotated[float, Field(gt=0)] = 1.0
    """How sharply sapo fades a good token that moves away from ratio 1."""
    tau_negative: Annotated[float, Field(gt=0)] = 1.05
    """The same for a bad token."""
    cov_share: Share = 2e-4
    """Share of the trained tokens that clip_cov (at most) and kl_cov select; at least one token."""
    cov_low: float = 1.0
    """Covariance of advantage and log-probability above which clip_cov selects tokens."""
    cov_high: float = 5.0
    """Covariance below which clip_cov selects tokens."""
    cov_kl_coef: NonNegative = 1.0
    """Weight of kl_cov's penalty on the selected tokens."""
    vespo_k_positive: NonNegative = 2.0
    """Exponent k of vespo's weight exp(lambda + k log w - lambda w) where the advantage is 0 or more."""
    vespo_lambda_positive: NonNegative = 3.0
    """Decay lambda of that weight where the advantage is 0 or more."""
    vespo_k_negative: NonNegative = 3.0
    """Exponent k where the advantage is negative."""
    vespo_lambda_negative: NonNegative = 2.0
    """Decay lambda where the advantage is negative."""
    correction_level: Literal["token", "turn", "sequence"] = "token"
    """Whose ratio to the sampler is bounded."""
    correction_low: NonNegative = 0.0
    """The lowest weight (truncated), or the lowest statistic that is kept (masked)."""
    correction_high: NonNegative = 2.0
    """The highest."""
    correction_pool: Literal["product", "mean"] = "product"
    """How a turn's or sequence's tokens make one ratio."""
    correction_statistic: Literal["ratio", "k2", "k3"] = "ratio"
    """Statistic that the bounds of `masked` apply to: pi_old / mu (mu: the sampler), or k2 or k3 of KL(mu | pi_old)."""
    correction_token_weights: bool = True
    """Tokens that `masked` keeps weigh their own ratio; false: that of their turn or sequence."""
    correction_difference: NonNegative = 0.2
    """How far a probability may move from the sampler's before `two_sided` drops its token."""
    correction_normalise: bool = False
    """Divide the weights of decoupled or truncated by their mean over the optimizer step."""
    reject: Literal["none", "token", "turn", "sequence"] = "none"
    """Unit that is not trained where pi_old and the sampler mu disagree too much; "sequence" is a segment."""
    reject_statistic: Literal["ratio", "k2", "k3"] = "ratio"
    """Statistic that the bounds of reject apply to: pi_old / mu, or an estimate of KL(mu | pi_old)."""
    reject_pool: Literal["sum", "mean", "max"] = "mean"
    """How a turn's or sequence's tokens make one statistic; log-ratios are pooled, so sum is the whole's ratio."""
    reject_low: NonNegative = 0.0
    """The lowest statistic that is trained."""
    reject_high: NonNegative = 2.0
    """The highest."""
    reject_veto: Share = 0.0
    """Reject a sequence in which any token's pi_old / mu is below this (1e-4 is usual); 0: never."""
    value_clip: Annotated[float, Field(gt=0)] = 0.5
    """How far a value may move from the old one in an update."""
    value_coef: NonNegative = 1.0
    """Weight of the value loss."""
    entropy_coef: NonNegative = 0.001
    """Weight of the entropy bonus."""
    kl_coef: NonNegative = 0.0
    """Weight of the divergence from the reference, the policy that the run began with; 0: no reference is kept."""
    kl_estimator: Literal["k1", "k2", "k3", "abs"] | None = None
    """How that divergence is estimated from sampled tokens; none: by k3 in the loss, by k1 in the reward."""
    kl_in: Literal["loss", "reward"] | None = None
    """Where the divergence counts; none: in the reward for reinforce_pp, in the loss for all others."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """The divergence a token that is wanted: the weight then moves towards it; None: it stays."""
    kl_horizon: Annotated[float, Field(gt=0)] = 10000.0
    """In how many trajectories that weight may change by a factor of about 1.2."""
    aggregation: str = "token-mean"
    """How token losses become one number, by its name."""
    constant_length: Positive = 1024
    """What `seq-mean-token-sum-norm` divides by."""
    truncated: Literal["zero", "bootstrap", "drop"] = "zero"
    """The value after the last token of an episode that a token or time limit cut."""
    old_logprobs: Literal["sampler", "learner"] = "sampler"
    """Which log-probabilities the ratio divides by."""
    preset: str | None = None
    """A published method, by name (`turnwise recipes --algos`): its settings, below those that are given besides."""


class CriticConfig(Section):
    kind: Literal["trunk", "head"] = "trunk"
    """"trunk": a model of its own, starting from the policy's weights; "head": a head on the policy's trunk."""
    learning_rate: LearningRate = 1e-5
    """Of the critic."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which only the critic learns."""
