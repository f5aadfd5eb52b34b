"""The settings of the algorithm: rewards, advantages and losses, the critic."""

from typing import Annotated, Any, Literal

from pydantic import Field

from turnwise.core.algorithm import AdvantageParams, CorrectionParams, FilterParams, LossParams, RejectionParams
from turnwise.core.section import LearningRate, NonNegative, Positive, Section, Share


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


class AlgorithmChoice(Section):
    """Names of the algorithms; their parameters are in `core.algorithm`."""

    advantage: str = "grpo"
    """Advantage estimator."""
    loss: str = "ppo"
    """Policy loss."""
    correction: str = "none"
    """Weight of tokens whose sampler differs from the policy in the denominator of the ratio."""
    normalise: str = "identity"
    """Normalisation of trajectory returns before the advantages: identity, mean, mean_std or asym_clip."""
    normalise_over: Literal["group", "environment", "batch"] = "group"
    """Set of trajectories that returns are normalised over."""
    placement: Literal["turn", "trajectory"] | None = None
    """Last token of its turn or of the trajectory gets a reward; none: trajectory for reinforce_pp, else turn."""
    filter: str = "none"
    """Filter that selects the groups to train on."""
    filter_by: str = "reward_std"
    """Score that the filter ranks groups by."""
    filter_scale: Literal["none", "share", "root"] = "none"
    """Factor of the learning rates of policy and critic: 1, the share of groups that passed, or its square root."""
    filter_refill: Annotated[int, Field(ge=0)] = 0
    """Further rounds of rollouts, at most, until as many groups as rollout.groups pass the filter."""


class AlgoConfig(
    RejectionParams, CorrectionParams, LossParams, AdvantageParams, FilterParams, AlgorithmChoice
):  # pydantic lists the fields of the last base first
    gamma_turn: Share | Literal["adaptive"] = 1.0  # type: ignore[assignment]
    """Discount from a turn to the next; "adaptive" follows how far the critic foresees."""
    loss_tokens: str = "sampled"
    """Which sampled tokens the loss is taken over: sampled, think, answer, or FILE.py:function from a turn."""
    advantage_tokens: str = "sampled"
    """Which sampled tokens advantages are taken over; the others get 0."""
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
