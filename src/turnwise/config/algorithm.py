"""Settings of rewards, algorithm and critic."""

from typing import Annotated, Any, Literal

from pydantic import Field

from turnwise.core.algorithm import AdvantageParams, CorrectionParams, FilterParams, LossParams, RejectionParams
from turnwise.core.section import LearningRate, NonNegative, Positive, Section, Share


class RewardConfig(Section):
    """Rewards in addition to the environment's own, and how they are combined."""

    format_penalty: NonNegative = 0.1
    """Penalty for each turn whose answer cannot be parsed."""
    functions: tuple[str, ...] = ()
    """Reward functions, each FILE.py:function from a trajectory to a number or to one number per turn."""
    weights: tuple[float, ...] = ()
    """Weights of the environment's reward (with its format penalty) and of each function; default: all 1."""
    judges: tuple[dict[str, Any], ...] = ()
    """Judge models that score episodes, alone or within their group: tables of model, rubric, mode, weight."""
    combine: Literal["sum", "each", "process"] = "sum"
    """"sum"; "each": normalise each reward in its group, then sum; "process": scale rewards before the last turn."""


class AlgorithmChoice(Section):
    """Names of the algorithms; their parameters are in `core.algorithm`."""

    advantage: str = "grpo"
    """Advantage estimator."""
    method: Literal["on_policy", "archer", "archer_offline", "awac"] = "on_policy"
    """on_policy, or with a critic of utterances: archer on a replay, archer_offline or awac on stored episodes."""
    loss: str = "ppo"
    """Policy loss."""
    correction: str = "none"
    """Weight of tokens whose sampler differs from the policy in the denominator of the ratio."""
    normalise: str = "identity"
    """Normalisation of trajectory returns before the advantages: identity, mean, mean_std or asym_clip."""
    normalise_over: Literal["group", "environment", "batch"] = "group"
    """Set of trajectories that returns are normalised over."""
    placement: Literal["turn", "trajectory"] | None = None
    """Token that gets a turn's reward: the last of the turn or of the trajectory; none lets the estimator decide."""
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
    """Algorithm: advantages, policy loss, off-policy correction, filter and KL penalty."""

    gamma_turn: Share | Literal["adaptive"] = 1.0  # type: ignore[assignment]
    """Discount per turn; "adaptive" fits it to how far ahead the critic predicts."""
    loss_tokens: str = "sampled"
    """Tokens in the loss: sampled (all), parts such as answer or prediction+answer, or FILE.py:function of a turn."""
    advantage_tokens: str = "sampled"
    """Sampled tokens that get advantages, chosen as for loss_tokens; the others get 0."""
    value_clip: Annotated[float, Field(gt=0)] = 0.5
    """Clip range of the value loss around the old value."""
    value_coef: NonNegative = 1.0
    """Coefficient of the value loss."""
    entropy_coef: NonNegative = 0.001
    """Coefficient of the entropy bonus."""
    kl_coef: NonNegative = 0.0
    """Coefficient of the KL divergence from the reference, the initial policy; 0 keeps no reference."""
    kl_estimator: Literal["k1", "k2", "k3", "abs"] | None = None
    """KL estimator; none uses k3 in the loss and k1 in the reward."""
    kl_in: Literal["loss", "reward"] | None = None
    """Place of the KL term, loss or reward; none uses the reward for reinforce_pp and the loss otherwise."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """Target KL per token that kl_coef is adapted to; none keeps kl_coef constant."""
    kl_horizon: Annotated[float, Field(gt=0)] = 10000.0
    """Number of trajectories in which an adaptive kl_coef changes by a factor of about 1.2 at most."""
    aggregation: str = "token-mean"
    """Aggregation of token losses into one loss, such as token-mean or seq-mean-token-mean."""
    constant_length: Positive = 1024
    """Divisor of seq-mean-token-sum-norm, in tokens."""
    truncated: Literal["zero", "bootstrap", "drop"] = "zero"
    """Value after the end of episodes cut by a token or time limit (imported ones: bootstrap); drop leaves them out."""
    old_logprobs: Literal["sampler", "learner"] = "sampler"
    """Source of the log-probabilities in the denominator of the ratio."""
    preset: str | None = None
    """Published method whose settings are used where none are given (`turnwise recipes --algos` lists them)."""


class CriticConfig(Section):
    """Critic, for advantage estimators that need one."""

    kind: Literal["trunk", "head"] = "trunk"
    """"trunk": a separate model, initialised from the policy; "head": a value head on the policy."""
    learning_rate: LearningRate = 1e-5
    """Learning rate of the critic."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps at the start in which only the critic is trained."""


class ArcherConfig(Section):
    """ArCHer: a critic of whole utterances, trained off-policy, and its token-level actor (algo.method)."""

    replay: Positive = 10000
    """Newest trajectories that the critic's updates are drawn from."""
    critic_updates: Positive = 8
    """Critic updates per step, before the actor's."""
    critic_batch: Positive = 32
    """Trajectories per critic update, with all of their turns."""
    states: Positive = 64
    """Turns per step at which the policy acts again: of the replay to train V, as many of new episodes for itself."""
    encoder: Literal["own", "policy"] = "own"
    """Trunk below the critic's heads: own, a trained copy of the policy's, or policy, the policy's hidden states."""
    target_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Polyak averaging: share of the critic in its target copy after each update."""
    correction: Literal["returns", "none"] = "returns"
    """returns: the actor also learns what the critic missed (Q-Prop); none: the critic alone, as far as it is right."""
    token_baseline: bool = False
    """Subtract a learnt baseline of the utterance's advantage from that of each of its tokens."""
    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Expectile of Q over the stored utterances that V learns (archer_offline): 0.5 is their mean, 1 their best."""
