"""ArCHer: train a critic of utterances from a replay, then the tokens of the policy on its advantages.

    a step's episodes -> replay
    replay -> trajectories -> critic       several updates: Q by TD over turns, V by the policy's fresh utterances
    their states -> fresh utterances       the policy acts again where it has been before; no environment is stepped
    fresh utterances -> Q - V -> actor     token-level policy gradient: an `Estimate` like that of any other method

The formulas are in `algos/archer.py`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnwise.algos.archer import calibration_metrics, compute_advantages
from turnwise.algos.stats import effective_sample_size, whiten
from turnwise.config.algorithm import AlgoConfig, ArcherConfig
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.protocols import Policy, Sampling
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import Learner, Needs, Sample
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.replay import Replay, StoredTurn
from turnwise.data.replay_files import Entry
from turnwise.data.samples import count_sampled, gather_sampled, scatter_sampled
from turnwise.models.critic import UtteranceValues
from turnwise.training.estimate import SCORE_COLUMNS, Estimate, score_samples, select_trajectories
from turnwise.training.utterance_critic import (
    Decisions,
    UtteranceCriticLearner,
    build_decisions,
    utterance_lengths,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayState:
    """State of the replay at which the policy acts again."""

    trajectory: Trajectory
    stored: StoredTurn
    update: int
    """Number of the step's critic update whose trajectories it belongs to."""
    decision: int
    """Its index among the decisions of these trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshUtterance:
    state: ReplayState
    sample: Sample
    """The state and the new utterance, whose tokens alone are marked as sampled."""

    def stored_sample(self) -> Sample:
        """Return the same state with the utterance of the replay."""
        stored = self.state.stored
        return utterance_sample(stored.ids.tolist(), stored.start, stored.logprobs.tolist(), stored.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSettings:
    archer: ArcherConfig
    algo: AlgoConfig
    needs: Needs
    micro_tokens: int
    run_seed: int


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
        found = await asyncio.gather(*(self._sample(each, step, index) for index, each in enumerate(states)))
        return [each for each in found if each is not None]

    async def _sample(self, replayed: ReplayState, step: int, index: int) -> FreshUtterance | None:
        stored = replayed.stored
        state = stored.ids[: stored.start].tolist()
        is_summary = replayed.trajectory.turns[stored.turn].is_summary
        most = self.summary_tokens if is_summary else self.sampling.max_tokens
        most = min(most, self.max_tokens - len(state))
        key = EpisodeKey(
            run_seed=address("fresh utterances", self.run_seed),
            round=step,
            task=Task(env="replay", seed=0),
            member=index,
        )
        try:
            async with self.policy.open(key) as session:
                completion = await session.generate(state, replace(self.sampling, max_tokens=most))
        except InfrastructureFailure:
            return None
        sample = utterance_sample([*state, *completion.ids], len(state), completion.logprobs, completion.temperature)
        return FreshUtterance(state=replayed, sample=sample)


def utterance_sample(ids: Sequence[int], start: int, logprobs: Sequence[float], temperature: float) -> Sample:
    """Return a sample whose only utterance begins at `start`."""
    mask = torch.arange(len(ids)) >= start
    return Sample(
        trajectory=0,
        ids=torch.tensor(ids, dtype=torch.long),
        mask=mask,
        turn_ids=torch.where(mask, 0, -1),
        logprobs=torch.zeros(len(ids)).masked_scatter_(mask, torch.tensor(logprobs, dtype=torch.float32)),
        temperatures=torch.where(mask, temperature, 1.0),
    )


class Archer:
    def __init__(
        self, *, settings: ActorSettings, critic: UtteranceCriticLearner, replay: Replay, sampler: UtteranceSampler
    ) -> None:
        self.settings, self.critic, self.replay, self.sampler = settings, critic, replay, sampler

    async def sample_fresh_utterances(self, step: int, groups: Sequence[Group]) -> list[FreshUtterance]:
        """Add the episodes of training step `step` to the replay; sample fresh utterances at states of it."""
        for trajectory in usable_trajectories(groups, self.settings.algo):
            self.replay.add(trajectory, step=step)
        return await self.sampler.sample(draw_states(self.replay, self.settings, step), step)

    def estimate(
        self, step: int, groups: Sequence[Group], fresh: Sequence[FreshUtterance], learner: Learner
    ) -> Estimate | None:
        """Train the critic; return the advantages of the fresh utterances. None if there are none."""
        played = decisions_of(usable_trajectories(groups, self.settings.algo), self.settings.algo)
        metrics = measure_calibration(self.critic, played)
        if not fresh:
            return None
        samples = [replace(each.sample, trajectory=index) for index, each in enumerate(fresh)]
        batches = draw_batches(self.replay, self.settings, step)
        metrics |= train_critic(self.critic, batches, fresh, step)
        stored = [each.stored_sample() for each in fresh]
        metrics |= {
            "replay_trajectories": float(len(self.replay)),
            "effective_samples": effective_share(stored, learner, self.settings.micro_tokens),
        }
        advantages = utterance_advantages(self.critic.estimate_values(samples), self.settings.algo)
        trajectories = [each.state.trajectory for each in fresh]
        return build_estimate(trajectories, samples, advantages, metrics, self.settings, learner)

    def rewind(self, step: int) -> None:
        """Forget what was played after training step `step`, whose checkpoint was restored."""
        self.replay.discard_from(step + 1)

    def prune(self, step: int) -> None:
        """Free the disk of trajectories that no run needs which resumes after `step`."""
        self.replay.prune(step)


def usable_trajectories(groups: Sequence[Group], algo: AlgoConfig) -> list[Trajectory]:
    """Return the trajectories whose every turn is an utterance, so that turns and utterances are the same."""
    trajectories, _ = select_trajectories(groups, algo.truncated)
    return [each for each in trajectories if all(turn.action_ids for turn in each.turns)]


def decisions_of(trajectories: Sequence[Trajectory], algo: AlgoConfig) -> Decisions:
    return build_decisions(trajectories, float(algo.gamma_turn), bootstrap=algo.truncated == "bootstrap")


def draw_entries(replay: Replay, settings: ActorSettings, step: int) -> list[list[Entry]]:
    """Draw the trajectories of each critic update of a step."""
    keys = [(settings.run_seed, step, number) for number in range(settings.archer.critic_updates)]
    return [replay.sample(settings.archer.critic_batch, *key) for key in keys]


def draw_batches(replay: Replay, settings: ActorSettings, step: int) -> list[Decisions]:
    """Return the decisions of each critic update."""
    drawn = [[replay.read_group([entry]) for entry in entries] for entries in draw_entries(replay, settings, step)]
    return [decisions_of(usable_trajectories(each, settings.algo), settings.algo) for each in drawn]


def draw_states(replay: Replay, settings: ActorSettings, step: int) -> list[ReplayState]:
    """Draw archer.states turns from the trajectories of the step's critic updates, about as many from each."""
    found, updates = list[ReplayState](), settings.archer.critic_updates
    for number, entries in enumerate(draw_entries(replay, settings, step)):
        usable = [each for each in entries if usable_trajectories([replay.read_group([each])], settings.algo)]
        turns = [(entry, turn) for entry in usable for turn in range(entry.turns)]
        count = (number + 1) * settings.archer.states // updates - number * settings.archer.states // updates
        random = random_stream("states", settings.run_seed, step, number)
        for decision in random.sample(range(len(turns)), min(count, len(turns))):
            entry, turn = turns[decision]
            found.append(
                ReplayState(
                    trajectory=replay.read(entry),
                    stored=replay.read_turn(entry, turn),
                    update=number,
                    decision=decision,
                )
            )
    return found


def effective_share(samples: Sequence[Sample], learner: Learner, micro_tokens: int) -> float:
    """Return the share of stored utterances that still counts under the policy, by their importance weights."""
    now = torch.cat(score_samples(samples, learner, Needs(logprobs=True), micro_tokens)["logprobs"])
    log_ratios = now - gather_sampled(samples, [each.logprobs for each in samples])
    lengths = [length for each in samples for length in utterance_lengths(each)]
    weights = torch.stack([part.sum() for part in log_ratios.split(lengths)])
    return effective_sample_size(weights) / len(weights)


def utterance_advantages(estimates: UtteranceValues, algo: AlgoConfig) -> Tensor:
    """Return A = Q - V of each utterance, whitened over all of them with algo.whiten. [D]"""
    advantages = compute_advantages(estimates.q, estimates.v)
    return whiten(advantages, torch.ones_like(advantages, dtype=torch.bool)) if algo.whiten else advantages


def measure_calibration(critic: UtteranceCriticLearner, played: Decisions) -> dict[str, float]:
    """Compare the critic with the returns of decisions that it has not been trained on yet; see `algos/archer.py`."""
    if not played.samples:
        return {}
    estimates = critic.estimate_values(played.samples)
    return calibration_metrics(estimates.q, estimates.v, played.discounted_returns())


def train_critic(
    critic: UtteranceCriticLearner, batches: Sequence[Decisions], fresh: Sequence[FreshUtterance], step: int
) -> dict[str, float]:
    """Take an optimizer step per batch. Returns mean metrics, and how far the target lags behind."""
    found = []
    for number, batch in enumerate(batches):
        chosen = [each for each in fresh if each.state.update == number]
        states = [each.state.decision for each in chosen]
        if batch.samples:
            found.append(critic.update(batch, [each.sample for each in chosen], states, step - 1))
    means = {name: sum(each[name] for each in found) / len(found) for name in (found[0] if found else {})}
    return means | {"target_drift": critic.target_distance()}


def build_estimate(
    trajectories: Sequence[Trajectory],
    samples: list[Sample],
    advantages: Tensor,
    metrics: dict[str, float],
    settings: ActorSettings,
    learner: Learner,
) -> Estimate:
    """Give every token of an utterance its advantage [D], less the token baseline if there is one.

    The baseline of a token predicts the utterance's advantage from the tokens before it (the critic of
    `Learner.score`, whose targets are the advantages), so that a token is credited with what it changed.
    """
    scores = score_samples(samples, learner, settings.needs, settings.micro_tokens)
    sampler_logprobs = gather_sampled(samples, [each.logprobs for each in samples])
    columns = {name: scatter_sampled(samples, torch.cat(scores[name])) for name in SCORE_COLUMNS if name in scores}
    per_token = advantages.repeat_interleave(
        torch.tensor([length for each in samples for length in utterance_lengths(each)])
    )
    baseline = torch.cat(scores["values"]) if "values" in scores else torch.zeros_like(per_token)
    masks = [torch.ones(count, dtype=torch.bool) for count in count_sampled(samples)]
    return Estimate(
        trajectories=tuple(trajectories),
        group_ids=tuple(range(len(trajectories))),
        samples=samples,
        old_logprobs=columns.get("logprobs") or scatter_sampled(samples, sampler_logprobs),
        ref_logprobs=columns.get("ref_logprobs"),
        old_values=columns.get("values"),
        advantages=scatter_sampled(samples, per_token - baseline),
        returns=scatter_sampled(samples, per_token) if "values" in scores else None,
        loss_masks=masks,
        advantage_masks=masks,
        critic_fit=None,
        metrics=metrics
        | {"advantage_std": float(per_token.std(correction=0)), "advantage_mean": float(per_token.mean())},
    )
