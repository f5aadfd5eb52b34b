"""Advantages of the step's own episodes: score samples, place rewards on tokens, compute algo.advantage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnwise.algos.advantage_types import (
    Advantage,
    AdvantageInputs,
    compute_advantages,
    restrict_to_tokens,
)
from turnwise.algos.diagnostics import explained_variance
from turnwise.algos.gae import discounted_returns
from turnwise.algos.kl import KlEstimator, subtract_kl
from turnwise.algos.settings import AlgoConfig
from turnwise.algos.turn_discount import CriticFit, critic_fit_by_distance, turn_distances
from turnwise.core.learner import Learner, Needs
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.samples import (
    AllowedSets,
    TokenRule,
    TokenTable,
    build_samples,
    gather_sampled,
    rule_masks,
    sampled,
    scatter_sampled,
)
from turnwise.record.steps import IdleReason
from turnwise.training.coefficients import AdaptiveCoefficients, Coefficients
from turnwise.training.estimators.exploration import exploration_bonus
from turnwise.training.estimators.token_rewards import RewardSettings, env_turn_ids, state_ids, token_rewards
from turnwise.training.objective import SamplerMismatch
from turnwise.training.scores import sampler_values, score_samples
from turnwise.training.step import Baselines, Estimate, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSettings:
    algo: AlgoConfig
    rewards: RewardSettings
    advantage_tokens: TokenRule
    loss_tokens: TokenRule
    kl_in_reward: KlEstimator | None
    needs: Needs
    micro_tokens: int
    allowed_sets: AllowedSets | None = None
    """For turns with a constraint."""

    @property
    def advantage(self) -> Advantage:
        return self.algo.advantage


class OnPolicy:
    """Advantages of the step's own episodes, by algo.advantage."""

    trains = False

    def __init__(self, settings: EstimateSettings, coefficients: Coefficients) -> None:
        self._settings, self._coefficients = settings, coefficients
        self.setting = settings.algo.source_of_advantages

    async def sample(self, rollout: Rollout) -> None:
        """The episodes are all that is needed."""

    def estimate(self, rollout: Rollout, sampled: None, learner: Learner) -> Estimate | IdleReason:
        if rollout.empty is not None:
            return rollout.empty
        return estimate(rollout.kept, learner, self._settings, self._coefficients.value, rollout.baselines)


def select_trajectories(groups: Sequence[Group], truncated: str) -> tuple[list[Trajectory], list[int]]:
    """Return the trajectories to train on, and the group of each; leave out those without sampled tokens."""
    kept = [
        (trajectory, number)
        for number, group in enumerate(groups)
        for trajectory in group.trajectories
        if trajectory.num_sampled and not (truncated == "drop" and trajectory.status.cut_short)
    ]
    return [trajectory for trajectory, _ in kept], [number for _, number in kept]


def estimate(
    groups: Sequence[Group],
    learner: Learner,
    settings: EstimateSettings,
    coefficients: AdaptiveCoefficients,
    baselines: Baselines | None = None,
) -> Estimate | IdleReason:
    """Score the groups and compute advantages; if there is nothing to train on, return the reason.

    Shapes: [K] sampled tokens of all samples; [B, S] a row per trajectory (`TokenTable`); lists: a tensor per sample.
    """
    trajectories, group_ids = select_trajectories(groups, settings.algo.truncated)
    if not trajectories:
        return explain_unusable(groups)
    scored = score_trajectories(trajectories, group_ids, learner, settings)
    rewards, kl_metrics = _place_rewards(scored, settings, coefficients.kl.value)
    advantage_masks = rule_masks(trajectories, settings.advantage_tokens)
    chosen = scored.table.to_matrix(advantage_masks)
    inputs = _gather_inputs(scored, rewards, chosen, settings, baselines)
    result = compute_advantages(_with_discount(settings.advantage, coefficients), inputs)
    advantages, action_metrics = _add_exploration(result.advantages, scored, coefficients)
    advantages = torch.where(chosen, advantages, 0.0)
    same = settings.loss_tokens is settings.advantage_tokens
    loss_masks = advantage_masks if same else rule_masks(trajectories, settings.loss_tokens)
    return Estimate(
        trajectories=tuple(trajectories),
        group_ids=tuple(group_ids),
        samples=scored.samples,
        old_logprobs=scatter_sampled(scored.samples, scored.old_logprobs),
        ref_logprobs=scored.column("ref_logprobs"),
        old_values=scored.column("values"),
        advantages=scored.table.scatter(advantages),
        returns=None if result.returns is None else scored.table.scatter(result.returns),
        loss_masks=loss_masks,
        advantage_masks=advantage_masks,
        critic_fit=_fit_critic(inputs),
        metrics=_mismatch_metrics(scored)
        | kl_metrics
        | action_metrics
        | _explained_variance(inputs, result.returns)
        | _mask_shares(settings, loss_masks, advantage_masks)
        | {"advantage_std": float(advantages[scored.table.mask].std(correction=0))},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTrajectories:
    """The trajectories that a step trains on, their samples, and what the learner computed for these."""

    trajectories: list[Trajectory]
    group_ids: Tensor  # [B]
    samples: list[Sample]
    table: TokenTable
    scores: dict[str, list[Tensor]]
    old_logprobs: Tensor  # [K], denominator of the ratio

    def column(self, name: str) -> list[Tensor] | None:
        """Return a score of all samples, a tensor per sample; None if the learner did not compute it."""
        return scatter_sampled(self.samples, torch.cat(self.scores[name])) if name in self.scores else None


def score_trajectories(
    trajectories: list[Trajectory], group_ids: list[int], learner: Learner, settings: EstimateSettings
) -> ScoredTrajectories:
    samples = build_samples(trajectories, settings.allowed_sets)
    scores = _score(trajectories, samples, learner, settings)
    sampler_logprobs = gather_sampled(samples, [sample.sampler_logprobs for sample in samples])
    return ScoredTrajectories(
        trajectories=trajectories,
        group_ids=torch.tensor(group_ids),
        samples=samples,
        table=TokenTable(samples, len(trajectories)),
        scores=scores,
        old_logprobs=torch.cat(scores["policy_logprobs"]) if "policy_logprobs" in scores else sampler_logprobs,
    )


def _place_rewards(
    scored: ScoredTrajectories, settings: EstimateSettings, kl_coef: float
) -> tuple[Tensor, dict[str, float]]:
    """Return the reward of each sampled token [B, S], less the KL penalty if it is part of the reward."""
    table = scored.table
    rewards = token_rewards(scored.trajectories, table, scored.group_ids, settings.rewards)
    if settings.kl_in_reward is None:
        return rewards, {}
    kl = table.to_matrix([settings.kl_in_reward(scored.old_logprobs, torch.cat(scored.scores["ref_logprobs"]))])
    return subtract_kl(rewards, kl, table.mask, kl_coef), {"kl": float(kl[table.mask].mean())}


def _gather_inputs(
    scored: ScoredTrajectories,
    rewards: Tensor,
    chosen: Tensor,
    settings: EstimateSettings,
    baselines: Baselines | None,
) -> AdvantageInputs:
    """Return what the advantage is computed from. `chosen`: tokens of algo.advantage_tokens, [B, S]."""
    trajectories, table = scored.trajectories, scored.table
    inputs = AdvantageInputs(
        mask=table.mask,
        token_rewards=rewards,
        group_ids=scored.group_ids,
        turn_ids=env_turn_ids(trajectories, table),
        values=table.to_matrix(scored.scores["values"]) if "values" in scored.scores else None,
        bootstrap=_bootstrap_values(scored, settings.algo.truncated),
        state_ids=state_ids(trajectories, table) if settings.advantage.needs_states else None,
        greedy_returns=None if baselines is None else _baseline(trajectories, baselines),
    )
    if settings.advantage.along_tokens and settings.advantage_tokens is not sampled:
        return restrict_to_tokens(inputs, chosen)
    return inputs


def _add_exploration(
    advantages: Tensor, scored: ScoredTrajectories, coefficients: AdaptiveCoefficients
) -> tuple[Tensor, dict[str, float]]:
    """Add the bonus for varied actions, if the run has one."""
    if coefficients.exploration is None:
        return advantages, {}
    bonus, entropy = exploration_bonus(scored.trajectories, scored.group_ids, scored.table)
    metrics = {} if entropy is None else {"action_entropy": entropy}
    return advantages + coefficients.exploration_coef * bonus, metrics


def explain_unusable(groups: Sequence[Group]) -> IdleReason:
    """Return why `select_trajectories` selects none."""
    has_tokens = any(trajectory.num_sampled for group in groups for trajectory in group.trajectories)
    return IdleReason.TRUNCATED if has_tokens else IdleReason.NO_TOKENS


def _mask_shares(
    settings: EstimateSettings, loss_masks: Sequence[Tensor], advantage_masks: Sequence[Tensor]
) -> dict[str, float]:
    """Return the share of the sampled tokens that each mask selects, unless it selects all by its rule."""
    masks = {
        "loss_token_share": (settings.loss_tokens, loss_masks),
        "advantage_token_share": (settings.advantage_tokens, advantage_masks),
    }
    return {
        name: float(torch.cat(list(selected)).float().mean())
        for name, (rule, selected) in masks.items()
        if rule is not sampled
    }


def _baseline(trajectories: Sequence[Trajectory], baselines: Baselines) -> Tensor:
    """Return the baseline of each trajectory's task, [B]."""
    return torch.tensor([baselines[trajectory.task.env, trajectory.task.seed] for trajectory in trajectories])


def _explained_variance(inputs: AdvantageInputs, returns: Tensor | None) -> dict[str, float]:
    """Return the share of the returns' variance that the critic explains, if there is one."""
    if inputs.values is None or returns is None or not inputs.mask.any():
        return {}
    explained = explained_variance(inputs.values[inputs.mask], returns[inputs.mask])
    return {} if explained is None else {"explained_variance": explained}


def _score(
    trajectories: list[Trajectory], samples: list[Sample], learner: Learner, settings: EstimateSettings
) -> dict[str, list[Tensor]]:
    """Return the scores that the algorithm needs. Values that the engine computed while sampling are not repeated."""
    values = sampler_values(trajectories) if settings.needs.values and settings.algo.truncated != "bootstrap" else None
    needs = settings.needs if values is None else replace(settings.needs, values=False)
    scores = score_samples(samples, learner, needs, settings.micro_tokens)
    return scores if values is None else scores | {"values": values}


def _with_discount(advantage: Advantage, coefficients: AdaptiveCoefficients) -> Advantage:
    """Return the estimator with the current turn discount, if it is adaptive."""
    discount = coefficients.discount
    return advantage if discount is None else advantage.model_copy(update={"gamma_turn": discount.gamma})


def _fit_critic(inputs: AdvantageInputs) -> dict[int, CriticFit] | None:
    """Compare the critic's values with the undiscounted future rewards, by distance from the end."""
    if inputs.values is None:
        return None
    future_rewards = discounted_returns(inputs.token_rewards, inputs.mask, torch.ones_like(inputs.token_rewards))
    distances = turn_distances(inputs.turn_ids, inputs.mask)
    return critic_fit_by_distance(inputs.values[inputs.mask], future_rewards[inputs.mask], distances[inputs.mask])


def _mismatch_metrics(scored: ScoredTrajectories) -> dict[str, float]:
    """Compare the learner's log-probabilities with the sampler's, if the learner computed them."""
    mismatch = SamplerMismatch()
    for sample, policy_logprobs in zip(scored.samples, scored.scores.get("policy_logprobs", []), strict=False):
        mismatch.add(policy_logprobs, sample.sampler_logprobs[sample.mask], [len(policy_logprobs)])
    return mismatch.take()


def _bootstrap_values(scored: ScoredTrajectories, truncated: str) -> Tensor | None:
    """Return the critic's value after the last token of trajectories that continue, 0 for all others. [B]

    None without a critic, or if none continues.
    """
    continues = [trajectory.status.continues(bootstrap=truncated == "bootstrap") for trajectory in scored.trajectories]
    if "end_values" not in scored.scores or not any(continues):
        return None
    last = {sample.trajectory: value for sample, value in zip(scored.samples, scored.scores["end_values"], strict=True)}
    return torch.tensor([float(last[index]) if goes_on else 0.0 for index, goes_on in enumerate(continues)])
