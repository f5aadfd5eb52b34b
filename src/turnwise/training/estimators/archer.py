"""ArCHer: train a critic of utterances from a replay, then the tokens of the policy on its advantages.

    a step's episodes -> replay
    replay -> trajectories -> critic       several updates: Q by TD over turns, V by the policy's fresh utterances
    their states -> fresh utterances       the policy acts again where it has been before; no environment is stepped
    states of the step's episodes -> fresh utterances -> Q - V -> actor
                                           token-level policy gradient: an `Estimate` like that of any other method
    the step's returns -> trust            how far the actor follows the critic, which has not seen these returns
    played utterances -> return - V - trust (Q - V) -> actor    what the critic missed (correction)

The critic learns from all of the replay, the actor in states of the current policy alone: the policy gradient is over
these states, and only there the returns say whether the critic is right. The formulas are in `algos/archer.py`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from turnwise.algos.archer import (
    calibration_metrics,
    compute_advantages,
    compute_trust,
    correct_by_returns,
    estimate_improvement,
)
from turnwise.algos.critics import UtteranceCriticSettings
from turnwise.algos.estimators import ActingEstimator, ArcherSettings, UtteranceEstimator
from turnwise.algos.settings import AlgoConfig
from turnwise.algos.stats import effective_sample_size, whiten
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.learner import Learner, Needs
from turnwise.core.protocols import Policy, Sampling
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import Sample
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.replay import Replay
from turnwise.data.samples import count_sampled, gather_sampled, scatter_sampled
from turnwise.models.critic import UtteranceValues
from turnwise.record.steps import IdleReason
from turnwise.training.estimators.on_policy import select_trajectories
from turnwise.training.estimators.utterance_critic import (
    Decisions,
    UtteranceCriticLearner,
    build_decisions,
    utterance_lengths,
)
from turnwise.training.scores import SCORE_COLUMNS, score_samples
from turnwise.training.step import Estimate, Part, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayState:
    """State of the replay at which the policy acts again."""

    trajectory: Trajectory
    turn: int
    update: int | None
    """Number of the step's critic update whose trajectories it belongs to; None: to the episodes of the step."""
    decision: int
    """Its index among the decisions of these trajectories."""

    @property
    def ids(self) -> list[int]:
        """Every token before the utterance."""
        segments = self.trajectory.segments()
        segment = next(candidate for candidate in segments if self.turn < candidate.first_turn + len(candidate.turns))
        *earlier, acting = segment.turns[: self.turn - segment.first_turn + 1]
        before = [token for turn in earlier for token in (*turn.context_ids, *turn.action_ids)]
        return [*before, *acting.context_ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshUtterance:
    state: ReplayState
    sample: Sample
    """The state and the new utterance, whose tokens alone are marked as sampled."""

    def stored_sample(self) -> Sample:
        """Return the same state with the utterance of the replay."""
        stored = self.state.trajectory.turns[self.state.turn]
        return utterance_sample(self.state.ids, stored.action_ids, stored.action_logprobs, stored.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSettings:
    archer: UtteranceEstimator
    critic: UtteranceCriticSettings
    algo: AlgoConfig
    needs: Needs
    micro_tokens: int
    run_seed: int

    @property
    def corrects(self) -> bool:
        """The actor also learns what the critic missed."""
        return isinstance(self.archer, ArcherSettings) and self.archer.correction == "returns"


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceSampler:
    """Lets the policy act at states of the replay."""

    policy: Policy
    sampling: Sampling
    summary_tokens: int
    """Limit of sampled tokens where the stored utterance is a summary of the context."""
    max_tokens: int
    """Longest context, in tokens."""
    run_seed: int

    async def sample(self, states: Sequence[ReplayState], step: int) -> list[FreshUtterance]:
        """Sample one utterance per state. States at which the engine fails are left out."""
        utterances = await asyncio.gather(*(self._sample(state, step, index) for index, state in enumerate(states)))
        return [utterance for utterance in utterances if utterance is not None]

    async def _sample(self, state: ReplayState, step: int, index: int) -> FreshUtterance | None:
        ids, is_summary = state.ids, state.trajectory.turns[state.turn].is_summary
        most = self.summary_tokens if is_summary else self.sampling.max_tokens
        most = min(most, self.max_tokens - len(ids))
        key = EpisodeKey(
            run_seed=address("fresh utterances", self.run_seed),
            round=step,
            task=Task(env="replay", seed=0),
            member=index,
        )
        try:
            async with self.policy.open(key) as session:
                completion = await session.generate(ids, replace(self.sampling, max_tokens=most))
        except InfrastructureFailure:
            return None
        sample = utterance_sample(ids, completion.ids, completion.logprobs, completion.temperature)
        return FreshUtterance(state=state, sample=sample)


def utterance_sample(
    state: Sequence[int], utterance: Sequence[int], sampler_logprobs: Sequence[float], temperature: float
) -> Sample:
    """Return a sample whose only sampled tokens are those of the utterance."""
    ids = torch.tensor([*state, *utterance], dtype=torch.long)
    mask = torch.arange(len(ids)) >= len(state)
    return Sample(
        trajectory=0,
        ids=ids,
        mask=mask,
        turn_ids=torch.where(mask, 0, -1),
        sampler_logprobs=torch.zeros(len(ids)).masked_scatter_(
            mask, torch.tensor(sampler_logprobs, dtype=torch.float32)
        ),
        temperatures=torch.where(mask, temperature, 1.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticCheck:
    """The critic's estimates in N states of a step's episodes, compared with the returns that followed."""

    played: Tensor  # [N] Q - V of the utterance that was played
    fresh: Tensor  # [N] Q - V of a fresh one
    residuals: Tensor  # [N] return - V; the return of a cut episode ends with Q under algo.truncated bootstrap
    trust: float
    metrics: dict[str, float]

    def advantages(self, std: float, settings: ActorSettings) -> Tensor:
        """Return those of the fresh utterances [N], followed by those of the played ones if returns correct them."""
        advantages = self.fresh
        if settings.corrects:
            advantages = torch.cat(correct_by_returns(self.played, self.fresh, self.residuals, self.trust))
        return scale_advantages(advantages, std, whitened=settings.archer.whiten)


class Archer(Part):
    """Trains a critic of utterances; the actor follows its judgement of fresh ones."""

    trains = True
    setting = "algo.estimator archer"

    def __init__(
        self, *, settings: ActorSettings, critic: UtteranceCriticLearner, replay: Replay, sampler: UtteranceSampler
    ) -> None:
        self.settings, self.critic, self.replay, self.sampler = settings, critic, replay, sampler

    async def sample(self, rollout: Rollout) -> list[FreshUtterance]:
        """Add the episodes of the step to the replay; sample fresh utterances at states of both."""
        step = rollout.number
        for trajectory in usable_trajectories(rollout.groups, self.settings.algo):
            self.replay.add(trajectory, step=step)
        states = draw_states(self.replay, self.settings, step) + draw_new_states(self.replay, self.settings, step)
        return await self.sampler.sample(states, step)

    def estimate(self, rollout: Rollout, sampled: Sequence[FreshUtterance], learner: Learner) -> Estimate | IdleReason:
        """Train the critic; return the advantages of the fresh utterances in the step's episodes."""
        step, fresh = rollout.number, sampled
        new = [utterance for utterance in fresh if utterance.state.update is None]
        if not new:
            return IdleReason.NO_UTTERANCES
        check = self._check_critic(step, new)  # before the critic learns from these returns
        metrics = check.metrics | train_critic(self.critic, draw_batches(self.replay, self.settings, step), fresh, step)
        stored = [utterance.stored_sample() for utterance in fresh if utterance.state.update is not None]
        metrics |= {
            "replay_trajectories": float(len(self.replay)),
            "effective_samples": effective_share(stored, learner, self.settings.micro_tokens),
        }
        corrects = self.settings.corrects
        chosen = [utterance.sample for utterance in new]
        if corrects:
            chosen += [utterance.stored_sample() for utterance in new]
        samples = [replace(sample, trajectory=index) for index, sample in enumerate(chosen)]
        trajectories = [utterance.state.trajectory for utterance in new] * (2 if corrects else 1)
        advantages = check.advantages(self.critic.std, self.settings)
        estimated = build_estimate(trajectories, samples, advantages, metrics, self.settings, learner)
        return replace(estimated, rate_scale=1.0 if corrects else check.trust)

    def _check_critic(self, step: int, fresh: Sequence[FreshUtterance]) -> CriticCheck:
        """Compare the critic with the returns of a step's episodes. `fresh`: other utterances in their states."""
        trajectories = read_step(self.replay, step)
        played, at = (
            decisions_of(trajectories, self.settings),
            torch.tensor([utterance.state.decision for utterance in fresh]),
        )
        fit_unit(self.critic, played)
        of_played, of_fresh = (
            self.critic.estimate_values(played.samples),
            self.critic.estimate_values([utterance.sample for utterance in fresh]),
        )
        q_played, q_fresh = of_played.q.amin(dim=1)[at], of_fresh.q.amin(dim=1)
        residuals = (played.discounted_returns(of_played.q.amin(dim=1)) - of_played.v.amin(dim=1))[at]
        lengths = torch.tensor([len(trajectory.turns) for trajectory in trajectories])
        owners = torch.arange(len(trajectories)).repeat_interleave(lengths)[at]
        judged = played.complete[at]  # a return that contains Q would confirm it
        improvement, error = estimate_improvement(q_played[judged], q_fresh[judged], residuals[judged], owners[judged])
        trust = compute_trust(improvement, error)
        shown = {"critic_improvement": improvement / self.critic.std**2, "critic_trust": trust}
        return CriticCheck(
            played=compute_advantages(of_played.q, of_played.v)[at],
            fresh=compute_advantages(of_fresh.q, of_fresh.v),
            residuals=residuals,
            trust=trust,
            metrics=calibrate(of_played, played) | shown,
        )

    async def begin(self, step: int) -> None:
        """Forget what was played after step `step`, whose checkpoint was restored."""
        self.replay.discard_from(step + 1)


def usable_trajectories(groups: Sequence[Group], algo: AlgoConfig) -> list[Trajectory]:
    """Return the trajectories whose every turn is an utterance, so that turns and utterances are the same."""
    trajectories, _ = select_trajectories(groups, algo.truncated)
    return [trajectory for trajectory in trajectories if all(turn.action_ids for turn in trajectory.turns)]


def decisions_of(trajectories: Sequence[Trajectory], settings: ActorSettings) -> Decisions:
    bootstrap = settings.algo.truncated == "bootstrap"
    return build_decisions(trajectories, settings.archer.gamma_turn, bootstrap=bootstrap)


def fit_unit(critic: UtteranceCriticLearner, decisions: Decisions) -> None:
    """Fit the critic's unit to the returns that are known."""
    critic.fit_unit(decisions.discounted_returns()[decisions.complete])


def calibrate(estimates: UtteranceValues, decisions: Decisions) -> dict[str, float]:
    """Compare the estimates with the returns that are known; {} without any."""
    known = decisions.complete
    if not known.any():
        return {}
    return calibration_metrics(estimates.q[known], estimates.v[known], decisions.discounted_returns()[known])


def draw_trajectories(replay: Replay, settings: ActorSettings, step: int) -> list[list[Trajectory]]:
    """Draw the trajectories of each critic update of a step: critic_batch, less those that are not usable."""
    keys = [(settings.run_seed, step, number) for number in range(settings.critic.updates)]
    drawn = [replay.sample(settings.critic.batch, *key) for key in keys]
    return [usable_trajectories([replay.read_group([index]) for index in part], settings.algo) for part in drawn]


def draw_batches(replay: Replay, settings: ActorSettings, step: int) -> list[Decisions]:
    """Return the decisions of each critic update."""
    return [decisions_of(drawn, settings) for drawn in draw_trajectories(replay, settings, step)]


def draw_states(replay: Replay, settings: ActorSettings, step: int) -> list[ReplayState]:
    """Draw `states` turns from the trajectories of the step's critic updates, about as many from each."""
    states, total, updates = list[ReplayState](), _num_states(settings), settings.critic.updates
    for number, trajectories in enumerate(draw_trajectories(replay, settings, step)):
        count = (number + 1) * total // updates - number * total // updates
        states += _draw_turns(trajectories, count, random_stream("states", settings.run_seed, step, number), number)
    return states


def _num_states(settings: ActorSettings) -> int:
    assert isinstance(settings.archer, ActingEstimator)
    return settings.archer.states


def read_step(replay: Replay, step: int) -> list[Trajectory]:
    """Return the trajectories of a training step."""
    return [replay.read(entry) for entry in replay.entries if entry.step == step]


def draw_new_states(replay: Replay, settings: ActorSettings, step: int) -> list[ReplayState]:
    """Draw `states` turns from the episodes of a training step."""
    random = random_stream("new states", settings.run_seed, step)
    return _draw_turns(read_step(replay, step), _num_states(settings), random, None)


def _draw_turns(
    trajectories: Sequence[Trajectory], count: int, random: Random, update: int | None
) -> list[ReplayState]:
    """Draw `count` different turns, or all if there are fewer."""
    turns = [(trajectory, turn) for trajectory in trajectories for turn in range(len(trajectory.turns))]
    return [
        ReplayState(trajectory=turns[decision][0], turn=turns[decision][1], update=update, decision=decision)
        for decision in random.sample(range(len(turns)), min(count, len(turns)))
    ]


def effective_share(samples: Sequence[Sample], learner: Learner, micro_tokens: int) -> float:
    """Return the share of stored utterances that still counts under the policy, by their importance weights."""
    now = torch.cat(score_samples(samples, learner, Needs(policy_logprobs=True), micro_tokens)["policy_logprobs"])
    log_ratios = now - gather_sampled(samples, [sample.sampler_logprobs for sample in samples])
    lengths = [length for sample in samples for length in utterance_lengths(sample)]
    weights = torch.stack([part.sum() for part in log_ratios.split(lengths)])
    return effective_sample_size(weights) / len(weights)


def scale_advantages(advantages: Tensor, std: float, *, whitened: bool) -> Tensor:
    """Return the advantages of utterances in units of `std`, or whitened over all of them. [D]

    Whitening gives the noise of a critic that knows nothing the same size as the judgement of a good one.
    """
    return whiten(advantages, torch.ones_like(advantages, dtype=torch.bool)) if whitened else advantages / std


def train_critic(
    critic: UtteranceCriticLearner, batches: Sequence[Decisions], fresh: Sequence[FreshUtterance], step: int
) -> dict[str, float]:
    """Take an optimizer step per batch. Returns mean metrics, and how far the target lags behind."""
    steps = []
    for number, batch in enumerate(batches):
        chosen = [utterance for utterance in fresh if utterance.state.update == number]
        states = [utterance.state.decision for utterance in chosen]
        if batch.samples:
            steps.append(critic.update(batch, [utterance.sample for utterance in chosen], states, step - 1))
    means = {
        name: sum(step_metrics[name] for step_metrics in steps) / len(steps) for name in (steps[0] if steps else {})
    }
    return means | {"target_drift": critic.target_distance()}


def build_estimate(
    trajectories: Sequence[Trajectory],
    samples: list[Sample],
    advantages: Tensor,
    metrics: dict[str, float],
    settings: ActorSettings,
    learner: Learner,
) -> Estimate:
    """Give every token of an utterance its advantage [D]."""
    scores = score_samples(samples, learner, settings.needs, settings.micro_tokens)
    sampler_logprobs = gather_sampled(samples, [sample.sampler_logprobs for sample in samples])
    columns = {name: scatter_sampled(samples, torch.cat(scores[name])) for name in SCORE_COLUMNS if name in scores}
    per_token = advantages.repeat_interleave(
        torch.tensor([length for sample in samples for length in utterance_lengths(sample)])
    )
    masks = [torch.ones(count, dtype=torch.bool) for count in count_sampled(samples)]
    return Estimate(
        trajectories=tuple(trajectories),
        group_ids=tuple(range(len(trajectories))),
        samples=samples,
        old_logprobs=columns.get("policy_logprobs") or scatter_sampled(samples, sampler_logprobs),
        ref_logprobs=columns.get("ref_logprobs"),
        old_values=None,
        advantages=scatter_sampled(samples, per_token),
        returns=None,
        loss_masks=masks,
        advantage_masks=masks,
        critic_fit=None,
        of_utterances=True,
        metrics=metrics
        | {"advantage_std": float(per_token.std(correction=0)), "advantage_mean": float(per_token.mean())},
    )
