"""Prepare a step's training data: score samples, place rewards on tokens, and compute advantages."""

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
from turnwise.algos.normalisation import (
    PLACEMENTS,
    Identity,
    Normalisation,
    combine_rewards,
    place_returns,
    scale_process_rewards,
)
from turnwise.algos.settings import AlgoConfig
from turnwise.algos.turn_discount import CriticFit, critic_fit_by_distance, turn_distances
from turnwise.core.errors import UserError
from turnwise.core.learner import Learner, Needs
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.packing import micro_batches, pack, unpack
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
from turnwise.rewards.scoring import ENV, FORMAT
from turnwise.training.coefficients import AdaptiveCoefficients, Coefficients
from turnwise.training.exploration import exploration_bonus
from turnwise.training.objective import SamplerMismatch
from turnwise.training.step import Baselines, Estimate, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    placement: str
    normalise: Normalisation
    process: bool
    """Scale the rewards before the last turn by their largest sum in the batch."""
    each: dict[str, float] | None
    """Weights of rewards that are normalised separately, by name; None if rewards are summed first."""


SCORE_COLUMNS = ("policy_logprobs", "entropy", "values", "ref_logprobs")


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
    samples = build_samples(trajectories, settings.allowed_sets)
    table = TokenTable(samples, len(trajectories))
    scores = _score(trajectories, samples, learner, settings)
    sampler_logprobs = gather_sampled(samples, [sample.sampler_logprobs for sample in samples])  # [K]
    old_logprobs = torch.cat(scores["policy_logprobs"]) if "policy_logprobs" in scores else sampler_logprobs
    metrics = _mismatch_metrics(samples, scores)
    rewards = token_rewards(trajectories, table, torch.tensor(group_ids), settings.rewards)
    if settings.kl_in_reward is not None:
        kl = table.to_matrix([settings.kl_in_reward(old_logprobs, torch.cat(scores["ref_logprobs"]))])
        rewards = subtract_kl(rewards, kl, table.mask, coefficients.kl.value)
        metrics["kl"] = float(kl[table.mask].mean())
    advantage_masks = rule_masks(trajectories, settings.advantage_tokens)
    chosen = table.to_matrix(advantage_masks)
    inputs = AdvantageInputs(
        mask=table.mask,
        token_rewards=rewards,
        group_ids=torch.tensor(group_ids),
        turn_ids=env_turn_ids(trajectories, table),
        values=table.to_matrix(scores["values"]) if "values" in scores else None,
        bootstrap=_bootstrap_values(trajectories, samples, scores, settings.algo.truncated),
        state_ids=state_ids(trajectories, table) if settings.advantage.needs_states else None,
        greedy_returns=None if baselines is None else _baseline(trajectories, baselines),
    )
    if settings.advantage.along_tokens and settings.advantage_tokens is not sampled:
        inputs = restrict_to_tokens(inputs, chosen)
    result = compute_advantages(_with_discount(settings.advantage, coefficients), inputs)
    advantages = result.advantages
    if coefficients.exploration is not None:
        bonus, entropy = exploration_bonus(trajectories, group_ids, table)
        advantages = advantages + coefficients.exploration_coef * bonus
        metrics |= {} if entropy is None else {"action_entropy": entropy}
    advantages = torch.where(chosen, advantages, 0.0)
    metrics |= _explained_variance(inputs, result.returns)
    same = settings.loss_tokens is settings.advantage_tokens
    loss_masks = advantage_masks if same else rule_masks(trajectories, settings.loss_tokens)
    metrics |= _mask_shares(settings, loss_masks, advantage_masks)
    return Estimate(
        trajectories=tuple(trajectories),
        group_ids=tuple(group_ids),
        samples=samples,
        old_logprobs=scatter_sampled(samples, old_logprobs),
        ref_logprobs=_scatter_column(samples, scores, "ref_logprobs"),
        old_values=_scatter_column(samples, scores, "values"),
        advantages=table.scatter(advantages),
        returns=None if result.returns is None else table.scatter(result.returns),
        loss_masks=loss_masks,
        advantage_masks=advantage_masks,
        critic_fit=_fit_critic(inputs),
        metrics=metrics | {"advantage_std": float(advantages[table.mask].std(correction=0))},
    )


def explain_unusable(groups: Sequence[Group]) -> IdleReason:
    """Return why `select_trajectories` selects none."""
    has_tokens = any(trajectory.num_sampled for group in groups for trajectory in group.trajectories)
    return IdleReason.TRUNCATED if has_tokens else IdleReason.NO_TOKENS


def check_finite_advantages(estimated: Estimate, setting: str, step: int) -> None:
    """Raise UserError if an advantage or a value target is NaN or infinite.

    `setting`: the one that chose the estimator; `step`: number of the training step.
    """
    for what, tensors in (("advantages", estimated.advantages), ("value targets", estimated.returns or [])):
        values = gather_sampled(estimated.samples, tensors) if tensors else torch.zeros(0)
        if bad := int((~values.isfinite()).sum()):
            raise UserError(
                f"{setting} gave {what} that are not finite (NaN or infinity) for {bad:,} of {len(values):,} sampled "
                f"tokens in step {step}. Nothing was trained on them. Return finite numbers for every sampled token."
            )


def _scatter_column(samples: list[Sample], scores: dict[str, list[Tensor]], name: str) -> list[Tensor] | None:
    """Return a score of all samples, a tensor per sample; None if the learner did not compute it."""
    return scatter_sampled(samples, torch.cat(scores[name])) if name in scores else None


def _mask_shares(
    settings: EstimateSettings, loss_masks: Sequence[Tensor], advantage_masks: Sequence[Tensor]
) -> dict[str, float]:
    """Return the share of the sampled tokens that each mask selects, unless it selects all by its rule."""
    masks = {
        "loss_token_share": (settings.loss_tokens, loss_masks),
        "advantage_token_share": (settings.advantage_tokens, advantage_masks),
    }
    return {
        name: float(torch.cat(list(each)).float().mean()) for name, (rule, each) in masks.items() if rule is not sampled
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


def _mismatch_metrics(samples: list[Sample], scores: dict[str, list[Tensor]]) -> dict[str, float]:
    """Compare the learner's log-probabilities with the sampler's, if the learner computed them."""
    mismatch = SamplerMismatch()
    for sample, policy_logprobs in zip(samples, scores.get("policy_logprobs", []), strict=False):
        mismatch.add(policy_logprobs, sample.sampler_logprobs[sample.mask], [len(policy_logprobs)])
    return mismatch.take()


def _bootstrap_values(
    trajectories: list[Trajectory], samples: list[Sample], scores: dict[str, list[Tensor]], truncated: str
) -> Tensor | None:
    """Return the critic's value after the last token of trajectories that continue, 0 for all others. [B]

    None without a critic, or if none continues.
    """
    continues = [trajectory.status.continues(bootstrap=truncated == "bootstrap") for trajectory in trajectories]
    if "end_values" not in scores or not any(continues):
        return None
    last = {sample.trajectory: value for sample, value in zip(samples, scores["end_values"], strict=True)}
    return torch.tensor([float(last[index]) if each else 0.0 for index, each in enumerate(continues)])


def sampler_values(trajectories: Sequence[Trajectory]) -> list[Tensor] | None:
    """Return the values that the engine computed while it sampled, in the order of `build_samples`.

    Return None if any turn lacks values. They come from the critic's weights at the start of the step, so no second
    forward pass is needed. The engine
    does not compute the value after the last token, which bootstrapping needs.
    """
    segments = [segment for trajectory in trajectories for segment in trajectory.segments()]
    if any(len(turn.values) != len(turn.action_ids) for segment in segments for turn in segment.turns):
        return None
    return [torch.tensor([value for turn in segment.turns for value in turn.values]) for segment in segments]


def score_samples(
    samples: Sequence[Sample], learner: Learner, needs: Needs, micro_tokens: int
) -> dict[str, list[Tensor]]:
    """Score samples in micro-batches. Returns, for each of `needs`, a tensor [K] per sample, of its sampled tokens.

    With values comes "end_values", the value after the last token of each sample.
    """
    if not needs.anything:
        return {}
    parts = micro_batches(samples, micro_tokens, learner.ranks)
    batches = [pack([samples[index] for index in part]) for part in parts]
    found: dict[str, dict[int, Tensor]] = {}
    for part, batch, scores in zip(parts, batches, learner.score(batches, needs), strict=True):
        for name in SCORE_COLUMNS:
            column = getattr(scores, name)
            if column is not None and getattr(needs, name):
                found.setdefault(name, {}).update(zip(part, unpack(batch, column), strict=True))
        if scores.end_values is not None:
            in_order = [part[index] for index in batch.order]
            found.setdefault("end_values", {}).update(zip(in_order, scores.end_values.unbind(), strict=True))
    return {name: [column[index] for index in range(len(samples))] for name, column in found.items()}


def token_rewards(
    trajectories: Sequence[Trajectory], table: TokenTable, group_ids: Tensor, settings: RewardSettings
) -> Tensor:
    """Return the reward of each sampled token. [B, S]"""
    if settings.each is not None:
        columns = torch.tensor([[_total(trajectory, name) for name in settings.each] for trajectory in trajectories])
        weights = torch.tensor(list(settings.each.values()))
        return place_returns(combine_rewards(columns, weights, group_ids), table.mask)
    turns, turn_ids = turn_matrix(trajectories), env_turn_ids(trajectories, table)
    if settings.process:
        last = torch.tensor([trajectory.num_turns - 1 for trajectory in trajectories]).clamp(min=0)
        outcomes = place_returns(turns.gather(1, last[:, None])[:, 0], table.mask)
        placed = PLACEMENTS["turn"](turns, table.mask, turn_ids)
        return scale_process_rewards(placed - outcomes, table.mask) + outcomes
    if isinstance(settings.normalise, Identity):
        return PLACEMENTS[settings.placement](turns, table.mask, turn_ids)
    returns = settings.normalise.normalise(turns.sum(dim=1), group_ids, environment_ids(trajectories))
    return place_returns(returns, table.mask)


def _total(trajectory: Trajectory, name: str) -> float:
    """Return the trajectory's reward of this name; the environment's includes the format penalty."""
    penalty = trajectory.rewards[FORMAT] if name == ENV else 0.0
    return trajectory.rewards[name] + penalty


def turn_matrix(trajectories: Sequence[Trajectory]) -> Tensor:
    """Return the rewards by environment turn, 0 after a trajectory's last turn. [B, N]"""
    width = max(1, *(each.num_turns for each in trajectories))
    rows = [[0.0] * width for _ in trajectories]
    for row, trajectory in zip(rows, trajectories, strict=True):
        for number, reward in zip(trajectory.env_turn_ids, trajectory.turn_rewards, strict=True):
            row[number] += reward
    return torch.tensor(rows)


def env_turn_ids(trajectories: Sequence[Trajectory], table: TokenTable) -> Tensor:
    """Return the environment turn of each sampled token; see `Trajectory.env_turn_ids`. [B, S]"""
    return _spread_over_tokens([trajectory.env_turn_ids for trajectory in trajectories], table)


def environment_ids(trajectories: Sequence[Trajectory]) -> Tensor:
    """Return an index of each trajectory's environment. [B]"""
    names = {trajectory.task.env: number for number, trajectory in enumerate(trajectories)}
    return torch.tensor([names[trajectory.task.env] for trajectory in trajectories])


def state_ids(trajectories: Sequence[Trajectory], table: TokenTable) -> Tensor:
    """Return an index of the state in which each token's turn acted, named by the environment; -1: unnamed. [B, S]"""
    indices: dict[str, int] = {}
    return _spread_over_tokens([_state_indices(trajectory, indices) for trajectory in trajectories], table)


def _spread_over_tokens(numbers_by_turn: Sequence[Sequence[int]], table: TokenTable) -> Tensor:
    """Give each sampled token the number of its turn; -1 elsewhere. [B, S]"""
    columns = [torch.tensor(numbers) for numbers in numbers_by_turn]
    return table.to_matrix(
        [columns[sample.trajectory][sample.turn_ids[sample.mask]] for sample in table.samples], fill=-1
    )


def _state_indices(trajectory: Trajectory, indices: dict[str, int]) -> list[int]:
    """Return the state index of each turn. A summary has the state of the environment turn that it belongs to."""
    states = [turn.info.get("state") for turn in trajectory.turns if not turn.is_summary]
    known = [-1 if state is None else indices.setdefault(state, len(indices)) for state in states] or [-1]
    return [known[turn] for turn in trajectory.env_turn_ids]
