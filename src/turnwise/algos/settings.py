"""Settings of the algorithm; each choice is a class beside its formula."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from turnwise.algos.advantage_types import Advantage
from turnwise.algos.advantages import ADVANTAGES, Grpo
from turnwise.algos.estimators import ESTIMATORS, EstimatorChoice, EstimatorSettings, OnPolicySettings
from turnwise.algos.filters import FILTERS, Filter, GroupFilter, NoFilter
from turnwise.algos.loss_types import Loss, PairLoss
from turnwise.algos.losses import AGGREGATIONS, LOSSES, Aggregation, Ppo, TokenMean
from turnwise.algos.normalisation import NORMALISATIONS, Identity, Normalisation
from turnwise.algos.off_policy import CORRECTIONS, REJECTIONS, Correction, NoCorrection, NoRejection, Rejection
from turnwise.settings.choice import OneOf
from turnwise.settings.needs import (
    CRITIC,
    GROUPS,
    KL_IN_LOSS,
    LEARNER_LOGPROBS,
    PAIRS,
    PLAIN_RETURNS,
    STORED,
    SUMMED_REWARDS,
    TOKEN_CRITIC,
    Lack,
    Need,
)
from turnwise.settings.section import Idle, NonNegative, Section

DAPO = " DAPO is several settings: set algo.preset dapo."
NOT_ADVANTAGES = {"ppo": " PPO is a loss, and the default one. Its advantage is gae.", "dapo": DAPO}
NOT_LOSSES = {
    "grpo": " GRPO is an advantage: set algo.advantage grpo. Its loss is ppo, the default.",
    "gae": " GAE is an advantage: set algo.advantage gae. Its loss is ppo, the default.",
    "gpg": " GPG is an advantage: set algo.advantage gpg. Its loss is reinforce.",
    "dapo": DAPO,
}
"""Names of the field that belong to another setting."""
TOKEN_RULES = ("loss_tokens", "advantage_tokens")
"""Settings of AlgoConfig that select tokens."""


class AlgoConfig(Section):
    """Algorithm: advantages, policy loss, off-policy correction, filter and KL penalty."""

    estimator: Annotated[EstimatorChoice, OneOf(setting="algo.estimator", table=ESTIMATORS, base=EstimatorSettings)] = (
        OnPolicySettings()
    )
    """on_policy, or with a critic of utterances: archer on a replay, archer_offline or awac on stored episodes."""
    advantage: Annotated[
        Advantage, OneOf(setting="algo.advantage", table=ADVANTAGES, base=Advantage, hints=NOT_ADVANTAGES)
    ] = Grpo()
    """Advantage estimator."""
    loss: Annotated[Loss, OneOf(setting="algo.loss", table=LOSSES, base=Loss, hints=NOT_LOSSES)] = Ppo()
    """Policy loss."""
    aggregation: Annotated[Aggregation, OneOf(setting="algo.aggregation", table=AGGREGATIONS)] = TokenMean()
    """Aggregation of token losses into one loss."""
    correction: Annotated[Correction, OneOf(setting="algo.correction", table=CORRECTIONS)] = NoCorrection()
    """Weight of tokens whose sampler differs from the policy in the denominator of the ratio."""
    rejection: Annotated[Rejection, OneOf(setting="algo.rejection", table=REJECTIONS)] = NoRejection()
    """Unit that is left out of training when the policy disagrees with the sampler on it."""
    normalise: Annotated[Normalisation, OneOf(setting="algo.normalise", table=NORMALISATIONS)] = Identity()
    """Normalisation of trajectory returns before the advantages."""
    filter: Annotated[GroupFilter, OneOf(setting="algo.filter", table=FILTERS, base=Filter)] = NoFilter()
    """Filter that selects the groups to train on."""
    placement: Literal["turn", "trajectory"] | None = None
    """Token that gets a turn's reward: the last of the turn or of the trajectory; none lets the estimator decide."""
    loss_tokens: str = "sampled"
    """Tokens in the loss: sampled (all), parts such as answer or prediction+answer, or FILE.py:function of a turn."""
    advantage_tokens: str = "sampled"
    """Sampled tokens that get advantages, chosen as for loss_tokens; the others get 0."""
    entropy_coef: NonNegative = 0.001
    """Coefficient of the entropy bonus."""
    entropy_target: Annotated[float, Field(gt=0)] | None = None
    """Target entropy of the sampled tokens, in nats; entropy_coef rises while it is lower. None keeps it constant."""
    action_entropy_target: Annotated[float, Field(gt=0)] | None = None
    """Target entropy of a turn's actions, in nats, of a bonus for actions that vary in one state; none: no bonus."""
    kl_coef: NonNegative = 0.0
    """Coefficient of the KL divergence from the reference, the initial policy; 0 keeps no reference."""
    kl_estimator: Literal["k1", "k2", "k3", "abs"] | None = None
    """KL estimator; none uses k3 in the loss and k1 in the reward."""
    kl_in: Literal["loss", "reward"] | None = None
    """Place of the KL term, loss or reward; none uses the reward for reinforce_pp and the loss otherwise."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """Target KL per token that kl_coef is adapted to; none keeps kl_coef constant."""
    truncated: Literal["zero", "bootstrap", "drop"] = "zero"
    """Value after the end of episodes cut by a token or time limit (imported ones: bootstrap); drop leaves them out."""
    old_logprobs: Literal["sampler", "learner"] = "sampler"
    """Source of the log-probabilities in the denominator of the ratio."""
    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"placement": (SUMMED_REWARDS, PLAIN_RETURNS)}
    preset: str | None = None
    """Published method whose settings are used where none are given (`turnwise recipes --algos` lists them)."""

    @property
    def needs_critic(self) -> bool:
        """Trains a critic of tokens."""
        return self.estimator.uses_advantage and self.advantage.needs_critic

    @property
    def has_any_critic(self) -> bool:
        """Trains a critic, of tokens or of whole utterances."""
        return self.needs_critic or self.estimator.trains_critic

    @property
    def needs_groups(self) -> bool:
        """Compares the episodes of one task with each other."""
        return self.estimator.uses_advantage and (self.advantage.needs_groups or self.normalise.compares_members)

    @property
    def needs_greedy(self) -> bool:
        """Plays a greedy episode of each task."""
        return self.estimator.uses_advantage and self.advantage.needs_greedy

    @property
    def compares_pairs(self) -> bool:
        """Compares two episodes of a task."""
        return self.estimator.uses_advantage and self.advantage.compares_pairs

    @property
    def uses_rewards(self) -> bool:
        """False: trajectories whose reward is unknown may be trained on."""
        return not self.estimator.uses_advantage or self.advantage.uses_rewards

    @property
    def needs_reference(self) -> bool:
        """Keeps a frozen copy of the initial policy, for a KL term or a loss that compares with it."""
        return self.kl_coef > 0 or isinstance(self.loss, PairLoss)

    @property
    def kl_is_reward(self) -> bool:
        """The KL term is part of the reward, not of the loss."""
        return self.kl_in == "reward" or (self.kl_in is None and self.advantage.outcome_minus_kl)

    @property
    def source_of_advantages(self) -> str:
        """The setting that computes advantages, for messages."""
        if self.estimator.uses_advantage:
            return f"algo.advantage {self.advantage.kind}"
        return f"algo.estimator {self.estimator.kind}"

    @model_validator(mode="after")
    def _check_coefficients(self) -> "AlgoConfig":
        if self.entropy_target is not None and self.entropy_coef == 0:
            raise ValueError(
                "algo.entropy_target adapts algo.entropy_coef, which is 0. Set algo.entropy_coef to its least value, "
                "such as 0.001."
            )
        if self.kl_target is not None and self.kl_coef == 0:
            raise ValueError(
                "algo.kl_target adapts algo.kl_coef, which is 0. Set algo.kl_coef to an initial value, such as 0.001."
            )
        if self.kl_coef > 0 and not self.kl_is_reward and self.kl_estimator == "k1":
            raise ValueError(
                "algo.kl_estimator k1 has an expected gradient of 0 and so no effect in the loss. Choose k2 or k3, or "
                "algo.kl_in reward."
            )
        return self

    def needs(self) -> list[Need]:
        needs = [Need(TOKEN_CRITIC, f"algo.advantage {self.advantage.kind} needs the values of tokens")]
        bootstraps = Need(CRITIC, "algo.truncated bootstrap uses the critic's value", "choose zero or drop")
        compares = Need(
            GROUPS, "algo.action_entropy_target compares the actions of a group's members", "set it to none"
        )
        why = f"{self.source_of_advantages} imitates every episode, so it needs others than the policy's own"
        return (
            needs * self.needs_critic
            + [bootstraps] * (self.truncated == "bootstrap")
            + [compares] * (self.action_entropy_target is not None)
            + [Need(STORED, why)] * (not self.uses_rewards)
        )

    def lacks(self) -> dict[str, Lack]:
        source, lacks = self.source_of_advantages, dict[str, Lack]()
        choose = "choose algo.advantage gae, turn_gae, step_gae or bi_level_gae"
        if not self.has_any_critic:
            lacks[CRITIC] = Lack(source, "has no critic", choose)
        if not self.compares_pairs:
            lacks[PAIRS] = Lack(source, "does not say which is better", "choose algo.advantage preference")
        if self.old_logprobs == "sampler":
            setting = "algo.old_logprobs sampler"
            lacks[LEARNER_LOGPROBS] = Lack(setting, "makes it always 1", "choose algo.old_logprobs learner")
        if self.kl_coef > 0 and self.kl_is_reward:
            lacks[KL_IN_LOSS] = Lack("algo.kl_in reward", "adds the KL term to rewards", "choose algo.kl_in loss")
        return lacks

    def idle(self) -> Idle:
        idle: dict[str, tuple[str, str]] = {}
        if self.kl_coef == 0:
            idle |= dict.fromkeys(("kl_estimator", "kl_in", "kl_target"), ("algo.kl_coef 0", "raise algo.kl_coef"))
        if not self.estimator.uses_advantage:
            replaced = ("advantage", "filter", "action_entropy_target", *TOKEN_RULES, "placement")
            idle |= dict.fromkeys(replaced, (f"algo.estimator {self.estimator.kind}", "choose on_policy"))
        return idle
