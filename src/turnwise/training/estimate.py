"""What is known of every sampled token before the weights change: scores, rewards, advantages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnwise.algos.advantages import Advantage, AdvantageInputs, AdvantageParams
from turnwise.algos.diagnostics import explained_variance
from turnwise.algos.kl import KlEstimator, rewards_less_kl
from turnwise.algos.placement import restrict
from turnwise.algos.scan import discounted_returns
from turnwise.algos.turn_discount import Foresight, foresight_by_distance, turn_distances
from turnwise.core.samples import Learner, Needs, Sample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.samples import samples_of
from turnwise.data.table import TokenTable, at_sampled, place
from turnwise.data.token_masks import TokenRule, rule_masks, sampled
from turnwise.training.dials import Dials
from turnwise.training.mismatch import Mismatch
from turnwise.training.scoring import score_samples
from turnwise.training.token_rewards import RewardSettings, env_turn_ids, state_ids, token_rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSettings:
    advantage: Advantage
    params: AdvantageParams
    rewards: RewardSettings
    advantage_tokens: TokenRule
    loss_tokens: TokenRule
    kl_in_reward: KlEstimator | None
    truncated: str
    """"zero", "bootstrap" or "drop": see `AlgoConfig.truncated`."""
    needs: Needs
    micro_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One entry a sample; tensors of its length where nothing else is said."""

    trajectories: tuple[Trajectory, ...]
    samples: list[Sample]
    old_logprobs: list[Tensor]
    ref_logprobs: list[Tensor] | None
    old_values: list[Tensor] | None
    advantages: list[Tensor]
    returns: list[Tensor] | None
    loss_masks: list[Tensor]
    advantage_masks: list[Tensor]
    """Of these two: what counts among the sampled tokens, [K] bool each."""
    foresight: dict[int, Foresight] | None
    """What the critic explains by distance from the end; None: there is no critic."""
    metrics: dict[str, float]


Baselines = Mapping[tuple[str, int], float]
"""By environment and seed of a group's task: the return of its greedy rollout."""


def trainable(groups: Sequence[Group], truncated: str) -> tuple[list[Trajectory], list[int]]:
    """The trajectories that are trained on, and the group of each. One that sampled nothing teaches nothing."""
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
    dials: Dials,
    baselines: Baselines | None = None,
) -> Estimate | None:
    """Scores and advantages; None where nothing is left to train on."""
    trajectories, group_ids = trainable(groups, settings.truncated)
    if not trajectories:
        return None
    samples = samples_of(trajectories)
    table = TokenTable(samples, len(trajectories))
    scores = score_samples(samples, learner, settings.needs, settings.micro_tokens)
    own = at_sampled(samples, [each.logprobs for each in samples])
    old_logprobs = torch.cat(scores["logprobs"]) if "logprobs" in scores else own  # [K], as all of these
    inputs = AdvantageInputs(
        mask=table.mask,
        token_rewards=token_rewards(trajectories, table, torch.tensor(group_ids), settings.rewards),
        group_ids=torch.tensor(group_ids),
        turn_ids=env_turn_ids(trajectories, table),
        values=table.matrix(scores["values"]) if "values" in scores else None,
        bootstrap=_bootstrap(trajectories, samples, scores) if settings.truncated == "bootstrap" else None,
        state_ids=state_ids(trajectories, table) if settings.advantage.needs_states else None,
        baseline=None
        if baselines is None
        else torch.tensor([baselines[each.task.env, each.task.seed] for each in trajectories]),
    )
    metrics = _mismatch(samples, scores)
    if settings.kl_in_reward is not None:
        kl = table.matrix([settings.kl_in_reward(old_logprobs, torch.cat(scores["ref_logprobs"]))])
        rewards = rewards_less_kl(inputs.token_rewards, kl, table.mask, dials.kl.value)
        inputs = replace(inputs, token_rewards=rewards)
        metrics["kl"] = float(kl[table.mask].mean())
    advantage_masks = rule_masks(trajectories, settings.advantage_tokens)
    chosen = table.matrix(advantage_masks)
    if settings.advantage.along_tokens and settings.advantage_tokens is not sampled:
        inputs = restrict(inputs, chosen)
    result = settings.advantage.compute(inputs, _params(settings, dials))
    advantages = torch.where(chosen, result.advantages, 0.0)
    metrics["advantage_std"] = float(advantages[table.mask].std(correction=0))
    if inputs.values is not None and result.returns is not None and inputs.mask.any():
        explained = explained_variance(inputs.values[inputs.mask], result.returns[inputs.mask])
        metrics |= {} if explained is None else {"explained_variance": explained}
    return Estimate(
        trajectories=tuple(trajectories),
        samples=samples,
        old_logprobs=place(samples, old_logprobs),
        ref_logprobs=place(samples, torch.cat(scores["ref_logprobs"])) if "ref_logprobs" in scores else None,
        old_values=place(samples, torch.cat(scores["values"])) if "values" in scores else None,
        advantages=table.spread(advantages),
        returns=None if result.returns is None else table.spread(result.returns),
        loss_masks=advantage_masks
        if settings.loss_tokens is settings.advantage_tokens
        else rule_masks(trajectories, settings.loss_tokens),
        advantage_masks=advantage_masks,
        foresight=_foresight(inputs),
        metrics=metrics,
    )


def _params(settings: EstimateSettings, dials: Dials) -> AdvantageParams:
    return settings.params if dials.discount is None else replace(settings.params, gamma_turn=dials.discount.gamma)


def _foresight(inputs: AdvantageInputs) -> dict[int, Foresight] | None:
    """Judged by the rewards to come, undiscounted."""
    if inputs.values is None:
        return None
    to_come = discounted_returns(inputs.token_rewards, inputs.mask, torch.ones_like(inputs.token_rewards))
    distances = turn_distances(inputs.turn_ids, inputs.mask)
    return foresight_by_distance(inputs.values[inputs.mask], to_come[inputs.mask], distances[inputs.mask])


def _mismatch(samples: list[Sample], scores: dict[str, list[Tensor]]) -> dict[str, float]:
    """How far the learner's log-probabilities are from the sampler's, where it was asked."""
    mismatch = Mismatch()
    for sample, logprobs in zip(samples, scores.get("logprobs", []), strict=False):
        mismatch.add(logprobs, sample.logprobs[sample.mask], [len(logprobs)])
    return mismatch.take()


def _bootstrap(trajectories: list[Trajectory], samples: list[Sample], scores: dict[str, list[Tensor]]) -> Tensor:
    """The critic's value after the last token of those that a limit cut; 0 for all others. [B]"""
    last = {sample.trajectory: value for sample, value in zip(samples, scores["end_values"], strict=True)}
    ends = [float(last[index]) if each.status.cut_short else 0.0 for index, each in enumerate(trajectories)]
    return torch.tensor(ends)
